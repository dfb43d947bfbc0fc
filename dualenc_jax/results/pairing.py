"""The values of two systems on the same queries, side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.results.benchmarks import EvaluatedSet
from dualenc_jax.results.folder import Model, PER_QUERY, Result

# Two results that differ in one of these are not of the same queries, or not
# of the same corpus.
_OF_QUERIES = ('source', 'queries')
_OF_CORPUS = ('corpus', 'passages', 'document_separator', 'depth')


def check_same(
    baseline: Result, result: Result, common_queries: bool = False
) -> None:
  """Refuses results of different queries or corpora.

  Args:
    baseline: one result.
    result: another of the same task and split.
    common_queries: accept other queries.

  Raises:
    UserError: names the field of metrics.json in which they differ.
  """
  fields = _OF_CORPUS if common_queries else (*_OF_QUERIES, *_OF_CORPUS)
  for field in fields:
    one, other = _fact(baseline, field), _fact(result, field)
    if one == other:
      continue
    hint = 'Evaluate both on the same data, at the same depth.'
    if field in _OF_QUERIES:
      hint += ' --common_queries compares the queries that both have.'
    if field == 'document_separator':
      hint = 'Evaluate both with it, or both without --max_passage.'
    if field == 'depth' and result.key.task == 'run':
      hint = f'--k={min(one, other)} uses the best hits of both.'
    raise UserError(
        f'{baseline.where} and {result.where} differ in "{field}":'
        f' {_shown(one)} and {_shown(other)}. {hint}'
    )


def _fact(result: Result, field: str) -> Any:
  """A field of metrics.json; None where it is not there."""
  if field == 'depth' and field not in result.provenance:
    # Older results tell only how many hits were written.
    field = 'k'
  return result.provenance.get(field)


def paired(
    baseline: Model,
    model: Model,
    evaluated: EvaluatedSet,
    metric: str,
    common_queries: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
  """The values [Q] of both for the same queries.

  Values of a set of several parts are weighted such that their mean is the mean
  of the parts' means.

  Args:
    baseline: one system.
    model: the other.
    evaluated: a set that both have.
    metric: that both have there.
    common_queries: leave out queries that only one of them has.

  Raises:
    UserError: values that cannot be read, or queries that only one has.
  """
  parts = [
      _paired(baseline.results[key], model.results[key], metric, common_queries)
      for key in evaluated.keys
  ]
  total = sum(len(part) for part in parts)
  weighted = [part * (total / (len(parts) * len(part))) for part in parts]
  one, other = np.concatenate(weighted).T
  return one, other


def _paired(
    baseline: Result, result: Result, metric: str, common_queries: bool
) -> np.ndarray:
  """float64 [Q, 2]."""
  for r in (baseline, result):
    if metric not in r.per_query().values:
      raise UserError(
          f'{r.where}/{PER_QUERY} has no column {metric!r}. Run `dualenc'
          ' evaluate` again, or choose other --metrics.'
      )
  one, other = (r.per_query().column(metric) for r in (baseline, result))
  common = [query for query in one if query in other]
  alone = [
      (r.where, [query for query in mine if query not in theirs])
      for r, mine, theirs in ((baseline, one, other), (result, other, one))
  ]
  if any(queries for _, queries in alone) and not common_queries:
    found = ' and '.join(
        f'only {where} has {_some(queries)}'
        for where, queries in alone
        if queries
    )
    raise UserError(
        f'{metric} on {result.key} is not of the same queries: {found}.'
        ' --common_queries compares the others.'
    )
  if not common:
    raise UserError(
        f'{baseline.where} and {result.where} have no query with {metric} in'
        ' common.'
    )
  return np.array([(one[query], other[query]) for query in common])


def _some(queries: Sequence[str]) -> str:
  """'2 queries (a, b)', the first three of many."""
  names = ', '.join([*queries[:3], *(['...'] if len(queries) > 3 else [])])
  word = 'query' if len(queries) == 1 else 'queries'
  return f'{len(queries):,} {word} ({names})'


def _shown(value: Any) -> str:
  if isinstance(value, dict):
    return ', '.join(f'{k} {_shown(v)}' for k, v in value.items())
  return 'nothing' if value is None else str(value)
