"""A matrix of scores, tile by tile: nothing larger than a tile is ever held.

Both sides come cut into tiles, [T, t, ...]. The forward pass keeps a running
log-sum-exp of every row and, from the same tile, of every column; the backward
pass computes each tile again.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dualenc_jax.losses.score_matrix import Form
from dualenc_jax.losses.score_matrix import MASKED
from dualenc_jax.losses.score_matrix import negatives
from dualenc_jax.losses.score_matrix import Partition
from dualenc_jax.losses.score_matrix import Side


class Running(NamedTuple):
  """Statistics of the scores seen so far, float32 [T, t].

  `exponentials` is the sum of exp(score - maximum); for the others see
  `Partition`.
  """

  maximum: jax.Array
  exponentials: jax.Array
  count: jax.Array
  total: jax.Array | None


class Cotangent(NamedTuple):
  """What the backward pass knows of the rows or the columns, [T, t] each."""

  lse: jax.Array
  d_lse: jax.Array
  d_total: jax.Array | None


def cut(side: Side, tile: int) -> Side:
  """Cuts [A, ...] into equal tiles [T, t, ...], t <= tile, padding the last."""
  size = side.vectors.shape[0]
  tiles = -(-size // tile)
  if size % tiles and side.valid is None:
    side = side._replace(valid=jnp.ones_like(side.vectors[:, 0], bool))
  return jax.tree.map(lambda x: cut_rows(x, tile), side)


def cut_rows(x: jax.Array, tile: int) -> jax.Array:
  """[A, ...] -> [T, t, ...], zeros in the padding."""
  size = x.shape[0]
  tiles = -(-size // tile)
  padding = -size % tiles
  x = jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)) if padding else x
  return x.reshape(tiles, -1, *x.shape[1:])


def join(x: jax.Array, size: int) -> jax.Array:
  """[T, t, ...] -> [A, ...], without the padding."""
  return x.reshape(-1, *x.shape[2:])[:size]


def start(form: Form, side: Side) -> Running:
  """Statistics of no scores at all."""
  zero = jnp.zeros_like(side.vectors[:, :, 0])
  return Running(zero + MASKED, zero, zero, zero if form.totals else None)


def merge(a: Running, b: Running) -> Running:
  """Statistics of two sets of scores together."""
  maximum = jnp.maximum(a.maximum, b.maximum)
  return Running(
      maximum,
      a.exponentials * jnp.exp(a.maximum - maximum)
      + b.exponentials * jnp.exp(b.maximum - maximum),
      a.count + b.count,
      None if a.total is None else a.total + b.total,
  )


def finish(running: Running, size: int) -> Partition:
  """The partition of `size` anchors, [size] each."""
  maximum, exponentials, count, total = jax.tree.map(
      lambda x: join(x, size), running
  )
  # Never zero: of what is masked out everywhere, exp(MASKED - MASKED) is 1.
  return Partition(maximum + jnp.log(exponentials), count, maximum, total)


def forward(
    form: Form,
    rows: Side,
    columns: Side,
    temperature: jax.Array,
    row_sums: Running | None,
    column_sums: Running | None,
    own: bool,
) -> tuple[Running | None, Running | None]:
  """Adds the scores of all rows and columns to their statistics.

  Args:
    form: of the matrix.
    rows: tiles [T, t, ...].
    columns: tiles [U, u, ...].
    temperature: float32 [].
    row_sums: statistics of the rows so far; None if nobody wants them.
    column_sums: those of the columns.
    own: row i and column i have the same place in the whole matrix. Of a
      symmetric one only the tiles on and above the diagonal are computed, and
      the statistics of a row are those of its row and its column together.

  Returns:
    The statistics of rows and columns.
  """
  num_tiles = columns.vectors.shape[0]

  def row_tile(a, sums):
    row_sums, column_sums = sums
    row_side = _pick(rows, a)
    x = row_side.vectors / temperature

    def tile(b, sums):
      row_sum, column_sums = sums
      scores = _scores(form, x, row_side, _pick(columns, b), a, b, own)[0]
      if row_sum is not None:
        row_sum = _include(row_sum, scores, axis=1)
      if column_sums is not None:
        column_sum = _include(_pick(column_sums, b), scores, axis=0)
        column_sums = _put(column_sums, b, column_sum)
      return row_sum, column_sums

    row_sum, first = _pick(row_sums, a), 0
    if own and form.symmetric:
      row_sum, first = tile(a, (row_sum, None))[0], a + 1
    row_sum, column_sums = jax.lax.fori_loop(
        first, num_tiles, tile, (row_sum, column_sums)
    )
    return _put(row_sums, a, row_sum), column_sums

  return jax.lax.fori_loop(
      0, rows.vectors.shape[0], row_tile, (row_sums, column_sums)
  )


def backward(
    form: Form,
    rows: Side,
    columns: Side,
    temperature: jax.Array,
    row_bar: Cotangent | None,
    column_bar: Cotangent | None,
    d_rows: jax.Array,
    d_columns: jax.Array | None,
    own: bool,
) -> tuple[jax.Array, jax.Array | None]:
  """Adds the gradient of the statistics to that of rows and columns.

  Args:
    form: of the matrix.
    rows: tiles [T, t, ...].
    columns: tiles [U, u, ...].
    temperature: float32 [].
    row_bar: final log-sum-exp of the rows, and cotangents; None as before.
    column_bar: those of the columns.
    d_rows: gradient of `rows.vectors` so far.
    d_columns: that of `columns.vectors`; None if another device adds it.
    own: as in `forward`.

  Returns:
    d_rows and d_columns.
  """
  num_tiles = columns.vectors.shape[0]

  def row_tile(a, gradients):
    d_rows, d_columns = gradients
    row_side, row_bar_a = _pick(rows, a), _pick(row_bar, a)
    x = row_side.vectors / temperature

    def tile(b, gradients):
      d_x, d_columns = gradients
      column_side = _pick(columns, b)
      scores, mask = _scores(form, x, row_side, column_side, a, b, own)
      d_scores = _d_scores(scores, row_bar_a, _pick(column_bar, b))
      if mask is not None:
        d_scores = jnp.where(mask, d_scores, 0.0)
      d_x += jnp.dot(d_scores, column_side.vectors, precision=form.precision)
      if d_columns is not None:
        d_columns = d_columns.at[b].add(
            jnp.dot(d_scores.T, x, precision=form.precision)
        )
      return d_x, d_columns

    d_x, first = jnp.zeros_like(x), 0
    if own and form.symmetric:
      d_x, first = tile(a, (d_x, None))[0], a + 1
    d_x, d_columns = jax.lax.fori_loop(
        first, num_tiles, tile, (d_x, d_columns)
    )
    return d_rows.at[a].add(d_x / temperature), d_columns

  return jax.lax.fori_loop(
      0, rows.vectors.shape[0], row_tile, (d_rows, d_columns)
  )


def _scores(form, x, rows, columns, a, b, own):
  """Scores [t, u] of a tile, masked, and its mask or None."""
  scores = jnp.dot(x, columns.vectors.T, precision=form.precision)
  mask = negatives(
      rows,
      columns,
      a * rows.vectors.shape[0],
      b * columns.vectors.shape[0],
      own and form.aligned,
  )
  if mask is None:
    return scores, None
  return jnp.where(mask, scores, MASKED), mask


def _include(running: Running, scores: jax.Array, axis: int) -> Running:
  maximum = jnp.maximum(running.maximum, jnp.max(scores, axis))
  shifted = jnp.exp(scores - jnp.expand_dims(maximum, axis))
  real = scores > 0.5 * MASKED
  total = running.total
  if total is not None:
    total += jnp.sum(jnp.where(real, scores, 0.0), axis)
  return Running(
      maximum,
      running.exponentials * jnp.exp(running.maximum - maximum)
      + jnp.sum(shifted, axis),
      running.count + jnp.sum(real.astype(jnp.float32), axis),
      total,
  )


def _d_scores(scores, row_bar, column_bar):
  """Gradient of the scores of a tile, [t, u], before masking."""
  gradient = 0.0
  for bar, axis in ((row_bar, 1), (column_bar, 0)):
    if bar is None:
      continue
    lse, d_lse, d_total = (
        None if v is None else jnp.expand_dims(v, axis) for v in bar
    )
    gradient += jnp.exp(scores - lse) * d_lse
    if d_total is not None:
      gradient += d_total
  return gradient


def _pick(tree, i):
  return jax.tree.map(lambda x: x[i], tree)


def _put(tree, i, values):
  return jax.tree.map(lambda x, value: x.at[i].set(value), tree, values)
