"""Numbers that a loss logs beside its value; vectors are float32."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from dualenc_jax.losses.blocks import Block
from dualenc_jax.losses.embeddings import Embeddings
from dualenc_jax.losses.score_matrix import combine, Partition
from dualenc_jax.losses.similarity import Similarity

# Cosines as close as this are a tie, which is not a hit: equal vectors scored
# in another order of summation differ by a few 1e-7 in float32.
_ROUNDING = 1e-6

# An embedding whose norm is off by more is not normalised: rounding makes it
# off by 1e-7, by 4e-3 in bfloat16.
NORM_TOLERANCE = 1e-2


def mean(batch: Embeddings, values: jax.Array) -> jax.Array:
  """Mean of float32 [B] over the pairs of the batch, weighted; of none, 0."""
  if batch.weights is None:
    return jnp.mean(values)
  total = jnp.sum(batch.weights)
  return jnp.sum(batch.weights * values) / jnp.where(total == 0.0, 1.0, total)


def positive_similarity(batch: Embeddings) -> jax.Array:
  """cos(q_i, p_i), float32 [B]."""
  return jnp.sum(batch.query * batch.passage, axis=1)


def of_negatives(
    batch: Embeddings,
    positive: jax.Array,
    query_blocks: Sequence[Block],
    partitions: Mapping[Block, Partition],
    temperature: jax.Array | float,
) -> dict[str, jax.Array]:
  """How the positives of the queries rank, and how many negatives they have.

  Returns:
    accuracy: share of queries whose positive scores above all passages; not
      there if the queries have no passages for negatives.
    masked_fraction: share of the queries' negatives that are masked out, hard
      ones that a query does not have among them.
  """
  found = [block for block in query_blocks if block in partitions]
  size = batch.query.shape[0], batch.num_negatives
  possible = sum(block.size(*size) for block in found)
  count = combine([partitions[b] for b in found]).count
  result = {'masked_fraction': 1.0 - mean(batch, count) / possible}
  passages = [partitions[b] for b in found if b.candidates != 'query']
  if passages:
    best_negative = combine(passages).maximum * temperature
    hit = positive - best_negative > _ROUNDING
    result['accuracy'] = mean(batch, hit.astype(jnp.float32))
  return result


def of_batch(
    batch: Embeddings, similarity: Similarity
) -> dict[str, jax.Array]:
  """What is logged of any batch, whatever its loss.

  Returns:
    temperature; mean cosines of positives and of distinct rows, without a
    B x B array; norm_error if it is asked for.
  """
  query, passage = batch.query, batch.passage
  size = query.shape[0]
  pairs = max(size * (size - 1.0), 1.0)

  def off_diagonal(a, b):
    everything = jnp.dot(a.sum(0), b.sum(0), precision='highest')
    return (everything - jnp.sum(a * b)) / pairs

  result = {
      'temperature': jnp.asarray(similarity.temperature, jnp.float32),
      'positive_similarity': mean(batch, positive_similarity(batch)),
      'query_passage_similarity': off_diagonal(query, passage),
      'query_query_similarity': off_diagonal(query, query),
      'passage_passage_similarity': off_diagonal(passage, passage),
  }
  if similarity.check_norms:
    result['norm_error'] = norm_error(batch)
  return result


def norm_error(batch: Embeddings) -> jax.Array:
  """The largest | |e| - 1 | of all embeddings."""
  errors = []
  for name in ('query', 'passage', 'negatives'):
    vectors = getattr(batch, name)
    if vectors is None:
      continue
    error = jnp.abs(jnp.linalg.norm(vectors, axis=-1) - 1.0)
    if name == 'negatives' and batch.negative_valid is not None:
      error = jnp.where(batch.negative_valid, error, 0.0)
    errors.append(jnp.max(error))
  return jnp.max(jnp.stack(errors))
