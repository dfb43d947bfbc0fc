"""What a loss sees of a batch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dualenc_jax.errors import UserError


class Embeddings(NamedTuple):
  """A global batch, embedded: row i of query and passage is pair i.

  B pairs, K hard negatives a query, D embedding dim. Ids are 64-bit
  fingerprints of the tokens as two uint32; None where they are unknown.

  Attributes:
    query: float32 [B, D], rows of norm one.
    passage: float32 [B, D].
    negatives: float32 [B, K, D], or None.
    query_ids: uint32 [B, 2].
    passage_ids: uint32 [B, 2].
    negative_ids: uint32 [B, K, 2].
    negative_valid: bool [B, K], False where a query has fewer than K hard
      negatives; None if all are real.
    weights: float32 [B], weights of the pairs in every mean over anchors; None
      for equal ones. As candidates all pairs count alike.
  """

  query: jax.Array
  passage: jax.Array
  negatives: jax.Array | None = None
  query_ids: jax.Array | None = None
  passage_ids: jax.Array | None = None
  negative_ids: jax.Array | None = None
  negative_valid: jax.Array | None = None
  weights: jax.Array | None = None

  @property
  def num_negatives(self) -> int:
    """K; 0 without hard negatives."""
    return 0 if self.negatives is None else self.negatives.shape[1]

  def in_float32(self) -> 'Embeddings':
    """The same with float32 vectors."""
    vectors = {
        name: getattr(self, name).astype(jnp.float32)
        for name in ('query', 'passage', 'negatives')
        if getattr(self, name) is not None
    }
    return self._replace(**vectors)

  def check(self) -> None:
    """Raises UserError for arrays that do not belong together."""
    size, dim = self.query.shape
    hard = () if self.negatives is None else self.negatives.shape[1:2]
    expected = {
        'passage': (size, dim),
        'negatives': (size, *hard, dim),
        'query_ids': (size, 2),
        'passage_ids': (size, 2),
        'negative_ids': (size, *hard, 2),
        'negative_valid': (size, *hard),
        'weights': (size,),
    }
    for name, shape in expected.items():
      array = getattr(self, name)
      if array is not None and array.shape != shape:
        raise UserError(
            f'Embeddings.{name} has the shape {array.shape}; expected {shape},'
            f' since Embeddings.query has {self.query.shape}.'
        )
