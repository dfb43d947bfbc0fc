"""SamToNe (Moiseev et al. 2023): same-tower negatives."""

import dataclasses

from dualenc_jax.losses import blocks, in_batch_softmax
from dualenc_jax.utils.errors import UserError


@dataclasses.dataclass(frozen=True)
class SamToNe(in_batch_softmax.InBatchSoftmax):
  """In-batch softmax whose denominator also holds the anchors' own tower.

  Query side (equation 2), the mean over pairs i of

    log(sum_j exp s(q_i, p_j) + sum_{j != i} exp s(q_i, q_j)) - s(q_i, p_i),

  with hard negatives as in `InBatchSoftmax`. The passage side gets
  sum_{j != i} exp s(p_i, p_j) when `both_towers` (section 3.4).
  """

  both_towers: bool = False

  def __post_init__(self):
    super().__post_init__()
    if self.both_towers and not self.bidirectional:
      raise UserError(
          'SamToNe.both_towers needs the passage side of the loss; set'
          ' SamToNe.bidirectional = True.'
      )

  def query_blocks(self) -> tuple[blocks.Block, ...]:
    return (*super().query_blocks(), blocks.QUERY_QUERIES)

  def passage_blocks(self) -> tuple[blocks.Block, ...]:
    same_tower = (blocks.PASSAGE_PASSAGES,) if self.both_towers else ()
    return (*super().passage_blocks(), *same_tower)
