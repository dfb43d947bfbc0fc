"""A matrix of scores tile by tile: nothing larger than a tile is ever held.

Both sides come cut into tiles, [T, t, ...]. The forward pass keeps a running
log-sum-exp of every row and, from the same tile, of every column; the backward
pass computes each tile again.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dualenc_jax.losses import score_matrix
from dualenc_jax.losses.score_matrix import (
  Hardness,
  MASKED,
  Matrix,
  NegativeMask,
  Partition,
  PRECISION,
)


class Side(NamedTuple):
  """Rows or columns of a matrix, in tiles: vectors [T, t, D] and their mask."""

  vectors: jax.Array
  mask: NegativeMask


class TeacherSums(NamedTuple):
  """Statistics of a teacher's scores t, float32 [T, t].

  `exponentials` is the sum of exp(t - maximum), `gaps` that of exp(t - maximum)
  (t - s) over real negatives.
  """

  maximum: jax.Array
  exponentials: jax.Array
  gaps: jax.Array


class Running(NamedTuple):
  """Statistics of the scores seen so far, float32 [T, t], see `Partition`.

  `exponentials` is the sum of exp(score - maximum). With `Hardness` both are of
  scores with its weights, and `best` is the maximum without; else it is None.
  So is `teacher` unless its `TeacherSums` are wanted.
  """

  maximum: jax.Array
  exponentials: jax.Array
  count: jax.Array  # type: ignore[assignment]  # A method of tuples.
  total: Any
  above: Any
  best: Any
  teacher: Any


class Cotangent(NamedTuple):
  """Input of the backward pass for the rows or the columns, [T, t] each."""

  lse: jax.Array
  d_lse: jax.Array
  d_total: jax.Array | None
  teacher_lse: jax.Array | None
  d_gap: jax.Array | None


def cut(side: Side, tile: int) -> Side:
  """Cuts [A, ...] into equal tiles [T, t, ...], t <= tile, padding the last."""
  vectors, mask = side
  size = vectors.shape[0]
  if size % -(-size // tile) and mask.valid is None:
    mask = mask._replace(valid=jnp.ones_like(vectors[:, 0], bool))
  return jax.tree.map(lambda x: cut_rows(x, tile), Side(vectors, mask))


def cut_rows(x: jax.Array, tile: int) -> jax.Array:
  """Cuts [A, ...] -> [T, t, ...], with zeros in the padding."""
  size = x.shape[0]
  tiles = -(-size // tile)
  padding = -size % tiles
  x = jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)) if padding else x
  return x.reshape(tiles, -1, *x.shape[1:])


def join(x: jax.Array, size: int) -> jax.Array:
  """Joins [T, t, ...] -> [A, ...], without the padding."""
  return x.reshape(-1, *x.shape[2:])[:size]


def start(
    side: Side, totals: bool, distils: bool, hardness: Hardness | None
) -> Running:
  """Returns statistics of no scores at all."""
  zero = jnp.zeros_like(side.vectors[:, :, 0])
  return Running(
      zero + MASKED, zero, zero, zero if totals else None,
      None if side.mask.limits is None else zero,
      None if hardness is None else zero + MASKED,
      TeacherSums(zero + MASKED, zero, zero) if distils else None,
  )


def merge(a: Running, b: Running) -> Running:
  """Merges the statistics of two sets of scores."""
  maximum, teacher = jnp.maximum(a.maximum, b.maximum), None
  if a.teacher is not None:
    most = jnp.maximum(a.teacher.maximum, b.teacher.maximum)
    shares = [jnp.exp(x.teacher.maximum - most) for x in (a, b)]
    teacher = TeacherSums(
        most,
        shares[0] * a.teacher.exponentials + shares[1] * b.teacher.exponentials,
        shares[0] * a.teacher.gaps + shares[1] * b.teacher.gaps,
    )
  return Running(
      maximum,
      a.exponentials * jnp.exp(a.maximum - maximum)
      + b.exponentials * jnp.exp(b.maximum - maximum),
      a.count + b.count, None if a.total is None else a.total + b.total,
      None if a.above is None else a.above + b.above,
      None if a.best is None else jnp.maximum(a.best, b.best), teacher,
  )


def finish(running: Running, size: int) -> Partition:
  """Returns the partitions of `size` anchors."""
  maximum, exponentials, count, total, above, best, teacher = jax.tree.map(
      lambda x: join(x, size), running
  )
  of_teacher: tuple[Any, ...] = ()
  if teacher is not None:
    lse = teacher.maximum + jnp.log(teacher.exponentials)
    of_teacher = lse, teacher.gaps / teacher.exponentials
  # The sum is never zero: exp(MASKED - MASKED) is 1 if all are masked.
  return Partition(
      maximum + jnp.log(exponentials), count,
      maximum if best is None else best, total, above, *of_teacher
  )


def forward(
    matrix: Matrix, rows: Side, columns: Side, temperature: jax.Array,
    row_sums: Running | None, column_sums: Running | None, same_shard: bool,
) -> tuple[Running | None, Running | None]:
  """Adds the scores of all tiles of rows and columns to their statistics.

  None stands for statistics that are not wanted. With `same_shard`, row i and
  column i have the same number; only the tiles on and above the diagonal of a
  symmetric matrix are computed then, and the statistics of a row are those of
  row and column together.
  """

  def row_tile(a, sums):
    row_sums, column_sums = sums
    row_side = _pick(rows, a)
    x = row_side.vectors / temperature

    def tile(b, sums):
      row_sum, column_sums = sums
      column_side = _pick(columns, b)
      s, _ = _scores(matrix, x, row_side, column_side, a, b, same_shard)
      masks = row_side.mask, column_side.mask
      t = score_matrix.teacher_scores(*masks)
      harden = score_matrix.hardened(matrix, temperature, *masks)
      if row_sum is not None:
        row_sum = _include(row_sum, s, t, 1, masks[0], harden[0])
      if column_sums is not None:
        column_sum = _pick(column_sums, b)
        column_sum = _include(column_sum, s, t, 0, masks[1], harden[1])
        column_sums = _put(column_sums, b, column_sum)
      return row_sum, column_sums

    row_sum, first = _pick(row_sums, a), 0
    if same_shard and matrix.symmetric:
      (row_sum, _), first = tile(a, (row_sum, None)), a + 1
    row_sum, column_sums = jax.lax.fori_loop(
        first, columns.vectors.shape[0], tile, (row_sum, column_sums)
    )
    return _put(row_sums, a, row_sum), column_sums

  return jax.lax.fori_loop(
      0, rows.vectors.shape[0], row_tile, (row_sums, column_sums)
  )


def backward(
    matrix: Matrix, rows: Side, columns: Side, temperature: jax.Array,
    row_bar: Cotangent | None, column_bar: Cotangent | None, d_rows: jax.Array,
    d_columns: jax.Array | None, same_shard: bool,
) -> tuple[jax.Array, jax.Array | None]:
  """Adds the gradient of the statistics to that of rows and columns.

  As `forward`, with the final log-sum-exp and the cotangents of rows and
  columns; d_rows [T, t, D] and d_columns [U, u, D], None if not wanted, are the
  gradients so far. With `same_shard`, d_rows of a symmetric matrix is the
  gradient of rows and columns together.
  """
  triangle = same_shard and matrix.symmetric

  def row_tile(a, gradients):
    d_rows, d_columns = gradients
    row_side, row_bar_a = _pick(rows, a), _pick(row_bar, a)
    x = row_side.vectors / temperature

    def tile(b, gradients):
      d_x, d_y = gradients
      column_side = _pick(columns, b)
      s, mask = _scores(matrix, x, row_side, column_side, a, b, same_shard)
      masks = row_side.mask, column_side.mask
      t = score_matrix.teacher_scores(*masks)
      harden = score_matrix.hardened(matrix, temperature, *masks)
      d_s = _d_scores(
          s, t, mask, (row_bar_a, masks[0], harden[0]),
          (_pick(column_bar, b), masks[1], harden[1]),
      )
      d_x += jnp.einsum(
          'tu,ud->td', d_s, column_side.vectors, precision=PRECISION
      )
      if d_y is not None:
        d_y = d_y.at[b].add(
            jnp.einsum('tu,td->ud', d_s, x, precision=PRECISION)
        )
      return d_x, d_y

    d_x, d_y, first = jnp.zeros_like(x), d_columns, 0
    if triangle:
      d_y = d_rows
      (d_x, _), first = tile(a, (d_x, None)), a + 1
    d_x, d_y = jax.lax.fori_loop(
        first, columns.vectors.shape[0], tile, (d_x, d_y)
    )
    if triangle:
      d_rows, d_y = d_y, d_columns
    return d_rows.at[a].add(d_x / temperature), d_y

  return jax.lax.fori_loop(
      0, rows.vectors.shape[0], row_tile, (d_rows, d_columns)
  )


def _scores(matrix, x, rows, columns, a, b, same_shard):
  """Returns masked scores of the tile (a, b), [t, u], and its mask or None."""
  s = score_matrix.scores(x, columns.vectors)
  diagonal = None
  if same_shard and matrix.aligned:
    i, j = (jax.lax.broadcasted_iota(jnp.int32, s.shape, k) for k in (0, 1))
    diagonal = a * s.shape[0] + i == b * s.shape[1] + j
  mask = score_matrix.negatives(rows.mask, columns.mask, diagonal)
  return (s if mask is None else jnp.where(mask, s, MASKED)), mask


def _include(
    running: Running, s, t, axis, side: NegativeMask, harden
) -> Running:
  false = score_matrix.guarded(t, side.guard, axis)
  if false is not None:
    s = jnp.where(false, MASKED, s)
  above = score_matrix.above_limit(s, side.limits, axis)
  if above is not None:
    s = jnp.where(above, MASKED, s)
    above = running.above + jnp.sum(above.astype(jnp.float32), axis)
  hardened, best = harden(s), running.best
  if best is not None:
    best = jnp.maximum(best, jnp.max(s, axis))
  maximum = jnp.maximum(running.maximum, jnp.max(hardened, axis))
  exponentials = jnp.exp(hardened - jnp.expand_dims(maximum, axis))
  real = s > 0.5 * MASKED
  teacher = running.teacher
  if teacher is not None:
    t = jnp.where(real, t, MASKED)
    most = jnp.maximum(teacher.maximum, jnp.max(t, axis))
    shares = jnp.exp(t - jnp.expand_dims(most, axis))
    gaps = jnp.sum(jnp.where(real, shares * (t - s), 0.0), axis)
    before = jnp.exp(teacher.maximum - most)
    teacher = TeacherSums(
        most, before * teacher.exponentials + jnp.sum(shares, axis),
        before * teacher.gaps + gaps,
    )
  total = running.total
  if total is not None:
    total += jnp.sum(jnp.where(real, s, 0.0), axis)
  return Running(
      maximum,
      running.exponentials * jnp.exp(running.maximum - maximum)
      + jnp.sum(exponentials, axis),
      running.count + jnp.sum(real.astype(jnp.float32), axis), total, above,
      best, teacher,
  )


def _d_scores(s, t, mask, of_rows, of_columns):
  """Returns the gradient of the scores of a tile, [t, u].

  Rows and columns have triples (cotangent, mask, what adds hardness).
  """
  gradient = jnp.zeros_like(s)
  for (bar, side, harden), axis in ((of_rows, 1), (of_columns, 0)):
    if bar is not None:
      lse, d_lse = (jnp.expand_dims(x, axis) for x in bar[:2])
      term = jnp.exp(harden(s) - lse) * d_lse
      if bar.d_total is not None:
        term += jnp.expand_dims(bar.d_total, axis)
      if bar.d_gap is not None:
        shares = jnp.exp(t - jnp.expand_dims(bar.teacher_lse, axis))
        term -= shares * jnp.expand_dims(bar.d_gap, axis)
      for left_out in (
          score_matrix.above_limit(s, side.limits, axis),
          score_matrix.guarded(t, side.guard, axis),
      ):
        term = term if left_out is None else jnp.where(left_out, 0.0, term)
      gradient += term
  return gradient if mask is None else jnp.where(mask, gradient, 0.0)


def _pick(tree, i):
  """Picks entry i of every array: [T, t, ...] -> [t, ...]."""
  return jax.tree.map(
      lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), tree
  )


def _put(tree, i, values):
  """Replaces entry i of every array."""
  return jax.tree.map(
      lambda x, value: jax.lax.dynamic_update_index_in_dim(x, value, i, 0),
      tree, values,
  )
