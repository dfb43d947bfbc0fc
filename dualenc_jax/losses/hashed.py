"""BPR (Yamada et al. 2021): embeddings that keep their order as bits."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.losses import blocks, loss as loss_lib
from dualenc_jax.losses.in_batch_softmax import InBatchSoftmax
from dualenc_jax.losses.loss import (
  Embeddings,
  Loss,
  LossWrapper,
  mean,
  Params,
  Result,
  Similarity,
)
from dualenc_jax.losses.score_matrix import combine, Partition
from dualenc_jax.utils.errors import expect, UserError

# The candidates of step one of a search; hard negatives are among them.
_BLOCKS = (blocks.QUERY_PASSAGES, blocks.QUERY_HARD)
# A bit is saturated beyond it: tanh has less than a fifth of its slope at 0.
_SATURATED = 0.9


@dataclasses.dataclass(frozen=True)
class Hashed(LossWrapper):
  """L_dense + L_cand of Yamada et al. 2021 (Thakur et al. 2022, equation 1).

  The code of a text is the sign of its embedding x, sign(0) = +1. Training at
  step t uses

    h(x) = tanh(beta_t sqrt(D) x),  beta_t = sqrt(1 + gamma (start + t)),

  in its place; sqrt(D) makes up for components of the order 1/sqrt(D). Passages
  and hard negatives are hashed in both parts, queries in L_cand alone: a search
  finds candidates by codes and orders them by the dense query.

  L_dense is any loss of e(q) and h(p) / sqrt(D). Its scores are the paper's at
  the temperature 1 / sqrt(D), and the paper's loss is
  `InBatchSoftmax(bidirectional=False)`. With `MarginMSE` it is BPR's part in
  GPL.

  L_cand is the mean over pairs i, and over all p_j but p_i and all hard
  negatives, of

    max(0, alpha - h(q_i) . h(p_i) + h(q_i) . h(p_j)).

  The paper adds up the hinges of a query; their mean does not grow with the
  batch. The products go from -D to D at any temperature: alpha = 2 asks for one
  bit. Masks are those of `Similarity`; its `false_negative_margin` takes
  h(q) . h(p) / D for the cosine.

  Attributes:
    loss: L_dense.
    alpha: margin of the codes' products, 2 in the paper.
    gamma: how fast tanh approaches the sign; 0 keeps beta at 1.
    start: steps that the model was trained before this run. A resumed run
      counts its own steps.
  """

  loss: Loss = InBatchSoftmax()
  alpha: float = 2.0
  gamma: float = 0.1
  start: int = 0

  def __post_init__(self):
    loss_lib.check('Hashed.loss (HASHED_LOSS)', self.loss)
    for field in ('alpha', 'gamma', 'start'):
      value, name = getattr(self, field), f'HASH_{field.upper()}'
      expect(value >= 0, f'Hashed.{field} ({name})', value, '0 or more')

  def chance(self, batch_size: int, num_negatives: int) -> float | None:
    # L_cand is alpha if all embeddings are equal. L_dense has its chance value
    # if its terms are between the towers.
    dense = self.loss.chance(batch_size, num_negatives)
    return None if dense is None else dense + self.alpha

  def beta(self, step: jax.Array) -> jax.Array:
    """Returns the steepness of tanh after `step` steps, float32 []."""
    steps = self.start + step.astype(jnp.float32)
    return jnp.sqrt(1.0 + self.gamma * steps)

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    if batch.step is None:
      raise UserError(
          'losses.Hashed depends on the step, but the batch has none. Set'
          ' Embeddings.step, an int32 scalar array.'
      )
    beta, dim = self.beta(batch.step), batch.query.shape[1]
    vectors = batch.vectors()
    soft: dict[str, Any] = {
        k: jnp.tanh(beta * math.sqrt(dim) * x) for k, x in vectors.items()
    }
    # An index takes 0 for +1, too.
    codes = {k: jnp.where(x >= 0.0, 1.0, -1.0) for k, x in vectors.items()}
    scaled: dict[str, Any] = {
        k: x / math.sqrt(dim) for k, x in soft.items() if k != 'query'
    }
    dense, metrics = self.loss(params, batch._replace(**scaled), similarity)
    candidate, of_margins = self._candidate_loss(
        batch._replace(**soft), similarity
    )
    value = dense + candidate
    return value, {
        **metrics, **of_margins, **_bit_metrics(batch, soft, codes),
        'beta': beta, 'dense_loss': dense, 'candidate_loss': candidate,
        'loss': value,
    }

  def _candidate_loss(self, hashed, similarity: Similarity) -> Result:
    """Returns L_cand of hashed vectors, by the primitive of all losses.

    The primitive adds up the scores that are no more than some margin above
    the positive's. With one more component,

      (-h(q_i), b_i) . (h(p_j), 1) = b_i - h(q_i) . h(p_j),
      b_i = h(q_i) . h(p_i) - alpha,

    which is -alpha for the positive, and minus the hinge where it is below 0,
    alpha above that. So the sum up to there is minus the sum of the hinges.
    `margin_violations`: the share of a query's negatives with a hinge above 0.
    """
    positive = jnp.sum(hashed.query * hashed.passage, axis=1)
    threshold = positive - self.alpha
    batch = hashed.map_vectors(
        lambda x: jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1)
    )._replace(
        query=jnp.concatenate([-hashed.query, threshold[:, None]], axis=1)
    )

    def up_to(margin: float) -> Partition:
      """Returns statistics of scores up to a margin above the positive's."""
      plain = dataclasses.replace(
          similarity, temperature=1.0, false_negative_margin=margin
      )
      by_block = blocks.partitions(batch, _BLOCKS, plain, totals=True)
      return combine([*by_block.values()])

    inside = up_to(self.alpha)
    total, count = inside.total, inside.count
    negatives = count + inside.above
    if similarity.false_negative_margin is not None:
      # Candidates more like the query than its positive have the lowest scores.
      dim = hashed.query.shape[1]
      margin = dim * similarity.false_negative_margin
      false = up_to(min(self.alpha, -margin))
      total, count = total - false.total, count - false.count
      negatives -= false.count
    negatives = jnp.maximum(negatives, 1.0)
    return mean(hashed, -total / negatives), {
        'margin_violations': mean(hashed, count / negatives)
    }


def _bit_metrics(batch, soft, codes) -> dict[str, jax.Array]:
  """Returns metrics of h and of the codes, [B, D] of queries and passages.

  bit_balance is 4/D sum_d P_d (1 - P_d), where P_d is the share of passages
  whose bit d is 1 (Thakur et al. 2022, equation 3).
  """
  query, passage = codes['query'], codes['passage']
  dim = query.shape[1]
  products = jnp.sum(query * passage, axis=1)
  hashed = jnp.stack([soft['query'], soft['passage']])
  return {
      'saturation': jnp.mean(jnp.abs(hashed) > _SATURATED),
      'bit_balance': 1.0 - jnp.mean(jnp.square(jnp.mean(passage, axis=0))),
      'positive_hamming': 0.5 * (dim - mean(batch, products)),
      'negative_hamming': 0.5 * (
          dim - loss_lib.mean_of_distinct(query, passage)
      ),
  }
