"""In-batch softmax, the loss that the others extend."""

from collections.abc import Mapping, Sequence
import dataclasses

import jax
import jax.numpy as jnp

from dualenc_jax.errors import UserError
from dualenc_jax.losses import log_partition
from dualenc_jax.losses import temperature as temperature_lib
from dualenc_jax.losses.embeddings import Embeddings
from dualenc_jax.losses.log_partition import Block

# Cosines as close as this are a tie, which is not a hit: equal vectors scored
# in another order of summation differ by a few 1e-7 in float32.
_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class InBatchSoftmax:
  """Sampled softmax over the batch and the hard negatives.

  Query side, the mean over pairs i of

    log(exp s(q_i, p_i) + sum_{j != i} exp s(q_i, p_j)
        + sum_{j, k} exp s(q_i, n_jk)) - s(q_i, p_i),

  where n_jk is hard negative k of query j, and every query sees all of them.
  Passage side, added when `bidirectional`: the same with anchors p_i and
  candidates q_j, without hard negatives.

  Duplicates are known by the fingerprint of their tokens. With
  `mask_duplicates`, pair j is no negative for pair i, in either direction, if
  q_j = q_i or p_j = p_i (a labelled positive, not a negative); a hard negative
  equal to p_i is masked out; and a same-tower negative (SamToNe, PAIR) is
  masked out when it equals the anchor itself.

  Attributes:
    temperature: number above 0, or `LearnableTemperature`.
    bidirectional: add the passage side.
    margin: subtracted from cos(q_i, p_i) (additive margin softmax, Yang et al.
      2019), in units of the cosine.
    label_smoothing: share of the target spread evenly over all candidates of
      the anchor that are not masked out, the positive among them.
    mask_duplicates: needs the fingerprints in the batch.
  """

  temperature: float | temperature_lib.LearnableTemperature = 0.01
  bidirectional: bool = True
  margin: float = 0.0
  label_smoothing: float = 0.0
  mask_duplicates: bool = True

  def __post_init__(self):
    name = type(self).__name__
    if not isinstance(self.temperature, temperature_lib.LearnableTemperature):
      temperature_lib.check_positive(f'{name}.temperature', self.temperature)
    if not 0.0 <= self.label_smoothing < 1.0:
      raise UserError(
          f'{name}.label_smoothing is {self.label_smoothing}; expected a value'
          ' from 0 up to, not including, 1.'
      )

  def init(self) -> dict[str, jax.Array]:
    """The loss's own parameters: {} unless the temperature is learnt."""
    if isinstance(self.temperature, temperature_lib.LearnableTemperature):
      return self.temperature.init()
    return {}

  def __call__(
      self, params: Mapping[str, jax.Array], batch: Embeddings
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Computes the loss of a global batch.

    Args:
      params: what `init` returned, as trained so far.
      batch: the embeddings of B pairs.

    Returns:
      The loss, float32 [], and metrics, each float32 [].

    Raises:
      UserError: an anchor has one candidate only, or duplicates are to be
        masked and the batch has no fingerprints.
    """
    temperature = self._temperature(params)
    positive = positive_similarity(batch)
    negatives = [
        log_partition.block_partition(batch.query, block, temperature)
        for block in self.query_blocks(batch)
    ]
    value = self._term(positive, negatives, temperature)
    if self.bidirectional:
      value += self._term(
          positive,
          [
              log_partition.block_partition(batch.passage, block, temperature)
              for block in self.passage_blocks(batch)
          ],
          temperature,
      )
    # The blocks of passages come first; accuracy looks at no others.
    passages = 1 if batch.negatives is None else 2
    retrieval = log_partition.combine(negatives[:passages])
    best_negative = retrieval.maximum * temperature
    possible = sum(block.size for block in self.query_blocks(batch))
    masked = 1.0 - jnp.mean(log_partition.combine(negatives).count) / possible
    metrics = {
        'loss': value,
        'accuracy': jnp.mean(positive - best_negative > _ROUNDING),
        'masked_fraction': masked,
        'temperature': jnp.asarray(temperature, jnp.float32),
        **mean_similarities(batch, positive),
    }
    return value, metrics

  def query_blocks(self, batch: Embeddings) -> list[Block]:
    """Negatives of the anchors q_i."""
    return self._checked(query_to_passage(batch, self.mask_duplicates))

  def passage_blocks(self, batch: Embeddings) -> list[Block]:
    """Negatives of the anchors p_i."""
    return self._checked([passage_to_query(batch, self.mask_duplicates)])

  def _temperature(self, params) -> jax.Array | float:
    if isinstance(self.temperature, temperature_lib.LearnableTemperature):
      return self.temperature(params)
    return self.temperature

  def _checked(self, blocks: list[Block]) -> list[Block]:
    if sum(block.size for block in blocks) < 1:
      raise UserError(
          f'{type(self).__name__} sees one candidate an anchor, so its loss is'
          ' 0 whatever the model does. Expected at least 2: raise the global'
          ' batch size above 1.'
      )
    return blocks

  def _term(
      self,
      positive: jax.Array,
      negatives: Sequence[log_partition.Partition],
      temperature: jax.Array | float,
  ) -> jax.Array:
    """Mean cross-entropy of the positives against their negatives.

    Args:
      positive: cos of each anchor and its positive, float32 [B].
      negatives: partitions of the anchors' blocks.
      temperature: divides the cosines.

    Returns:
      float32 [].
    """
    partition = log_partition.combine(negatives)
    target = (positive - self.margin) / temperature
    # log(exp target + exp lse) - target, exact where the loss is nearly 0, too.
    term = jax.nn.softplus(partition.lse - target)
    if self.label_smoothing:
      # The target moves from the positive to the mean of all candidates.
      mean = (target + partition.total) / (1.0 + partition.count)
      term += self.label_smoothing * (target - mean)
    return jnp.mean(term)


def positive_similarity(batch: Embeddings) -> jax.Array:
  """cos(q_i, p_i), float32 [B]."""
  return jnp.sum(
      batch.query.astype(jnp.float32) * batch.passage.astype(jnp.float32),
      axis=1,
  )


def query_to_passage(
    batch: Embeddings, mask_duplicates: bool = False
) -> list[Block]:
  """Passages of the other pairs and all hard negatives, for anchors q_i."""
  same = _same_pair(batch) if mask_duplicates else []
  blocks = [Block('in-batch', batch.passage, aligned=True, same_ids=same)]
  if batch.negatives is not None:
    blocks.append(hard_negatives(batch, mask_duplicates))
  return blocks


def passage_to_query(batch: Embeddings, mask_duplicates: bool) -> Block:
  """Queries of the other pairs, for anchors p_i."""
  same = _same_pair(batch) if mask_duplicates else []
  return Block('in-batch', batch.query, aligned=True, same_ids=same)


def hard_negatives(batch: Embeddings, mask_duplicates: bool) -> Block:
  """All hard negatives of all queries, for anchors of either tower."""
  flat = batch.negatives.reshape(-1, batch.negatives.shape[-1])
  same = []
  if mask_duplicates:
    ids = _required(batch.negative_ids, 'negative_ids')
    same = [(_required(batch.passage_ids, 'passage_ids'), ids.reshape(-1, 2))]
  valid = batch.negative_valid
  return Block(
      'hard',
      flat,
      aligned=False,
      same_ids=same,
      valid=None if valid is None else valid.reshape(-1),
  )


def same_tower(
    embeddings: jax.Array, ids: jax.Array | None, mask_duplicates: bool
) -> Block:
  """The other rows of the anchors' own tower."""
  same = []
  if mask_duplicates:
    ids = _required(ids, 'query_ids and passage_ids')
    same = [(ids, ids)]
  return Block('same-tower', embeddings, aligned=True, same_ids=same)


def mean_similarities(
    batch: Embeddings, positive: jax.Array
) -> dict[str, jax.Array]:
  """Mean cosines of positives and of distinct rows, without a B x B array."""
  size = batch.query.shape[0]
  pairs = max(size * (size - 1), 1)
  query = batch.query.astype(jnp.float32)
  passage = batch.passage.astype(jnp.float32)

  def off_diagonal(a, b):
    everything = jnp.dot(a.sum(0), b.sum(0), precision='highest')
    return (everything - jnp.sum(a * b)) / pairs

  return {
      'positive_similarity': jnp.mean(positive),
      'query_passage_similarity': off_diagonal(query, passage),
      'query_query_similarity': off_diagonal(query, query),
      'passage_passage_similarity': off_diagonal(passage, passage),
  }


def _same_pair(batch: Embeddings) -> list[tuple[jax.Array, jax.Array]]:
  query_ids = _required(batch.query_ids, 'query_ids')
  passage_ids = _required(batch.passage_ids, 'passage_ids')
  return [(query_ids, query_ids), (passage_ids, passage_ids)]


def _required(ids: jax.Array | None, name: str) -> jax.Array:
  if ids is None:
    raise UserError(
        f'mask_duplicates is on but the batch has no {name}. Give the'
        ' fingerprints of the tokens, or set mask_duplicates = False.'
    )
  return ids
