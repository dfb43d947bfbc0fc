"""What a loss sees of a batch."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dualenc_jax.data import columns as columns_lib
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
    columns: the other columns of the batch by name, see `data.columns`: [B] of
      pairs, [B, 1 + K] of passages and their hard negatives.
  """

  query: jax.Array
  passage: jax.Array
  negatives: jax.Array | None = None
  query_ids: jax.Array | None = None
  passage_ids: jax.Array | None = None
  negative_ids: jax.Array | None = None
  negative_valid: jax.Array | None = None
  columns: Mapping[str, jax.Array] = {}

  @classmethod
  def of_batch(
      cls, batch: Mapping[str, Any], query: jax.Array, passages: jax.Array
  ) -> 'Embeddings':
    """The embeddings of a batch with whatever else it has.

    Args:
      batch: what `Batches` yields; a batch of one's own may lack ids.
      query: [B, D].
      passages: [B, 1 + K, D], the positive first.
    """
    known = columns_lib.arrays(1, 1)
    found = {n: batch[n] for n in cls._fields if n in known and n in batch}
    found['columns'] = {
        name: values
        for name, values in batch.items()
        if name not in (*known, *columns_lib.ROWS)
    }
    if passages.shape[1] > 1:
      found['negatives'] = passages[:, 1:]
    return cls(query, passages[:, 0], **found)

  @property
  def weights(self) -> jax.Array | None:
    """Weights of the pairs in every mean over anchors, float32 [B].

    None for equal ones. As candidates all pairs count alike.
    """
    return self.columns.get('weights')

  def column(self, name: str) -> jax.Array:
    """A column that the loss cannot do without.

    Raises:
      UserError: the batch lacks it.
    """
    if name not in self.columns:
      raise UserError(
          f'The loss reads the column {name!r}, which the batch lacks; it has'
          f' {", ".join(self.columns) or "none"}. Train on a dataset with this'
          ' column among its extra_columns.'
      )
    return self.columns[name]

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
    k = None if self.negatives is None else self.negatives.shape[1]
    known = columns_lib.arrays(size, k)
    expected = {
        'passage': [(size, dim)],
        'negatives': [(size, k, dim)],
        **{name: [shape] for name, (shape, _) in known.items()},
        'weights': [(size,)],
    }
    arrays = {**self._asdict(), **self.columns}
    del arrays['query'], arrays['columns']
    for name, array in arrays.items():
      shapes = expected.get(name, [(size,), (size, 1 + self.num_negatives)])
      if array is not None and array.shape not in shapes:
        raise UserError(
            f'Embeddings.{name} has the shape {array.shape}; expected'
            f' {" or ".join(map(str, shapes))}, since Embeddings.query has'
            f' {self.query.shape}.'
        )
