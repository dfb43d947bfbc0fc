"""Files of mined hard negatives, by query id."""

from collections.abc import Collection, Iterator, Mapping
import itertools
import logging
import math
import pathlib
from typing import Any, NamedTuple

from dualenc_jax.data.readers import rows
from dualenc_jax.data.readers.rows import BadRow
from dualenc_jax.utils.errors import UserError

_NOTHING = object()


class Negative(NamedTuple):
  """A hard negative; the score is a teacher's, NaN where there is none."""

  id: str
  score: float = math.nan


class QueryNegatives(NamedTuple):
  """A query's hard negatives, and scores of its positives by their ids."""

  negatives: list[Negative]
  scores: dict[str, float]


# Query id, entries of its positives, and of its negatives by the system that
# found them, the best first.
_Line = tuple[str, list[Any], list[list[Any]]]


def read(
    path: pathlib.Path, positives: Mapping[str, Collection[str]],
    limit: int = 30, strict: bool = True, scored: bool = False,
) -> Iterator[tuple[str, QueryNegatives]]:
  """Yields (query id, its hard negatives), each query once at most.

  A query's negatives are the best of each system, then the second best of each,
  and so on, each passage once.

  Args:
    path: a file of a form that `parse` knows, plain or .gz.
    positives: passage ids by query id; other queries are skipped.
    limit: most negatives that are taken of a query.
    strict: as of `rows.parse_lines`, and whether a positive of a query among
      the negatives to take is an error; else just these are skipped and the log
      says how many.
    scored: whether a teacher's scores of positives and negatives are taken.

  Raises:
    UserError: a bad row, a positive among the negatives, a query in two places
      of the file, margins over several positives of a query, or scores that are
      wanted and missing.
  """
  done: set[str] = set()
  found_scores = False
  faults = rows.Faults(strict, 'hard negatives')

  def select(line: bytes) -> tuple[str, QueryNegatives, int]:
    name, own, lists = parse(line, scored)
    if name not in positives:
      return name, QueryNegatives([], {}), 0
    return name, *_select(own, lists, positives[name], limit, scored)

  parsed = rows.parse_lines(path, select, strict)
  for query_id, group in itertools.groupby(parsed, lambda row: row[1][0]):
    if query_id not in positives:
      continue
    numbers, lines = zip(*group)
    location = f'{path}:{numbers[0]}'
    if query_id in done:
      raise UserError(
          f'{location}: query {query_id!r} already had lines, before other'
          ' queries. Expected all lines of a query together, as by `sort -s'
          ' -k1,1`.'
      )
    done.add(query_id)
    if dropped := sum(count for _, _, count in lines):
      faults.add(
          'a positive is among the hard negatives', location,
          f'query {query_id!r} has one of its positives among its hard'
          ' negatives', dropped,
      )
    scores: dict[str, float] = {}
    merged: dict[str, Negative] = {}
    for _, found, _ in lines:
      scores |= found.scores
      for negative in found.negatives:
        merged.setdefault(negative.id, negative)
    kept = list(merged.values())[:limit]
    # Margins over different positives cannot be compared.
    if scored and len(scores) > 1 and not any(scores.values()):
      raise UserError(
          f'{location}: the margins of this query are over several positives,'
          f' {", ".join(map(repr, list(scores)[:3]))}. Expected one.'
      )
    all_scores = *scores.values(), *(n.score for n in kept)
    found_scores |= not all(map(math.isnan, all_scores))
    yield query_id, QueryNegatives(kept, scores)
  if scored and done and not found_scores:
    raise UserError(
        f"{path} has no scores of a teacher. Expected objects with 'pid' and"
        " 'ce-score', or GPL's lines with a margin."
    )
  if positives and not done and strict:
    raise UserError(
        f'{path} has hard negatives of none of the {len(positives):,} queries,'
        f' such as {next(iter(positives))!r}. Expected those of this data set.'
    )
  faults.warn(path)
  logging.getLogger(__name__).info(
      '%s: hard negatives for %s of %s queries.',
      path, f'{len(done):,}', f'{len(positives):,}',
  )


