"""Embedding matching: embeddings near the vectors that another model gives."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.losses.loss import (
  Dims,
  Embeddings,
  Loss,
  Params,
  Result,
  Similarity,
)
from dualenc_jax.utils.errors import check_one_of, UserError

METRICS = ('cosine', 'l2', 'mse')
# The least squared length of a mapped embedding.
_TINY = 1e-16


@dataclasses.dataclass(frozen=True)
class EmbedDistill(Loss):
  """The distance of embeddings from a teacher's vectors (Kim et al. 2023).

  The mean over all texts x of the batch that have a vector t(x), queries,
  passages or hard negatives, weighted as their pairs are, of

    'cosine'  1 - cos(y, t),
    'l2'      |y - t|,
    'mse'     |y - t|^2 / D',

  where y is the embedding E(x) or, where its dimension is another than that of
  the vectors, A E(x) + b. This map is trained with the model and is no part of
  it; without it the student can search an index of the teacher (LEAF, Vujanic
  and Rueckstiess 2025). The temperature divides nothing.
  """

  metric: str = 'cosine'

  def __post_init__(self):
    check_one_of('EmbedDistill.metric', self.metric, METRICS)

  @property
  def reads_vectors(self) -> bool:
    return True

  def init(self, dims: Dims | None = None) -> Params:
    """Returns the parameters of the map, if there is one."""
    if dims is None or dims.student == dims.teacher:
      return {}
    orthogonal = jax.nn.initializers.orthogonal()
    return {
        'map_kernel': orthogonal(jax.random.key(0), dims),
        'map_bias': jnp.zeros(dims.teacher),
    }

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    total: Any = 0.0
    weight: Any = 0.0
    texts: Any = 0.0
    cosines: Any = 0.0
    for name, vectors in batch.teacher.items():
      counted = jnp.any(vectors != 0.0, axis=-1)
      x, possible = getattr(batch, name), jnp.ones_like(counted)
      if name == 'negatives' and batch.negative_valid is not None:
        possible = batch.negative_valid
      weights = jnp.ones(len(x)) if batch.weights is None else batch.weights
      weights = weights.reshape(-1, *[1] * (counted.ndim - 1))
      distances, cosine = self._distances(params, x, vectors)
      share = jnp.where(possible & counted, weights, 0.0)
      total += jnp.sum(share * distances)
      cosines += jnp.sum(share * cosine)
      weight += jnp.sum(share)
      texts += jnp.sum(jnp.where(possible, weights, 0.0))
    if not batch.teacher:
      raise UserError(
          'EmbedDistill learns from vectors of another model, which the batch'
          ' lacks. Give TEACHER_QUERIES or TEACHER_PASSAGES.'
      )
    several = jnp.where(weight == 0.0, 1.0, weight)
    value = total / several
    return value, {
        'loss': value,
        'teacher_cosine': cosines / several,
        'taught_fraction': weight / jnp.where(texts == 0.0, 1.0, texts),
    }

  def _distances(
      self, params: Params, x: jax.Array, vectors: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns distances and cosines of embeddings [..., D] and [..., D']."""
    if 'map_kernel' in params and x.shape[-1] == len(params['map_kernel']):
      x = jnp.matmul(x, params['map_kernel'], precision='highest')
      x += jnp.broadcast_to(params['map_bias'], x.shape)
    if x.shape[-1] != vectors.shape[-1]:
      raise UserError(
          f'EmbedDistill compares embeddings of {x.shape[-1]} components with'
          f' vectors of {vectors.shape[-1]}. Expected whole embeddings, outside'
          ' of losses.Matryoshka.'
      )
    squares = jnp.sum(jnp.square(x), axis=-1)
    cosines = jnp.sum(x * vectors, axis=-1)
    cosines *= jax.lax.rsqrt(jnp.maximum(squares, _TINY))
    if self.metric == 'cosine':
      return 1.0 - cosines, cosines
    squares = jnp.sum(jnp.square(x - vectors), axis=-1)
    if self.metric == 'mse':
      return squares / vectors.shape[-1], cosines
    # The square root has no gradient at 0.
    safe = jnp.where(squares == 0.0, 1.0, squares)
    return jnp.where(squares == 0.0, 0.0, jnp.sqrt(safe)), cosines
