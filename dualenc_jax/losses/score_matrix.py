"""A matrix of scores: its description, and its log-partitions when held whole.

Score (i, j) of a matrix is row i . column j / temperature. Only scores of
negatives of their anchor count; all others are masked out. Rows are the anchors
of one direction, columns those of the other. A rows, C columns, D dims.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Finite, so that an anchor without any negative has a gradient of zero and
# not NaN; exp() of it against any real score is exactly zero.
MASKED = -1e30
# At temperature 0.01 a bfloat16 cosine is off by about 0.4 logit.
PRECISION = 'highest'


class NegativeMask(NamedTuple):
  """Marks of the rows, or columns, of a matrix by which negatives are known.

  Attributes:
    ids: fingerprints, each of two words, uint32 [A]. Row i and column j are no
      negatives of each other if the first ids of both are equal, or the
      second, ...
    valid: bool [A], False at padding; None if all are real.
    text: fingerprint of a row's passage, two words uint32 [A]; None if rows
      are no passages.
    positives: fingerprints of passages that are no negatives of this row, two
      words uint32 [A, P].
    limits: float32 [A], the greatest score of a negative of this anchor; a
      candidate above it is a false negative. None for no limit.
    pairs: the number of a row's pair, uint32 [A]; None unless `Hardness` asks.
    teacher: vectors of another model, float32 [A, D'], zeros for none. Their
      products are the teacher's scores; None if nothing needs them.
    guard: float32 [A], the greatest score that the teacher gives a negative of
      this anchor; None for no limit.
  """

  ids: Sequence[tuple[jax.Array, jax.Array]] = ()
  valid: jax.Array | None = None
  text: tuple[jax.Array, jax.Array] | None = None
  positives: tuple[jax.Array, jax.Array] | None = None
  limits: jax.Array | None = None
  pairs: jax.Array | None = None
  teacher: jax.Array | None = None
  guard: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class Hardness:
  """A weight of hard candidates in the partition of one direction.

  A candidate's score counts as s + strength stop_gradient(cosine).

  Attributes:
    strength: of the weight, above 0.
    own: True for the candidates of the anchor's own pair, False for those of
      others, None for all.
  """

  strength: float
  own: bool | None = None


@dataclasses.dataclass(frozen=True)
class Matrix:
  """One matrix of scores, between vectors of these names.

  With `aligned`, row i and column i are no negatives of each other. A symmetric
  matrix has no partitions but those of its rows, and no hardness.
  """

  rows: str
  columns: str
  aligned: bool = True
  of_rows: bool = True
  of_columns: bool = True
  row_hardness: Hardness | None = None
  column_hardness: Hardness | None = None

  @property
  def symmetric(self) -> bool:
    return self.rows == self.columns

  @property
  def needs_pairs(self) -> bool:
    """Whether its masks need the numbers of pairs."""
    both = self.row_hardness, self.column_hardness
    return any(h is not None and h.own is not None for h in both)


class Partition(NamedTuple):
  """Statistics of the negatives' scores of each anchor, all float32 [A].

  `Hardness` is in the log-sum-exp alone. `total` is the sum of the scores, None
  unless it is wanted, and `above` the number of candidates above the limit. The
  count, the maximum and the log-sum-exp of the teacher's scores t have no
  gradients. `gap` is the mean of t - s, weighted by softmax(t); both are None
  unless they are wanted.
  """

  lse: jax.Array
  count: jax.Array  # type: ignore[assignment]  # A method of tuples.
  maximum: jax.Array
  total: Any
  above: Any = None
  teacher_lse: Any = None
  gap: Any = None


def combine(partitions: Sequence[Partition]) -> Partition:
  """Returns the partition over the union of their candidates."""
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *partitions)
  teacher_lse = gap = None
  if stacked.gap is not None:
    teacher_lse = jax.nn.logsumexp(stacked.teacher_lse, axis=0)
    shares = jnp.exp(stacked.teacher_lse - teacher_lse[None])
    gap = jnp.sum(shares * stacked.gap, axis=0)
  return Partition(
      lse=jax.nn.logsumexp(stacked.lse, axis=0),
      count=jnp.sum(stacked.count, axis=0),
      maximum=jnp.max(stacked.maximum, axis=0),
      total=None if stacked.total is None else jnp.sum(stacked.total, axis=0),
      above=None if stacked.above is None else jnp.sum(stacked.above, axis=0),
      teacher_lse=teacher_lse, gap=gap,
  )


def scores(rows: jax.Array, columns: jax.Array) -> jax.Array:
  """Returns dot products [A, D] x [C, D] -> float32 [A, C]."""
  return jnp.einsum('ad,cd->ac', rows, columns, precision=PRECISION)


def teacher_scores(
    rows: NegativeMask, columns: NegativeMask
) -> jax.Array | None:
  """Returns the teacher's scores, float32 [A, C], if anything needs them."""
  if rows.teacher is None or columns.teacher is None:
    return None
  return scores(rows.teacher, columns.teacher)


def negatives(
    rows: NegativeMask, columns: NegativeMask, diagonal: jax.Array | None
) -> jax.Array | None:
  """Returns which columns are negatives of which rows, bool [A, C].

  None means that all are. The diagonal is None if the numbers of rows and
  columns do not matter.
  """
  masks = [] if diagonal is None else [~diagonal]
  for row_ids, column_ids in zip(rows.ids, columns.ids, strict=True):
    low, high = (
        row_word[:, None] != column_word[None, :]
        for row_word, column_word in zip(row_ids, column_ids, strict=True)
    )
    masks.append(low | high)
  for side, other, axis in ((rows, columns, 1), (columns, rows, 0)):
    if side.valid is not None:
      masks.append(jnp.expand_dims(side.valid, axis))
    if side.positives is not None and other.text is not None:
      low, high = (
          jnp.expand_dims(words, axis)
          == jnp.expand_dims(text, (1 - axis, 2))
          for words, text in zip(side.positives, other.text, strict=True)
      )
      masks.append(~jnp.any(low & high, axis=-1))
  return functools.reduce(operator.and_, masks) if masks else None


def above_limit(
    s: jax.Array, limits: jax.Array | None, axis: int
) -> jax.Array | None:
  """Returns which scores [A, C] are above the limits of their anchors.

  Limits are those of the rows if `axis`, the candidates', is 1.
  """
  return None if limits is None else s > jnp.expand_dims(limits, axis)


def guarded(
    t: jax.Array | None, guard: jax.Array | None, axis: int
) -> jax.Array | None:
  """Returns which candidates the teacher scores above the limit, [A, C].

  A candidate without a vector has a score of exactly 0, and is never one.
  """
  if t is None or guard is None:
    return None
  return (t > jnp.expand_dims(guard, axis)) & (t != 0.0)


Hardened = Callable[[jax.Array], jax.Array]


def hardened(
    matrix: Matrix, temperature: jax.Array, rows: NegativeMask,
    columns: NegativeMask,
) -> tuple[Hardened, Hardened]:
  """Returns what adds the weights of hardness to masked scores [A, C].

  One function is for the partitions of rows, the other for those of columns.
  """

  def add(hardness, s):
    if hardness is None:
      return s
    chosen = s > 0.5 * MASKED
    if hardness.own is not None:
      assert rows.pairs is not None and columns.pairs is not None
      same = rows.pairs[:, None] == columns.pairs[None, :]
      chosen &= same == hardness.own
    weight = hardness.strength * temperature * s
    return s + jax.lax.stop_gradient(jnp.where(chosen, weight, 0.0))

  return (
      functools.partial(add, matrix.row_hardness),
      functools.partial(add, matrix.column_hardness),
  )


def dense_log_partitions(
    matrices: Sequence[Matrix], totals: bool, distils: bool,
    vectors: Mapping[str, jax.Array],
    masks: Sequence[tuple[NegativeMask, NegativeMask]], temperature: jax.Array,
) -> list[tuple[Partition | None, Partition | None]]:
  """Computes partitions of rows and columns of whole matrices.

  `totals` and `distils` ask for the sums of scores, and for what compares them
  with the teacher's.
  """

  def both(matrix, rows, columns):
    s = scores(vectors[matrix.rows], vectors[matrix.columns])
    s /= temperature
    diagonal = jnp.eye(*s.shape, dtype=bool) if matrix.aligned else None
    mask = negatives(rows, columns, diagonal)
    mask = jnp.broadcast_to(True if mask is None else mask, s.shape)
    of_columns = matrix.of_columns and not matrix.symmetric
    harden = hardened(matrix, temperature, rows, columns)
    t = teacher_scores(rows, columns)
    return (
        partition(s, t, mask, 1, rows, harden[0]) if matrix.of_rows else None,
        partition(s, t, mask, 0, columns, harden[1]) if of_columns else None,
    )

  def partition(s, t, mask, axis, side, harden):
    false = guarded(t, side.guard, axis)
    mask = mask if false is None else mask & ~false
    masked = jnp.where(mask, s, MASKED)
    above = above_limit(masked, side.limits, axis)
    if above is not None:
      mask, masked = mask & ~above, jnp.where(above, MASKED, masked)
      above = jnp.sum(above.astype(jnp.float32), axis)
    total = jnp.sum(jnp.where(mask, s, 0.0), axis) if totals else None
    teacher_lse = gap = None
    if distils:
      known = jnp.where(mask, t, MASKED)
      teacher_lse = jax.nn.logsumexp(known, axis)
      shares = jnp.exp(known - jnp.expand_dims(teacher_lse, axis))
      gap = jnp.sum(jnp.where(mask, shares * (t - s), 0.0), axis)
    return Partition(
        lse=jax.nn.logsumexp(harden(masked), axis),
        count=jnp.sum(mask.astype(jnp.float32), axis),
        maximum=jax.lax.stop_gradient(jnp.max(masked, axis)), total=total,
        above=above, teacher_lse=teacher_lse, gap=gap,
    )

  return [both(m, *of) for m, of in zip(matrices, masks, strict=True)]