def parse(line: bytes, scored: bool = False) -> _Line:
  """Parses a line, with margins if `scored`; raises BadRow. Its forms:

  - sentence-transformers' msmarco-hard-negatives and GPL's hard-negatives:
    {"qid": ..., "pos": [id, ...], "neg": {system: [id, ...], ...}}; an entry
    may also be an object whose "pid" is the id and "ce-score" its score.
  - Tevatron and RocketQA: {"query_id": ..., "positive_passages": [...],
    "negative_passages": [{"docid": ...}, ...]}.
  - TSV: query id, tab, passage ids separated by commas.
  - TSV of a triple a line: query id, positive id, negative id, and what may
    follow, such as GPL's margin, the score of the positive less that of the
    negative.
  """
  if not line.lstrip().startswith(b'{'):
    return _parse_tsv(line, scored)
  row = rows.json_object(line)
  if 'neg' in row:
    query_id = rows.identifier(row, 'qid')
    positives, negatives = row.get('pos') or [], row['neg']
  elif 'negative_passages' in row:
    query_id = rows.identifier(row, 'query_id')
    positives = row.get('positive_passages') or []
    negatives = row['negative_passages']
  else:
    raise BadRow(
        "neither 'neg' nor 'negative_passages' exists."
        ' Expected hard negatives, as `dualenc mine` writes them in'
        ' hard-negatives.jsonl'
    )
  if not query_id:
    raise BadRow('the query id is missing or empty')
  by_system = isinstance(negatives, dict)
  lists = [*negatives.values()] if by_system else [negatives]
  for entries in (positives, *lists):
    if not isinstance(entries, list):
      raise BadRow(
          f'positives or negatives are {type(entries).__name__}, not a list'
      )
  return query_id, positives, lists


def _parse_tsv(line: bytes, scored: bool) -> _Line:
  if line.count(b'\t') not in (2, 3):
    query_id, ids = rows.tsv_cells(line, ('query id', 'passage ids'))
    return query_id, [], [ids.split(',')]
  query_id, positive, negative, *rest = rows.decode(line).split('\t')
  if not scored:
    return query_id, [positive], [[negative]]
  # No more than margins is known: the score of the positive is 0.
  margin = rows.number('margin', rest[0] if rest else None)
  entries = [{'pid': positive, 'ce-score': 0.0}]
  return query_id, entries, [[{'pid': negative, 'ce-score': -margin}]]


def _select(
    own: list[Any], lists: list[list[Any]], positives: Collection[str],
    limit: int, scored: bool,
) -> tuple[QueryNegatives, int]:
  """Up to `limit` negatives without the query's positives, of which the number
  that was met is returned, too."""
  scores = {found.id: found.score for found in (_entry(e, scored) for e in own)}
  known = {*positives, *scores}
  kept: dict[str, Negative] = {}
  dropped = 0
  # Only as many as are taken are parsed, for lists may be long.
  for entry in itertools.chain(
      *itertools.zip_longest(*lists, fillvalue=_NOTHING)
  ):
    if entry is _NOTHING:
      continue
    negative = _entry(entry, scored)
    if negative.id in known:
      dropped += 1
      continue
    kept.setdefault(negative.id, negative)
    if len(kept) == limit:
      break
  return QueryNegatives(list(kept.values()), scores), dropped


def _entry(entry: Any, scored: bool) -> Negative:
  score = None
  if isinstance(entry, dict):
    score = entry.get('ce-score')
    entry = entry.get('pid', entry.get('docid'))
  name = rows.as_identifier('pid', entry).strip()
  if not name:
    raise BadRow('a hard negative or a positive has no id')
  if not scored or score is None:
    return Negative(name)
  return Negative(name, rows.number('ce-score', score))
