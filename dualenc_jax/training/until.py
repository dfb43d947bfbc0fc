"""DAFT's criterion for the end of alignment (Leonhardt et al. 2022, alg. 1)."""

import dataclasses
import math
import numbers
from typing import Any

from dualenc_jax.utils.errors import check_whole, expect


@dataclasses.dataclass(frozen=True)
class UntilAligned:
  """Ends a run when both towers embed queries alike.

  With KL the divergence of `evaluation.divergence.alignment` on the validation
  queries, KL_0 that before the first step, and a floor measured on the passage
  tower alone, the run ends as soon as

    KL - floor < share (KL_0 - floor),

  or as KL has not fallen for `patience` evaluations in a row.

  Attributes:
    share: share of the excess at the start that may be left.
    threshold: nats; the run ends at KL < threshold in place of the above.
      DAFT's 250 fits its 512 dims and its number of queries.
    patience: as above; None for no such end.
    queries: the most queries to embed, half of them by each tower.
    k: number of the nearest neighbour.
    least_rank: effective rank of the query tower's embeddings, as a share of
      the passage tower's, below which they count as collapsed and the run goes
      on: KL does not show that.
  """

  share: float = 0.2
  threshold: float | None = None
  patience: int | None = 3
  queries: int = 4000
  k: int = 1
  least_rank: float = 0.5

  def __post_init__(self):
    for name in ('share', 'least_rank'):
      value = getattr(self, name)
      expect(
          isinstance(value, numbers.Real) and 0 <= value < 1,
          f'UntilAligned.{name}', value,
          'a number from 0 up to, not including, 1',
      )
    nats = self.threshold
    expect(
        nats is None or isinstance(nats, numbers.Real) and math.isfinite(nats),
        'UntilAligned.threshold', nats,
        'a number, of nats, or None for the share of the start',
    )
    for name, least in (('queries', 2), ('k', 1)):
      check_whole(f'UntilAligned.{name}', getattr(self, name), least)
    if self.patience is not None:
      check_whole('UntilAligned.patience', self.patience, 1)

  def limit(self, start: float, floor: float) -> float:
    """The divergence below which a run ends."""
    excess = self.share * (start - floor)
    return floor + excess if self.threshold is None else self.threshold

  def end(
      self, notes: dict[str, Any], divergence: float, floor: float, rank: float
  ) -> str | None:
    """The reason to end after an evaluation; None to go on.

    `notes` keep facts from one evaluation to the next, {} before the first,
    which precedes the first step; `rank` is the effective rank of the query
    tower's embeddings over the passage tower's.
    """
    if not notes:
      notes.update(start=divergence, best=divergence, since=0)
      return None
    fell = divergence < notes['best']
    notes['since'] = 0 if fell else notes['since'] + 1
    notes['best'] = min(divergence, notes['best'])
    limit = self.limit(notes['start'], floor)
    if divergence < limit and rank >= self.least_rank:
      return f'aligned, the divergence {divergence:.1f} is below {limit:.1f}.'
    if self.patience is not None and notes['since'] >= self.patience:
      return (
          'WARNING: the divergence has not fallen at the last'
          f' {notes["since"]} of the evaluations; it is {divergence:.1f}, and'
          f' below {limit:.1f} was aimed at.'
      )
    return None
