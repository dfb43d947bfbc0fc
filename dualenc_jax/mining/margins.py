"""A teacher's margins, the labels of GPL (Wang et al. 2022), looked at."""

from collections.abc import Iterator, Sequence

import numpy as np

from dualenc_jax.errors import UserError
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
  """Raises UserError for margins from which nothing can be learnt.

  Args:
    margins: of `of`.
    chosen: as there.
    spread: the least standard deviation.
  """
  if len(margins) < 2 or margins.std() >= spread:
    return
  scores = [negative.score for own in chosen for negative in own]
  why = 'It tells passages apart too little.'
  if 0 <= min(scores) <= max(scores) <= 1:
    why = (
        'All its scores are from 0 to 1: they have passed a sigmoid, which'
        ' takes from margins what they are to teach. Give raw logits.'
    )
  raise UserError(
      f"The teacher's {len(margins):,} margins have a standard deviation of"
      f' {margins.std():.3g}; expected {spread:g} or more. {why}'
  )


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
