"""The device side of search: a corpus in blocks, and their float32 scores.

A block has vectors, or codes that a quantiser of `compression` scores.

Every device of the mesh has its own rows of a block, and its own `Best` so far.
These are approximate: a score is off by at most `exact_search.error_bounds`.

Shapes: Q queries, M rows of a block on one device, D embedding dim, W columns
of a block, D or those of codes, C best kept by each of n devices.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np

from dualenc_jax.retrieval.search.top_k import best_of, maxima

# Of XLA's arrays on a CPU. What NumPy allocates itself begins 16 bytes off.
_ALIGNMENT = 64
# Rows of a block on one device; shards of an index are multiples of it, so
# that a block is a view of one shard.
BLOCK_ROWS = 2**17
# The corpus is not split finer than this to avoid rows of padding.
_LEAST_ROWS = 1024
# [n M, W], the corpus row of the first, and how many count if not all do.
Block = tuple[jax.Array, np.int32, np.int32 | None]
# Added to norms that bound errors: for one of D numbers below 2^-126, for the
# squares of such below 2^-63, and for products of such, if they are lost.
LEAST_NORM = 2.0**-50
_AXIS = 'devices'


def empty_rows(count: int, dim: int) -> np.ndarray:
  """An uninitialised float32 [count, dim] at a multiple of 64 bytes."""
  size = 4 * count * dim
  memory = np.empty(size + _ALIGNMENT, np.uint8)
  start = -memory.ctypes.data % _ALIGNMENT
  return memory[start : start + size].view(np.float32).reshape(count, dim)


@dataclasses.dataclass(frozen=True, eq=False)
class CorpusBlocks:
  """The rows of a corpus, block by block, in any number of passes.

  Attributes:
    passages: [N, W], an array or a store of rows.
    sharding: of a block over its rows.
    devices: n, devices of the sharding.
    block_rows: M, rows of a block on one device.
    resident: whether blocks stay on the devices after the first pass.
  """

  passages: Any
  sharding: jax.sharding.Sharding
  devices: int
  block_rows: int
  resident: bool
  _kept: list[Block] = dataclasses.field(default_factory=list, init=False)

  def __iter__(self) -> Iterator[Block]:
    """Yields the blocks; kept ones if they are resident."""
    if self._kept:
      yield from self._kept
      return
    blocks = []
    for block in self._read():
      if self.resident:
        blocks.append(block)
      yield block
    self._kept.extend(blocks)

  def _read(self) -> Iterator[Block]:
    """Reads the blocks, one at a time.

    The rest at the end goes in ever smaller powers of two, so that it is used
    where it lies, too, and the compiler sees few shapes.
    """
    total, devices = len(self.passages), self.devices
    start = 0
    while start < total:
      left = total - start
      rows, count = self.block_rows, None
      if left < rows * devices:
        rows = power_of_two(left // devices + 1) // 2
        if rows < min(_LEAST_ROWS, self.block_rows):
          rows, count = power_of_two(-(-left // devices)), np.int32(left)
      yield self._block(start, rows * devices), np.int32(start), count
      start += rows * devices

  def _block(self, start: int, size: int) -> jax.Array:
    """Rows of the corpus over the devices, zeros beyond its end."""
    total, dim = self.passages.shape

    def shard(index):
      first, end, _ = index[0].indices(size)
      rows = self.passages[min(start + first, total) : start + end]
      missing = end - first - len(rows)
      if not missing:
        return rows
      return np.concatenate([rows, np.zeros((missing, dim), rows.dtype)])

    return jax.make_array_from_callback((size, dim), self.sharding, shard)


def power_of_two(count: int) -> int:
  """The least power of two that is not below `count`."""
  return 1 << max(count - 1, 0).bit_length()


class Best(NamedTuple):
  """The best of each query on each device, unordered between devices.

  Attributes:
    values: float32 [n, Q, C], best first; -inf where there is none.
    rows: int32 [n, Q, C], of the corpus.
  """

  values: jax.Array
  rows: jax.Array


class Near(NamedTuple):
  """The passages around one score of each query.

  Attributes:
    best: `Best` by minus the distance to that score: passages so near that
      rounding may have put them on the wrong side of it.
    above: int32 [n, Q], the number of other passages above it.
  """

  best: Best
  above: jax.Array


class Programs:
  """The compiled programs over some devices, each with a `lower` as in JAX."""

  # M that suits these programs.
  block_rows = BLOCK_ROWS
  # Of a block's rows among scores. These are [M, Q]: on a TPU maxima of groups
  # and the groups themselves are then read without a copy of all scores.
  _axis = 0

  def __init__(self, devices: Sequence[jax.Device], wide: bool = False):
    """Takes devices in the order of their rows in a block.

    With `wide` products are in float64, rounded to float32 where they are kept.
    """
    self.devices = len(devices)
    self.epsilon = 2.0**-53 if wide else 2.0**-24
    self._wide = wide
    self.mesh = jax.sharding.Mesh(np.array(devices), (_AXIS,))
    self.replicated = jax.sharding.NamedSharding(self.mesh, PartitionSpec())
    self.split = jax.sharding.NamedSharding(self.mesh, PartitionSpec(_AXIS))

  def no_best(self, queries: int, count: int) -> Any:
    """The `Best` before the first block."""
    shape = self.devices, queries, count
    return Best(
        self._full(shape, np.float32(-np.inf)), self._full(shape, np.int32(-1))
    )

  def none_near(self, queries: int, count: int) -> Near:
    """The `Near` before the first block."""
    return Near(
        self.no_best(queries, count),
        self._full((self.devices, queries), np.int32(0)),
    )

  def _full(self, shape, value) -> jax.Array:
    def shard(index):
      sizes = [len(range(*i.indices(n))) for i, n in zip(index, shape)]
      return np.full(sizes, value)

    return jax.make_array_from_callback(shape, self.split, shard)

  @functools.cached_property
  def update_best(self):
    """(Best, block [n M, W], queries [Q, D], quantiser, start, rows) -> Best.

    start is the corpus row of the block's first row; rows is the number that
    count, None for all. Without a quantiser a block is of vectors.
    """
    return self._compile(self._update_best)

  def lower_update_best(
      self, rows: int, queries: int, dim: int, count: int
  ) -> jax.stages.Lowered:
    """`update_best` for M, Q, D, C and float32 vectors, lowered."""

    def array(shape, dtype=np.float32, sharding=self.split):
      return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    kept = self.devices, queries, count
    return self.update_best.lower(
        Best(array(kept), array(kept, np.int32)),
        array((self.devices * rows, dim)),
        array((queries, dim), sharding=self.replicated),
        None,
        array((), np.int32, self.replicated),
        None,
    )

  @functools.cached_property
  def update_near(self):
    """(Near, block, queries, quantiser, start, rows, ...) -> Near.

    The last arguments are longest (of the block), targets [Q], the scores to
    compare with, and bounds [Q]: rounding moves a score by at most longest *
    bounds.
    """
    return self._compile(self._update_near)

  @functools.cached_property
  def longest(self):
    """block [n M, D] -> its greatest norm + LEAST_NORM; inf if not finite."""

    def longest(block):
      block = block.astype(jnp.float32)
      squares = jnp.sum(block * block, axis=1)
      # A maximum on the CPU passes over NaN.
      squares = jnp.where(squares < jnp.inf, squares, jnp.inf)
      return jnp.sqrt(jnp.max(squares)) + LEAST_NORM

    return self._jit(longest, out_shardings=self.replicated)

  @functools.cached_property
  def merge(self):
    """Best of n devices -> values and rows [Q, C] of all of them."""

    def merge(best):
      _, queries, count = best.values.shape
      values, rows = (x.swapaxes(0, 1).reshape(queries, -1) for x in best)
      values, which = lax.top_k(values, count)
      return values, jnp.take_along_axis(rows, which, axis=1, mode='clip')

    return self._jit(merge, out_shardings=self.replicated)

  @functools.cached_property
  def total(self):
    """[n, Q] -> [Q]."""
    return self._jit(lambda x: x.sum(axis=0), out_shardings=self.replicated)

  def wait(self, state: Any) -> None:
    """Waits for a `Best` or a `Near` that was begun."""
    jax.block_until_ready(state)

  def _update_best(self, best, block, queries, quantiser, start, rows):
    scores, first = self._scores(queries, quantiser, block, start, rows)
    return self._merge(best, scores.astype(jnp.float32), first)

  def _update_near(self, near, block, queries, quantiser, start, rows, *around):
    longest, targets, bounds = around
    scores, first = self._scores(queries, quantiser, block, start, rows)
    distances = scores - jnp.expand_dims(targets, self._axis)
    margins = jnp.expand_dims(longest * bounds, self._axis)
    # Sums of ones are exact in float32, and vectorised, unlike integers.
    surely = (distances > margins).astype(jnp.float32)
    above = jnp.sum(surely, axis=self._axis).astype(jnp.int32)[None]
    distances = jnp.abs(distances)
    nearness = jnp.where(distances <= margins, -distances, -jnp.inf)
    best = self._merge(near.best, nearness.astype(jnp.float32), first)
    return Near(best, near.above + above)

  def _scores(self, queries, quantiser, block, start, rows):
    """Scores of this device's rows, [M, Q] or by `_axis` [Q, M]; its first."""
    queries = queries.astype(jnp.float64 if self._wide else jnp.float32)
    if quantiser is None:
      sides = [queries, block.astype(queries.dtype)]
      scores = lax.dot_general(
          *(sides if self._axis else reversed(sides)),
          (((1,), (1,)), ((), ())),
          precision=lax.Precision.HIGHEST,
      )
    else:
      scores = quantiser.scores(queries, block)
      scores = scores if self._axis else scores.T
    size = block.shape[0]
    offset = lax.axis_index(_AXIS) * size
    if rows is not None:
      inside = jnp.arange(size, dtype=jnp.int32) + offset < rows
      inside = jnp.expand_dims(inside, 1 - self._axis)
      scores = jnp.where(inside, scores, -jnp.inf)
    return scores, start + offset

  def _merge(self, best: Any, scores: jax.Array, first: jax.Array) -> Any:
    """Merges the scores of corpus rows from `first` into the best.

    Most blocks of a long corpus have few groups of neighbours with any better
    than the worst so far, for any query; then only these are looked at.
    """
    count = best.values.shape[-1]
    few = count // 8 + 16
    greatest = maxima(scores, axis=0)
    better = greatest > best.values[:1, :, -1]

    def merge(groups):
      values, which = best_of(scores, groups, count, 0, greatest)
      values = jnp.concatenate([best.values[0], values], axis=1)
      rows = jnp.concatenate([best.rows[0], which + first], axis=1)
      values, which = lax.top_k(values, count)
      rows = jnp.take_along_axis(rows, which, axis=1, mode='clip')
      return Best(values[None], rows[None])

    return lax.cond(
        jnp.max(jnp.sum(better, axis=0)) <= few,
        lambda: merge(few),
        lambda: merge(count),
    )

  def _compile(self, update):
    """Runs on every device with its own state and rows of the block."""
    of_device, everywhere = PartitionSpec(_AXIS), PartitionSpec()

    def search_block(state, block, *rest):
      return jax.shard_map(
          update,
          mesh=self.mesh,
          in_specs=(of_device, of_device, *(everywhere for _ in rest)),
          out_specs=of_device,
          check_vma=False,
      )(state, block, *rest)

    return self._jit(search_block)

  def _jit(self, function, **kwargs):
    """`jax.jit`, whatever mesh the caller may have set for its own code."""
    program = jax.jit(function, **kwargs)

    def within(run):
      def inside(*args):
        with jax.set_mesh(self.mesh), jax.enable_x64(self._wide):
          return run(*args)

      return inside

    run = within(program)
    run.lower = within(program.lower)
    return run
