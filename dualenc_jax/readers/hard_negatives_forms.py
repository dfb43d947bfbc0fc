"""Lines of files of mined hard negatives, in the forms that are about."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import itertools
from typing import Any, NamedTuple

from dualenc_jax.readers import rows
from dualenc_jax.readers.beir_folder import joined
from dualenc_jax.readers.rows import BadRow

_NOTHING = object()


class Negative(NamedTuple):
  """A hard negative.

  Attributes:
    id: passage id, '' if the file has only a text.
    text: where there is no id, with the title in front; else ''.
  """

  id: str
  text: str = ''


class Mined(NamedTuple):
  """What a line says about a query, its entries not parsed yet.

  Attributes:
    query_id: of the query.
    positives: entries.
    negatives: lists of entries, best first, by the system that found them; of
      files that name no system, by ''.
    parse_entry: makes a Negative of an entry; raises rows.BadRow.
  """

  query_id: str
  positives: Sequence[Any]
  negatives: Mapping[str, Sequence[Any]]
  parse_entry: Callable[[Any], Negative]

  def positive_ids(self) -> Iterator[str]:
    """Yields the ids of the positives that have one; raises rows.BadRow."""
    for entry in self.positives:
      negative = self.parse_entry(entry)
      if negative.id:
        yield negative.id

  def ranked(self, systems: Sequence[str]) -> Iterator[Negative]:
    """Yields the first of each system, then the second of each, and so on.

    Only what is asked for is parsed: lists may be long.

    Raises:
      rows.BadRow: an entry is neither an id nor a text.
    """
    lists = [self.negatives[s] for s in systems if s in self.negatives]
    for entries in itertools.zip_longest(*lists, fillvalue=_NOTHING):
      for entry in entries:
        if entry is not _NOTHING:
          negative = self.parse_entry(entry)
          if not (negative.id or negative.text):
            raise BadRow('a hard negative has neither an id nor a text')
          yield negative


def parse(line: bytes) -> Mined:
  """Parses a line, whose form its content tells.

  - sentence-transformers' msmarco-hard-negatives and GPL's hard-negatives:
    {"qid": ..., "pos": [id, ...], "neg": {system: [id, ...], ...}}; an entry
    may also be an object whose "pid" is the id.
  - Tevatron and RocketQA: {"query_id": ..., "positive_passages": [...],
    "negative_passages": [{"docid": ..., "title": ..., "text": ...}, ...]}.
  - TSV: query id, tab, passage ids separated by commas.
  - TSV of a triple a line: query id, positive id, negative id, and what may
    follow, such as GPL's margin.

  Raises:
    rows.BadRow: none of these.
  """
  if not line.lstrip().startswith(b'{'):
    if line.count(b'\t') in (2, 3):
      query_id, positive, negative, *_ = rows.decode(line).split('\t')
      return _mined(query_id, [positive], {'': [negative]}, _by_id)
    query_id, ids = rows.tsv_cells(line, ('query id', 'passage ids'))
    return _mined(query_id, [], {'': ids.split(',')}, _by_id)
  row = rows.json_object(line)
  if 'neg' in row:
    lists = row['neg'] if isinstance(row['neg'], dict) else {'': row['neg']}
    return _mined(
        rows.identifier(row, 'qid'), row.get('pos') or [], lists, _by_id
    )
  if 'negative_passages' in row:
    return _mined(
        rows.identifier(row, 'query_id'),
        row.get('positive_passages') or [],
        {'': row['negative_passages']},
        _with_text,
    )
  raise BadRow("neither 'neg' nor 'negative_passages' is there")


def _mined(
    query_id: str,
    positives: Any,
    negatives: Mapping[str, Any],
    parse_entry: Callable[[Any], Negative],
) -> Mined:
  if not query_id:
    raise BadRow('the query id is missing or empty')
  for entries in (positives, *negatives.values()):
    if not isinstance(entries, list):
      raise BadRow(
          f'positives or negatives are {type(entries).__name__}, not a list'
      )
  return Mined(query_id, positives, negatives, parse_entry)


def _by_id(entry: Any) -> Negative:
  if isinstance(entry, dict):
    entry = entry.get('pid')
  return Negative(rows.as_identifier('pid', entry).strip())


def _with_text(entry: Any) -> Negative:
  if not isinstance(entry, dict):
    raise BadRow(f'a passage is {type(entry).__name__}, not an object')
  name = rows.identifier(entry, 'docid')
  if name:
    return Negative(name)
  title = entry.get('title') or ''
  rows.check_text('title', title, empty=True)
  return Negative('', joined(title, rows.text(entry, 'text')))
