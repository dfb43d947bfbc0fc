"""Distillation of a teacher's similarities over the whole batch."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.losses import blocks
from dualenc_jax.losses.loss import (
  Embeddings,
  Loss,
  mean,
  Params,
  positive_similarity,
  Result,
  Similarity,
)
from dualenc_jax.losses.score_matrix import combine, Partition
from dualenc_jax.utils.errors import check_positive


@dataclasses.dataclass(frozen=True)
class InBatchDistill(Loss):
  """KL divergence of a query's scores of the batch from a teacher's.

  The mean over queries i of

    sum_c t_ic (log t_ic - log s_ic),  s_i = softmax_c s(q_i, c),
    t_i = softmax_c(cos(t(q_i), t(c)) / teacher_temperature),

  over p_i, the passages of other pairs and all hard negatives c that are not
  masked out, where t(x) is the teacher's vector of x. Passage side, added when
  `bidirectional`: the same with anchors p_i and candidates q_j. No array is B x
  B on the ring. Texts without a vector are neither anchors nor candidates, and
  the margins of `Similarity` mask nothing.
  """

  teacher_temperature: float = 0.05
  bidirectional: bool = False

  def __post_init__(self):
    check_positive(
        'InBatchDistill.teacher_temperature', self.teacher_temperature
    )

  @property
  def reads_vectors(self) -> bool:
    return True

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    teacher = batch.check_teacher()
    sides = {'query_side': [blocks.QUERY_PASSAGES, blocks.QUERY_HARD]}
    if self.bidirectional:
      sides['passage_side'] = [blocks.PASSAGE_QUERIES]
    partitions = blocks.partitions(
        batch, {block for side in sides.values() for block in side},
        dataclasses.replace(
            similarity, false_negative_margin=None, guard_margin=None
        ),
        teacher_temperature=self.teacher_temperature,
    )
    both = teacher['query'], teacher['passage']
    s = positive_similarity(batch) / similarity.temperature
    t = jnp.sum(both[0] * both[1], axis=1) / self.teacher_temperature
    positive = Partition(
        s, jnp.ones_like(s), s, None, teacher_lse=t, gap=t - s
    )
    known = [jnp.any(x != 0.0, axis=1).astype(jnp.float32) for x in both]
    taught = known[0] * known[1]
    share = mean(batch, taught)
    value: Any = 0.0
    metrics: dict[str, jax.Array] = {'taught_fraction': share}
    for name, side in sides.items():
      present = [partitions[block] for block in side if block in partitions]
      every = combine([positive, *present])
      divergence = every.gap + every.lse - every.teacher_lse
      part = mean(batch, taught * divergence)
      part /= jnp.where(share == 0.0, 1.0, share)
      metrics[f'{name}_loss'] = part
      value += part
    return value, {'loss': value, **metrics}
