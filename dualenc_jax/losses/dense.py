"""Log-partitions by holding whole matrices of scores."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from dualenc_jax.losses.score_matrix import (
  MASKED,
  Matrix,
  negatives,
  Partition,
  scores,
  Tags,
)


def log_partitions(
    matrices: Sequence[Matrix],
    totals: bool,
    precision: jax.lax.PrecisionLike,
    vectors: Mapping[str, jax.Array],
    tags: Sequence[tuple[Tags, Tags]],
    temperature: jax.Array,
) -> list[tuple[Partition | None, Partition | None]]:
  """Partitions of the rows and columns of each; see `log_partition.py`."""
  return [
      _both(matrix, totals, precision, vectors, *both, temperature)
      for matrix, both in zip(matrices, tags, strict=True)
  ]


def _both(matrix, totals, precision, vectors, rows, columns, temperature):
  s = scores(vectors[matrix.rows], vectors[matrix.columns], precision)
  s /= temperature
  diagonal = jnp.eye(*s.shape, dtype=bool) if matrix.aligned else None
  mask = negatives(rows, columns, diagonal)
  mask = jnp.broadcast_to(True if mask is None else mask, s.shape)

  def partition(axis):
    masked = jnp.where(mask, s, MASKED)
    total = jnp.sum(jnp.where(mask, s, 0.0), axis) if totals else None
    return Partition(
        lse=jax.nn.logsumexp(masked, axis),
        count=jnp.sum(mask.astype(jnp.float32), axis),
        maximum=jax.lax.stop_gradient(jnp.max(masked, axis)),
        total=total,
    )

  return (
      partition(1) if matrix.of_rows else None,
      partition(0) if matrix.of_columns and not matrix.symmetric else None,
  )
