"""A file of mined hard negatives, joined to queries by their ids."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import dataclasses
import itertools
import json
import logging
import pathlib
from typing import Any, NamedTuple

from dualenc_jax.errors import UserError
from dualenc_jax.readers import rows
from dualenc_jax.readers.rows import BadRow
from dualenc_jax.readers.texts_by_id import TextTable
from dualenc_jax.suggest import did_you_mean

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
    parse_entry: makes a Negative of an entry; raises BadRow.
  """

  query_id: str
  positives: Sequence[Any]
  negatives: Mapping[str, Sequence[Any]]
  parse_entry: Callable[[Any], Negative]

  def positive_ids(self) -> Iterator[str]:
    """Yields the ids of the positives that have one; raises BadRow."""
    for entry in self.positives:
      negative = self.parse_entry(entry)
      if negative.id:
        yield negative.id

  def ranked(self, systems: Collection[str]) -> Iterator[Negative]:
    """Yields the first of each system, then the second of each, and so on.

    Only what is asked for is parsed: lists may be long.

    Raises:
      BadRow: an entry is neither an id nor a text.
    """
    lists = [self.negatives[s] for s in systems if s in self.negatives]
    for entries in itertools.zip_longest(*lists, fillvalue=_NOTHING):
      for entry in entries:
        if entry is not _NOTHING:
          negative = self.parse_entry(entry)
          if not (negative.id or negative.text):
            raise BadRow('a hard negative has neither an id nor a text')
          yield negative


@dataclasses.dataclass(frozen=True)
class HardNegatives:
  """A file of hard negatives by query id, plain or .gz.

  It is of any form that `parse` knows. A query's negatives are the best of each
  system, then the second best of each, and so on, each passage once. One with
  an id is a passage of the corpus, also where the file has its text, so that
  all passages look alike.

  Attributes:
    path: the file.
    systems: whose negatives to take, in this order; None for all, in the order
      of the file.
    limit: most negatives that are taken of a query.
    strict: as of `rows.parsed`, and whether a positive of a query among the
      negatives to take is an error; else just these are left out and the log
      says how many. Within `rows.collecting` they are collected.
  """

  path: pathlib.Path
  systems: Sequence[str] | None = None
  limit: int = 30
  strict: bool = True

  def read(
      self, positives: Mapping[str, Collection[str]]
  ) -> Iterator[tuple[str, list[Negative]]]:
    """Yields (query id, hard negatives), each query once at most.

    Args:
      positives: passage ids by query id; other queries are left out.

    Raises:
      UserError: a bad row, a positive among the negatives, a query in two
        places of the file, or a system that is nowhere in it.
    """
    systems, done = set(), set()
    faults = rows.Faults(self.strict, 'hard negatives')
    parsed = rows.parsed(
        self.path, lambda line: self._taken(parse(line), positives), self.strict
    )
    for query_id, group in itertools.groupby(parsed, lambda found: found[1][0]):
      numbers, lines = zip(*group)
      _, of_systems, negatives, dropped = zip(*lines)
      systems.update(*of_systems)
      if query_id not in positives:
        continue
      location = f'{self.path}:{numbers[0]}'
      if query_id in done:
        raise UserError(
            f'{location}: query {query_id!r} came before, and other queries'
            ' between. Expected all of a query in one place.'
        )
      done.add(query_id)
      if any(dropped):
        faults.add(
            'a positive is among the hard negatives',
            location,
            f'query {query_id!r} has one of its positives among its hard'
            ' negatives',
            sum(dropped),
        )
      merged = dict.fromkeys(itertools.chain(*negatives))
      yield query_id, list(merged)[: self.limit]
    self._check_systems(systems)
    faults.warn(self.path)
    logging.getLogger(__name__).info(
        '%s: hard negatives for %s of %s queries.',
        self.path,
        f'{len(done):,}',
        f'{len(positives):,}',
    )

  def _taken(
      self, mined: Mined, positives: Mapping[str, Collection[str]]
  ) -> tuple[str, Collection[str], list[Negative], int]:
    """What is taken of a line; raises BadRow.

    Returns:
      The query id, the systems of the line, its negatives without positives,
      not more than the limit, and how many positives came before these.
    """
    kept, dropped = {}, 0
    if mined.query_id in positives:
      known = {*positives[mined.query_id], *mined.positive_ids()}
      systems = mined.negatives if self.systems is None else self.systems
      for negative in mined.ranked(systems):
        if negative.id in known:
          dropped += 1
          continue
        kept[negative] = None
        if len(kept) == self.limit:
          break
    return mined.query_id, mined.negatives.keys(), list(kept), dropped

  def _check_systems(self, found: Collection[str]) -> None:
    for system in self.systems or ():
      if system not in found:
        raise UserError(
            f'{self.path} has no hard negatives of a system {system!r}.'
            f'{did_you_mean(system, found)} Systems:'
            f' {", ".join(sorted(found)) or "none"}.'
        )


def of_query(table: TextTable, query_id: str) -> list[Negative]:
  """A query's hard negatives in a table of JSON, none if it is not there."""
  return [Negative(*entry) for entry in json.loads(table.get(query_id) or '[]')]


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
    BadRow: none of these.
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
  return Negative(
      '', rows.titled(rows.title(entry), rows.text(entry, 'text'))
  )
