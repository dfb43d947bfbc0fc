"""Log-partitions by holding the whole matrix of scores."""

import jax
import jax.numpy as jnp

from dualenc_jax.losses.score_matrix import Form
from dualenc_jax.losses.score_matrix import MASKED
from dualenc_jax.losses.score_matrix import negatives
from dualenc_jax.losses.score_matrix import Partition
from dualenc_jax.losses.score_matrix import Side


def log_partition(
    form: Form,
    rows: Side,
    columns: Side,
    temperature: jax.Array | float,
) -> tuple[Partition | None, Partition | None]:
  """Partitions of the rows and of the columns; see `log_partition.py`."""
  scores = (
      jnp.dot(rows.vectors, columns.vectors.T, precision=form.precision)
      / temperature
  )
  mask = negatives(rows, columns, aligned=form.aligned)
  if mask is None:
    mask = jnp.ones(scores.shape, bool)

  def partition(axis):
    masked = jnp.where(mask, scores, MASKED)
    total = jnp.sum(jnp.where(mask, scores, 0.0), axis)
    return Partition(
        lse=jax.nn.logsumexp(masked, axis),
        count=jnp.sum(mask.astype(jnp.float32), axis),
        maximum=jax.lax.stop_gradient(jnp.max(masked, axis)),
        total=total if form.totals else None,
    )

  return (
      partition(1) if form.rows else None,
      partition(0) if form.columns else None,
  )
