"""A matrix of scores, described: the words of the log-partition primitive.

A rows and C columns of D dims; score (i, j) is row i . column j / temperature.
Negatives alone count: what is no negative of its anchor is masked out. Rows
are the anchors of one direction, columns those of the other.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Finite, so that an anchor without any negative has a gradient of zero and
# not NaN; exp() of it against any real score is exactly zero.
MASKED = -1e30


class Side(NamedTuple):
  """The rows of a matrix, or its columns.

  Attributes:
    vectors: float32 [A, D].
    ids: fingerprints, uint32 [A, 2] each. Row i and column j are no negatives
      of each other if the first ids of both are equal, or the second, ...
    valid: bool [A], False at padding; None if all are real.
  """

  vectors: jax.Array
  ids: Sequence[jax.Array] = ()
  valid: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class Form:
  """What is known of a matrix before there are numbers.

  Attributes:
    symmetric: the columns are the rows.
    aligned: row i and column i are no negatives of each other.
    rows: the partitions of the rows are wanted.
    columns: those of the columns are.
    totals: and with them the sums of the scores.
    precision: of the products, as in `jax.numpy.dot`.
  """

  symmetric: bool = False
  aligned: bool = True
  rows: bool = True
  columns: bool = True
  totals: bool = False
  # At temperature 0.01 a bf16 cosine is off by about 0.4 logit.
  precision: Any = 'highest'


class Partition(NamedTuple):
  """Statistics of the negatives' scores of each anchor, all float32 [A].

  Attributes:
    lse: log of the sum of exp(score).
    count: number of negatives; has no gradient.
    maximum: largest score; has no gradient.
    total: sum of the scores; None unless it is wanted.
  """

  lse: jax.Array
  count: jax.Array
  maximum: jax.Array
  total: jax.Array | None


def combine(partitions: Sequence[Partition]) -> Partition:
  """The partition over the union of what each is over."""
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *partitions)
  return Partition(
      lse=jax.nn.logsumexp(stacked.lse, axis=0),
      count=jnp.sum(stacked.count, axis=0),
      maximum=jnp.max(stacked.maximum, axis=0),
      total=None if stacked.total is None else jnp.sum(stacked.total, axis=0),
  )


def negatives(
    rows: Side,
    columns: Side,
    first_row: jax.Array | int = 0,
    first_column: jax.Array | int = 0,
    aligned: bool = False,
) -> jax.Array | None:
  """Which columns are negatives of which rows, for all or a tile of a matrix.

  Args:
    rows: A rows of the matrix.
    columns: C columns of it.
    first_row: number of the first of these rows, for `aligned`.
    first_column: number of the first of these columns.
    aligned: mask out the column whose number is the row's.

  Returns:
    bool [A, C]; None if all are.
  """
  masks = []
  for row_ids, column_ids in zip(rows.ids, columns.ids, strict=True):
    differ = row_ids[:, None, :] != column_ids[None, :, :]
    masks.append(differ[:, :, 0] | differ[:, :, 1])
  if rows.valid is not None:
    masks.append(rows.valid[:, None])
  if columns.valid is not None:
    masks.append(columns.valid[None, :])
  if aligned:
    row = first_row + jnp.arange(rows.vectors.shape[0])
    column = first_column + jnp.arange(columns.vectors.shape[0])
    masks.append(row[:, None] != column[None, :])
  if not masks:
    return None
  shape = rows.vectors.shape[0], columns.vectors.shape[0]
  mask = jnp.broadcast_to(masks[0], shape)
  for other in masks[1:]:
    mask &= other
  return mask
