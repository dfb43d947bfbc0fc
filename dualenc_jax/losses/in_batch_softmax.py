"""In-batch softmax, the base class of SamToNe and PAIR."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.losses import blocks, loss as loss_lib
from dualenc_jax.losses.loss import (
  Embeddings,
  Loss,
  mean,
  Params,
  Result,
  Similarity,
)
from dualenc_jax.losses.score_matrix import combine, Hardness, Partition
from dualenc_jax.utils.errors import check_one_of, check_positive, UserError

# Cosines as close as this are a tie, which is no hit: sums of another order
# differ by a few 1e-7 in float32.
_ROUNDING = 1e-6
# The blocks that each `InBatchSoftmax.hardness` weighs, and `Hardness.own`.
_HARDNESS: dict[str | None, dict[blocks.Block, bool | None]] = {
    'hard_negatives': {blocks.QUERY_HARD: True},
    'in_batch_negatives': {
        blocks.QUERY_PASSAGES: None, blocks.QUERY_HARD: False
    },
    'all_negatives': {blocks.QUERY_PASSAGES: None, blocks.QUERY_HARD: None},
}


@dataclasses.dataclass(frozen=True)
class Term:
  """One part of a loss: the mean cross-entropy of one tower's anchors.

  `name` is its name in the log; `blocks` are the anchors' negatives.
  """

  name: str
  blocks: Sequence[blocks.Block]
  weight: float = 1.0
  positive_in_denominator: bool = True


@dataclasses.dataclass(frozen=True)
class InBatchSoftmax(Loss):
  """Sampled softmax over the batch and the hard negatives.

  Query side, the mean over pairs i of

    log(exp s(q_i, p_i) + sum_{j != i} exp s(q_i, p_j)
        + sum_{j, k} exp s(q_i, n_jk)) - s(q_i, p_i),

  where n_jk is hard negative k of query j, and every query sees all of them.
  Passage side, added when `bidirectional`: the same with anchors p_i and
  candidates q_j, without hard negatives.

  With `hardness`, s(q_i, c) + hardness_strength stop_gradient(cos(q_i, c)) is
  in place of s(q_i, c) on the query side, for some candidates c of the other
  tower:

    'hard_negatives'      q_i's own hard negatives (EmbeddingGemma, Schechter
                          Vera et al. 2025, with a strength of 5);
    'in_batch_negatives'  passages and hard negatives of other pairs (Lan et al.
                          2025, equation 5, with a strength of 9);
    'all_negatives'       both.

  Attributes:
    margin: subtracted from cos(q_i, p_i) (additive margin softmax, Yang et al.
      2019), in units of the cosine.
    hardness: the candidates of whom hard ones weigh more; None for none.
    hardness_strength: of the weight, not divided by the temperature.
  """

  bidirectional: bool = True
  margin: float = 0.0
  hardness: str | None = None
  hardness_strength: float = 5.0

  def __post_init__(self):
    name = f'{type(self).__name__}.hardness'
    if self.hardness is not None:
      check_one_of(name, self.hardness, tuple(_HARDNESS))
    check_positive(f'{name}_strength', self.hardness_strength)

  def query_blocks(self) -> tuple[blocks.Block, ...]:
    """Returns the negatives of the anchors q_i."""
    return (blocks.QUERY_PASSAGES, blocks.QUERY_HARD)

  def passage_blocks(self) -> tuple[blocks.Block, ...]:
    """Returns the negatives of the anchors p_i."""
    return (blocks.PASSAGE_QUERIES,)

  def terms(self) -> list[Term]:
    """Returns the parts whose weighted sum is the loss."""
    terms = [Term('query_side', self.query_blocks())]
    if self.bidirectional:
      terms.append(Term('passage_side', self.passage_blocks()))
    return terms

  def chance(self, batch_size: int, num_negatives: int) -> float | None:
    if self.hardness is not None:
      # It depends on the similarity that all have.
      return None
    return sum(
        term.weight * math.log(
            term.positive_in_denominator
            + sum(b.size(batch_size, num_negatives) for b in term.blocks)
        ) for term in self.terms()
    )

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    temperature = similarity.temperature
    terms = self.terms()
    size = batch.query.shape[0]
    for term in terms:
      if not sum(b.size(size, batch.num_negatives) for b in term.blocks):
        raise UserError(
            f'The {term.name} of {type(self).__name__} sees only one candidate'
            ' per anchor, so its loss is always 0. Expected at least 2: raise'
            f' the global batch size, {size}, above 1.'
        )
    if self.hardness == 'hard_negatives' and not batch.num_negatives:
      raise UserError(
          f"{type(self).__name__}.hardness is 'hard_negatives', but the batch"
          ' has none: set NUM_NEGATIVES to 1 or more, or hardness to'
          " 'in_batch_negatives'."
      )
    hardness = {
        block: Hardness(self.hardness_strength, own)
        for block, own in _HARDNESS.get(self.hardness, {}).items()
    }
    partitions = blocks.partitions(
        batch, {block for term in terms for block in term.blocks}, similarity,
        hardness=hardness,
    )
    positive = loss_lib.positive_similarity(batch)

    value: Any = 0.0
    metrics = {}
    for term in terms:
      negatives = [partitions[b] for b in term.blocks if b in partitions]
      entropy = self._entropy(term, positive, combine(negatives), temperature)
      part = mean(batch, entropy)
      metrics[f'{term.name}_loss'] = part
      value += term.weight * part
    return value, metrics | _metrics_of_negatives(
        batch, positive, self.query_blocks(), partitions, temperature
    )

  def _entropy(
      self, term: Term, positive: jax.Array, negatives: Partition,
      temperature: jax.Array | float,
  ) -> jax.Array:
    """Returns the cross-entropy [B] of each positive against its negatives."""
    target = (positive - self.margin) / temperature
    if term.positive_in_denominator:
      # log(exp target + exp lse) - target, exact where that is nearly 0, too.
      return jax.nn.softplus(negatives.lse - target)
    # An anchor whose candidates are all duplicates has no denominator.
    return jnp.where(negatives.count > 0, negatives.lse - target, 0.0)


def _metrics_of_negatives(
    batch: Embeddings, positive: jax.Array,
    query_blocks: Sequence[blocks.Block],
    partitions: Mapping[blocks.Block, Partition],
    temperature: jax.Array | float,
) -> dict[str, jax.Array]:
  """Returns metrics of the queries.

  The accuracy is the share of queries whose positive scores above all passages;
  `masked_fraction` is the share of negatives that are masked out or missing.
  """
  present = [block for block in query_blocks if block in partitions]
  size = batch.query.shape[0], batch.num_negatives
  possible = sum(block.size(*size) for block in present)
  everything = combine([partitions[b] for b in present])
  count = everything.count
  # Means of whole numbers round: none masked shall read 0, and all 1.
  masked = jnp.where(
      mean(batch, count) > 0.0, mean(batch, possible - count) / possible, 1.0
  )
  result = {'masked_fraction': masked}
  if everything.above is not None:
    result['false_negative_fraction'] = (
        mean(batch, everything.above) / possible
    )
  passages = [partitions[b] for b in present if b.candidates != 'query']
  if passages:
    best_negative = combine(passages).maximum * temperature
    hit = positive - best_negative > _ROUNDING
    result['accuracy'] = mean(batch, hit.astype(jnp.float32))
  return result
