"""A teacher's margins, the labels of GPL (Wang et al. 2022), looked at."""

from collections.abc import Iterator, Sequence

import numpy as np

from dualenc_jax.inference.teacher import check_spread
from dualenc_jax.mining.filters import Kept
from dualenc_jax.mining.negatives import Negative


def of(
    kept: Sequence[Kept], chosen: Sequence[Sequence[Negative]]
) -> np.ndarray:
  """The score of each query's first positive less those of its negatives.

  Args:
    kept: of each source, with a teacher's scores.
    chosen: hard negatives of each query.

  Returns:
    float64 [n], of the queries that have a scored positive.
  """
  own = kept[0].candidates.positives[:, :1]
  found = [
      float(first[0]) - negative.score
      for first, negatives in zip(own, chosen)
      if len(first) and not np.isnan(first[0])
      for negative in negatives
  ]
  return np.array(found, np.float64)


def check(
    margins: np.ndarray, chosen: Sequence[Sequence[Negative]], spread: float
) -> None:
  """As of `teacher.check_spread`, of the scores of what was chosen."""
  scores = np.array([negative.score for own in chosen for negative in own])
  check_spread(margins, scores, spread)


def report(
    margins: np.ndarray, chosen: Sequence[Sequence[Negative]]
) -> Iterator[str]:
  """Lines on how the labels lie."""
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
