"""PAIR (Ren et al. 2021): a passage-centric loss beside the usual one."""

from collections.abc import Mapping
import dataclasses

import jax
import jax.numpy as jnp

from dualenc_jax.errors import UserError
from dualenc_jax.losses import in_batch_softmax
from dualenc_jax.losses import log_partition
from dualenc_jax.losses.embeddings import Embeddings
from dualenc_jax.losses.log_partition import Block


@dataclasses.dataclass(frozen=True)
class PAIR(in_batch_softmax.InBatchSoftmax):
  """(1 - alpha) L_Q + alpha L_P (equation 6).

  L_Q is `InBatchSoftmax` with all its options; `bidirectional = False` is the
  paper's own query-centric loss. L_P (equation 5) is the mean over pairs i of

    log(exp s(p_i, q_i) + sum_{j != i} exp s(p_i, p_j)
        + sum_{j, k} exp s(p_i, n_jk)) - s(p_i, q_i).

  Attributes:
    alpha: weight of L_P, 0.1 in the paper.
    positive_in_denominator: False gives equation 3 of SamToNe, which leaves
      exp s(p_i, q_i) out of the denominator.
    queries_in_denominator: also sum_{j != i} exp s(p_i, q_j), as the authors'
      released training code does.
  """

  alpha: float = 0.1
  positive_in_denominator: bool = True
  queries_in_denominator: bool = False

  def __post_init__(self):
    super().__post_init__()
    if not 0.0 <= self.alpha <= 1.0:
      raise UserError(f'PAIR.alpha is {self.alpha}; expected 0 to 1.')

  def __call__(
      self, params: Mapping[str, jax.Array], batch: Embeddings
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    query_centric, metrics = super().__call__(params, batch)
    temperature = self._temperature(params)
    positive = in_batch_softmax.positive_similarity(batch)
    partitions = [
        log_partition.block_partition(batch.passage, block, temperature)
        for block in self.passage_centric_blocks(batch)
    ]
    if self.positive_in_denominator:
      passage_centric = self._term(positive, partitions, temperature)
    else:
      passage_centric = self._term_without_positive(
          positive, log_partition.combine(partitions), temperature
      )
    value = (1.0 - self.alpha) * query_centric + self.alpha * passage_centric
    return value, {
        **metrics,
        'loss': value,
        'query_centric_loss': query_centric,
        'passage_centric_loss': passage_centric,
    }

  def passage_centric_blocks(self, batch: Embeddings) -> list[Block]:
    """Negatives of the anchors p_i in L_P."""
    mask = self.mask_duplicates
    blocks = [
        in_batch_softmax.same_tower(batch.passage, batch.passage_ids, mask)
    ]
    if batch.negatives is not None:
      blocks.append(in_batch_softmax.hard_negatives(batch, mask))
    if self.queries_in_denominator:
      blocks.append(in_batch_softmax.passage_to_query(batch, mask))
    return self._checked(blocks)

  def _term_without_positive(self, positive, partition, temperature):
    target = (positive - self.margin) / temperature
    term = partition.lse - target
    if self.label_smoothing:
      mean = partition.total / jnp.maximum(partition.count, 1.0)
      term += self.label_smoothing * (target - mean)
    # An anchor whose candidates are all duplicates has no denominator.
    return jnp.mean(jnp.where(partition.count > 0, term, 0.0))
