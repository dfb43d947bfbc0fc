"""Files of mined hard negatives, joined to queries by their ids."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
import json
import logging
import math
import pathlib
from typing import Any, NamedTuple

from dualenc_jax.data.readers import rows
from dualenc_jax.data.readers.rows import BadRow
from dualenc_jax.data.readers.texts_by_id import TextTable
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.suggest import did_you_mean

_NOTHING = object()
_MINE = (
    'expected query id and passage ids, or objects: `dualenc mine --run=FILE`'
    ' makes hard negatives of a TREC run'
)


class Negative(NamedTuple):
  """A hard negative with an id or a text, the title in front, '' for none.

  The score is a teacher's, NaN where none is wanted or given.
  """

  id: str
  text: str = ''
  score: float = math.nan


class OfQuery(NamedTuple):
  """A query's hard negatives, and scores of its positives by their ids."""

  negatives: list[Negative]
  scores: dict[str, float]


class Mined(NamedTuple):
  """What a line says about a query, its entries not parsed yet.

  `negatives` are best first, by the system that found them; of files that name
  no system, by ''. `parse_entry` raises BadRow.
  """

  query_id: str
  positives: Sequence[Any]
  negatives: Mapping[str, Sequence[Any]]
  parse_entry: Callable[[Any], Negative]

  def ranked(self, systems: Collection[str]) -> Iterator[Negative]:
    """Yields the first of each system, then the second of each, and so on.

    Only as many as are consumed are parsed, for lists may be long; a wrong
    entry raises BadRow.
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
    scored: whether a teacher's scores of positives and negatives are taken.
  """

  path: pathlib.Path
  systems: Sequence[str] | None = None
  limit: int = 30
  strict: bool = True
  scored: bool = False

  def read(
      self, positives: Mapping[str, Collection[str]]
  ) -> Iterator[tuple[str, OfQuery]]:
    """Yields (query id, what there is for it), each query once at most.

    `positives` are passage ids by query id; other queries are left out.

    Raises:
      UserError: a bad row, a positive among the negatives, a query in two
        places of the file, a system that is nowhere in it, margins over
        several positives of a query, or scores that are wanted and missing.
    """
    systems: set[str] = set()
    done: set[str] = set()
    found_scores = False
    faults = rows.Faults(self.strict, 'hard negatives')
    parsed = rows.parsed(
        self.path,
        lambda line: self._taken(parse(line, self.scored), positives),
        self.strict,
    )
    for query_id, group in itertools.groupby(parsed, lambda row: row[1][0]):
      numbers, lines = zip(*group)
      _, of_systems, of_lines, dropped, of_positives = zip(*lines)
      systems.update(*of_systems)
      if query_id not in positives:
        continue
      location = f'{self.path}:{numbers[0]}'
      if query_id in done:
        raise UserError(
            f'{location}: query {query_id!r} already had lines, before other'
            ' queries. Expected all lines of a query together, as by `sort -s'
            ' -k1,1`.'
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
      scores = dict(itertools.chain(*(s.items() for s in of_positives)))
      merged: dict[Any, Negative] = {}
      for negative in itertools.chain(*of_lines):
        merged.setdefault(negative[:2], negative)
      kept = list(merged.values())[: self.limit]
      if self.scored:
        # Margins over different positives cannot be compared.
        if len(scores) > 1 and not any(scores.values()):
          raise UserError(
              f'{location}: the margins of this query are over several'
              f" positives, {', '.join(map(repr, list(scores)[:3]))}. Expected"
              " one positive per query, as in GPL's generated queries."
          )
        all_scores = *scores.values(), *(n.score for n in kept)
        found_scores |= not all(map(math.isnan, all_scores))
      yield query_id, OfQuery(kept, scores)
    for system in self.systems or ():
      if system not in systems:
        raise UserError(
            f'{self.path} has no hard negatives of a system {system!r}.'
            f'{did_you_mean(system, systems)} Systems:'
            f' {", ".join(sorted(systems)) or "none"}.'
        )
    if self.scored and done and not found_scores:
      raise UserError(
          f"{self.path} has no scores of a teacher. Expected objects with 'pid'"
          " and 'ce-score', or GPL's lines of query id, positive id, negative"
          ' id and margin. Leave out the flag for scores.'
      )
    if positives and not done and self.strict:
      raise UserError(
          f'{self.path} has hard negatives of none of the'
          f' {len(positives):,} queries, such as {next(iter(positives))!r}. Is'
          ' it of another data set?'
      )
    faults.warn(self.path)
    logging.getLogger(__name__).info(
        '%s: hard negatives for %s of %s queries.',
        self.path, f'{len(done):,}', f'{len(positives):,}',
    )

  def _taken(
      self, mined: Mined, positives: Mapping[str, Collection[str]]
  ) -> tuple[str, Collection[str], list[Negative], int, dict[str, float]]:
    """Query id, all systems of a line, negatives without positives, how many of
    these came before them, and scores of positives."""
    kept: dict[Any, Negative] = {}
    dropped, scores = 0, {}
    if mined.query_id in positives:
      entries = map(mined.parse_entry, mined.positives)
      scores = {found.id: found.score for found in entries if found.id}
      known = {*positives[mined.query_id], *scores}
      systems = mined.negatives if self.systems is None else self.systems
      for negative in mined.ranked(systems):
        if negative.id in known:
          dropped += 1
          continue
        kept.setdefault(negative[:2], negative)
        if len(kept) == self.limit:
          break
    negatives = list(kept.values())
    return mined.query_id, mined.negatives.keys(), negatives, dropped, scores


def of_query(table: TextTable, query_id: str) -> OfQuery:
  """What a table of JSON has for a query, nothing if it is not in it."""
  negatives, scores = json.loads(table.get(query_id) or '[[], {}]')
  return OfQuery([Negative(*entry) for entry in negatives], scores)


def parse(line: bytes, scored: bool = False) -> Mined:
  """Parses a line, with scores if `scored`; raises BadRow. Its forms:

  - sentence-transformers' msmarco-hard-negatives and GPL's hard-negatives:
    {"qid": ..., "pos": [id, ...], "neg": {system: [id, ...], ...}}; an entry
    may also be an object whose "pid" is the id and "ce-score" its score.
  - Tevatron and RocketQA: {"query_id": ..., "positive_passages": [...],
    "negative_passages": [{"docid": ..., "title": ..., "text": ...}, ...]}.
  - TSV: query id, tab, passage ids separated by commas.
  - TSV of a triple a line: query id, positive id, negative id, and what may
    follow, such as GPL's margin, the score of the positive less that of the
    negative.
  """
  parse_entry = functools.partial(_by_id, scored=True) if scored else _by_id
  if not line.lstrip().startswith(b'{'):
    return _parse_tsv(line, scored, parse_entry)
  row = rows.json_object(line)
  if 'neg' in row:
    lists = row['neg'] if isinstance(row['neg'], dict) else {'': row['neg']}
    return _mined(
        rows.identifier(row, 'qid'), row.get('pos') or [], lists, parse_entry
    )
  if 'negative_passages' in row:
    return _mined(
        rows.identifier(row, 'query_id'),
        row.get('positive_passages') or [],
        {'': row['negative_passages']},
        _with_text,
    )
  reason = "neither 'neg' nor 'negative_passages' exists"
  raise BadRow(
      reason,
      f'{reason}; {rows.it_has(row)}. Pairs are a TRAIN_FILE of'
      ' tasks/pairs.gin; of the files of `dualenc mine` expected'
      ' hard-negatives.jsonl',
  )


def _parse_tsv(
    line: bytes, scored: bool, parse_entry: Callable[[Any], Negative]
) -> Mined:
  if line.count(b'\t') not in (2, 3):
    if len(line.split()) == 6 and b',' not in line:
      raise BadRow(f'it is a line of a TREC run; {_MINE}')
    query_id, ids = rows.tsv_cells(line, ('query id', 'passage ids'))
    return _mined(query_id, [], {'': ids.split(',')}, parse_entry)
  query_id, positive, negative, *rest = rows.decode(line).split('\t')
  if rest and ' ' in negative.strip() and ' ' in rest[0].strip():
    raise BadRow(
        'query id, passage id, query and passage, as top1000.dev has them,'
        f' do not say which passages are relevant; {_MINE}'
    )
  if not scored:
    return _mined(query_id, [positive], {'': [negative]}, parse_entry)
  # No more than margins is known: the score of the positive is 0.
  margin = rows.number('margin', rest[0] if rest else None)
  entries = [{'pid': positive, 'ce-score': 0.0}]
  negatives = [{'pid': negative, 'ce-score': -margin}]
  return _mined(query_id, entries, {'': negatives}, parse_entry)


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


def _by_id(entry: Any, scored: bool = False) -> Negative:
  score = None
  if isinstance(entry, dict):
    entry, score = entry.get('pid'), entry.get('ce-score')
  name = rows.as_identifier('pid', entry).strip()
  if not scored or score is None:
    return Negative(name)
  return Negative(name, score=rows.number('ce-score', score))


def _with_text(entry: Any) -> Negative:
  if not isinstance(entry, dict):
    raise BadRow(f'a passage is {type(entry).__name__}, not an object')
  if name := rows.identifier(entry, 'docid'):
    return Negative(name)
  text = rows.titled(rows.title(entry), rows.text(entry, 'text'))
  return Negative('', text)
