"""A report on a teacher's margins, the labels of GPL (Wang et al. 2022)."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dualenc_jax.pipelines.mining.candidates import Candidates
from dualenc_jax.pipelines.mining.filters import Kept
from dualenc_jax.pipelines.mining.negatives import Negative


def of(
    kept: Sequence[Kept], chosen: Sequence[Sequence[Negative]]
) -> np.ndarray:
  """A teacher's score of each query's first positive less its negatives'.

  Returns:
    float64 [n], of the queries that have a scored positive.
  """
  own = kept[0].candidates.positives
  found = [
      float(first[0]) - negative.score
      for first, negatives in zip(own, chosen)
      if len(first) and not np.isnan(first[0])
      for negative in negatives
  ]
  return np.array(found, np.float64)


def own_first(
    found: Sequence[Candidates],
    gold: Sequence[Sequence[int]],
    kept: Sequence[Kept],
    chosen: Sequence[Sequence[Negative]],
) -> dict[str, float]:
  """Shares of queries whose first positive outranks their hard negatives.

  By the teacher, and by each source, whose best passages these negatives are:
  a teacher that does no better has nothing to teach it. That the sources chose
  them, and the teacher did not, is in the teacher's favour.

  Args:
    found: each source's ranking; a passage that it lacks ranks last.
    gold: known positives of each query.
    kept: candidates of each source with the teacher's scores.
    chosen: hard negatives of each query.

  Returns:
    By name, 'teacher' first; {} where no query has both.
  """
  own = kept[0].candidates.positives
  queries = [
      query
      for query, (first, negatives) in enumerate(zip(own, chosen))
      if negatives and len(first) and not np.isnan(first[0])
  ]
  if not queries:
    return {}

  def by_source(each: Candidates, query: int) -> bool:
    wanted = [gold[query][0], *(n.passage for n in chosen[query])]
    ranked = each.passages[query]
    return wanted[0] in ranked[np.isin(ranked, wanted)][:1]

  shares = {
      'teacher': [
          own[query][0] > max(n.score for n in chosen[query])
          for query in queries
      ]
  }
  for each in found:
    shares[each.name] = [by_source(each, query) for query in queries]
  return {name: float(np.mean(is_first)) for name, is_first in shares.items()}


def report(
    margins: np.ndarray,
    chosen: Sequence[Sequence[Negative]],
    first: Mapping[str, float],
) -> Iterator[str]:
  """Lines on the distribution of `of` and the shares of `own_first`."""
  if not len(margins):
    return
  scores = np.array([n.score for own in chosen for n in own])
  yield (
      f'Margins of {len(margins):,} triplets: mean {margins.mean():.2f},'
      f' standard deviation {margins.std():.2f};'
      f' {np.mean(margins < 0):.1%} are below 0, where a mined passage is'
      " better than the query's own."
  )
  yield (
      f'{np.mean(scores > 0):.1%} of the mined passages have a logit above 0,'
      ' which calls them relevant: false negatives of a loss without margins.'
  )
  if not first:
    return
  shares = ', '.join(f'{name} {share:.1%}' for name, share in first.items())
  yield f"Queries whose own passage is put before the mined ones: {shares}."
  teacher, *others = first.items()
  best, share = max(others, key=lambda other: other[1], default=('', -1.0))
  if teacher[1] == share == 1:
    yield (
        'WARNING: the own passage of every query is the best of its list for'
        f' {best}, too: such queries, copies of their passages perhaps, are too'
        ' easy to teach much.'
    )
  elif teacher[1] <= share:
    yield (
        f'WARNING: the teacher does not beat {best}, so its labels teach'
        ' little. Train it longer, from a pretrained T5, or with harder'
        ' negatives, or take another.'
    )
