"""The device side of search: a corpus in blocks, and the best of its scores.

A block has vectors, or codes that a quantiser of `compression` scores. Scores
are float32, off by at most `exact_search.error_bounds`.

On accelerators every device keeps the best of its own rows; on CPUs the host
does, see `host_best`.

Shapes: Q queries, M rows of a block on one device, D embedding dim, W columns
of a block, D or those of codes, C best kept by each of n devices.
"""

from collections.abc import Iterator
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np

from dualenc_jax.retrieval.search.host_best import HostBest, Scores

# Rows of a block on one device; shards of an index are multiples of it, so
# that a block is a view of one shard.
BLOCK_ROWS = 2**17
# Rows of a block on CPUs. A product of a thousand queries has 100 GFLOP/s a
# core with these, 88 with twice as many, and 78 with 128 queries and 2**17.
_HOST_ROWS = 2**13
# Added to norms that bound errors, for numbers below 2^-126, and squares and
# products below it, that a device takes for zero.
LEAST_NORM = 2.0**-50
# XLA uses memory on a CPU in place at multiples of so many bytes. NumPy's own
# allocations begin 16 bytes off.
_ALIGNMENT = 64
# The corpus is not split finer than this to avoid rows of padding.
_LEAST_ROWS = 1024
# Neighbours of a group.
_GROUP = 32
_AXIS = 'devices'
# [n M, W], the corpus row of the first, and how many count, None for all.
Block = tuple[jax.Array, np.int32, np.int32 | None]


def allocate_rows(count: int, dim: int) -> np.ndarray:
  """Allocates float32 [count, dim] at a multiple of 64 bytes."""
  size = 4 * count * dim
  memory = np.empty(size + _ALIGNMENT, np.uint8)
  start = -memory.ctypes.data % _ALIGNMENT
  return memory[start : start + size].view(np.float32).reshape(count, dim)


def power_of_two(count: int) -> int:
  """The least power of two that is not below `count`."""
  return 1 << max(count - 1, 0).bit_length()


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


class Best(NamedTuple):
  """The best of each query on each device, unordered between devices.

  Attributes:
    values: float32 [n, Q, C], best first; -inf where there is none. They are
      scores, or minus the distances to a target.
    rows: int32 [n, Q, C], of the corpus.
    above: int32 [n, Q], the number of scores that are surely above the target.
  """

  values: Any
  rows: Any
  above: jax.Array


class TieWindow(NamedTuple):
  """The scores to find around a target of each query.

  Attributes:
    longest: the greatest norm of the block.
    targets: float32 [Q], scores to compare with.
    bounds: float32 [Q]; rounding moves a score by at most longest * bounds.
  """

  longest: Any
  targets: Any
  bounds: Any


class Programs:
  """The programs over some devices, compiled when they are first called.

  Attributes:
    devices: n.
    on_host: whether the host keeps the best, not each device.
    block_rows: the most rows of a block on one device.
    replicated, split: shardings of arrays over the devices.
  """

  def __init__(
      self, devices: tuple[jax.Device, ...], on_host: bool | None = None
  ):
    """Takes the devices in the order of their rows in a block.

    With an `on_host` of None the host keeps the best on CPUs of this process.
    """
    if on_host is None:
      own = jax.process_index()
      on_host = all(
          d.platform == 'cpu' and d.process_index == own for d in devices
      )
    self.devices = len(devices)
    self.on_host = on_host
    self.block_rows = _HOST_ROWS if on_host else BLOCK_ROWS
    # The host reads the scores of one query after another.
    self._axis = 1 if on_host else 0
    self.mesh = jax.sharding.Mesh(np.array(devices), (_AXIS,))
    self.replicated = jax.sharding.NamedSharding(self.mesh, PartitionSpec())
    self.split = jax.sharding.NamedSharding(self.mesh, PartitionSpec(_AXIS))
    # [n M, D] -> its greatest norm + LEAST_NORM; inf if not finite.
    self.longest = self._jit(_longest, out_shardings=self.replicated)
    self._update = self._jit(self._update_shards)
    self._merge = self._jit(_merge_devices, out_shardings=self.replicated)
    self._total = self._jit(
        lambda above: above.sum(axis=0), out_shardings=self.replicated
    )

  def start(self, queries: int, count: int) -> Best | HostBest:
    """Returns the state before the first block."""
    shape = self.devices, queries
    above = self._full(shape, np.int32(0))
    if self.on_host:
      return HostBest(queries, count, above)
    values = self._full((*shape, count), np.float32(-np.inf))
    return Best(values, self._full((*shape, count), np.int32(-1)), above)

  def _full(self, shape: tuple[int, ...], value: Any) -> jax.Array:
    whole = np.full(shape, value)
    return jax.make_array_from_callback(shape, self.split, whole.__getitem__)

  def update(
      self, state: Any, block: jax.Array, queries: jax.Array, quantiser: Any,
      start: Any, rows: Any, near: TieWindow | None = None,
  ) -> Any:
    """Begins to search a block, and returns the new state.

    Args:
      state: of `start` or of an earlier block; it must not be used again.
      block: [n M, W] of vectors, or of codes if there is a quantiser.
      queries: [Q, D].
      quantiser: it scores the codes; None for vectors.
      start: corpus row of the block's first row.
      rows: the number of rows that count, None for all.
      near: the scores to find; None for the greatest.
    """
    args = block, queries, quantiser, start, rows, near
    if not self.on_host:
      return self._update(state, *args)
    nothing = Best(None, None, state.above)
    scores, state.above = self._update(nothing, *args)
    state.add(scores, start)
    return state

  def wait(self, state: Any) -> None:
    """Waits for a state; on CPUs, for the oldest block that is not merged."""
    if self.on_host:
      state.merge_oldest()
    else:
      jax.block_until_ready(state)

  def finish(self, state: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values and rows [Q, C], best first, and `above` [Q], of all devices."""
    best = state.finish() if self.on_host else self._merge(state)
    return *jax.device_get(best), jax.device_get(self._total(state.above))

  def lower(
      self, rows: int, queries: int, dim: int, count: int,
      quantiser: Any = None,
  ) -> jax.stages.Lowered:
    """Lowers `update` for M, Q, D, C and float32 vectors, or codes."""

    def array(shape, dtype=np.float32, sharding=self.split):
      return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    kept = self.devices, queries, count
    width, dtype = dim, np.dtype(np.float32)
    if quantiser is not None:
      width, dtype = quantiser.width, np.dtype(quantiser.dtype)
      quantiser = jax.tree.map(
          lambda x: array(x.shape, sharding=self.replicated), quantiser
      )
    return self._update.lower(
        Best(array(kept), array(kept, np.int32), array(kept[:2], np.int32)),
        array((self.devices * rows, width), dtype),
        array((queries, dim), sharding=self.replicated),
        quantiser,
        array((), np.int32, self.replicated),
        None,
        None,
    )

  def _jit(self, function, **kwargs):
    """`jax.jit`, whatever mesh the caller may have set for its own code."""
    program = jax.jit(function, **kwargs)

    def within(run):
      def inside(*args):
        with jax.set_mesh(self.mesh):
          return run(*args)

      return inside

    run = within(program)
    run.lower = within(program.lower)
    return run

  def _update_shards(self, state, block, *rest):
    """Runs on every device with its own state and rows of the block."""
    of_device, everywhere = PartitionSpec(_AXIS), PartitionSpec()
    return jax.shard_map(
        self._update_shard,
        mesh=self.mesh,
        in_specs=(of_device, of_device, *(everywhere for _ in rest)),
        out_specs=of_device,
        check_vma=False,
    )(state, block, *rest)

  def _update_shard(
      self, state, block, queries, quantiser, start, rows, near
  ):
    scores = self._scores(queries, quantiser, block)
    size, above = len(block), state.above
    offset = lax.axis_index(_AXIS) * size
    if rows is not None:
      inside = jnp.arange(size, dtype=jnp.int32) + offset < rows
      inside = jnp.expand_dims(inside, 1 - self._axis)
      scores = jnp.where(inside, scores, -jnp.inf)
    if near is not None:
      distances = scores - jnp.expand_dims(near.targets, self._axis)
      margins = jnp.expand_dims(near.longest * near.bounds, self._axis)
      # Sums of ones are exact in float32, and vectorised, unlike integers.
      surely = (distances > margins).astype(jnp.float32)
      above += jnp.sum(surely, axis=self._axis).astype(jnp.int32)[None]
      distances = jnp.abs(distances)
      scores = jnp.where(distances <= margins, -distances, -jnp.inf)
    if self.on_host:
      return Scores(scores[None], group_maxima(scores)[None]), above
    return _merge_block(state, scores, start + offset)._replace(above=above)

  def _scores(self, queries, quantiser, block):
    """Scores of a device's rows: [M, Q], or [Q, M] for the host."""
    if quantiser is not None:
      scores = quantiser.scores(queries, block)
      return scores if self._axis else scores.T
    sides = [queries, block.astype(queries.dtype)]
    return lax.dot_general(
        *(sides if self._axis else reversed(sides)),
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
    )


# The programs over the devices of a mesh, compiled once a process.
programs = functools.cache(Programs)


def _longest(block: jax.Array) -> jax.Array:
  block = block.astype(jnp.float32)
  squares = jnp.sum(block * block, axis=1)
  # A maximum on the CPU passes over NaN.
  squares = jnp.where(squares < jnp.inf, squares, jnp.inf)
  return jnp.sqrt(jnp.max(squares)) + LEAST_NORM


def _merge_devices(best: Best) -> tuple[jax.Array, jax.Array]:
  """Values and rows [Q, C] of all n devices."""
  _, queries, count = best.values.shape
  values, rows = (
      x.swapaxes(0, 1).reshape(queries, -1) for x in (best.values, best.rows)
  )
  values, which = lax.top_k(values, count)
  return values, jnp.take_along_axis(rows, which, axis=1, mode='clip')


def _merge_block(best: Best, scores: jax.Array, first: jax.Array) -> Best:
  """Merges scores [M, Q] of corpus rows from `first` on into the best.

  Most blocks of a long corpus have few groups of neighbours with any better
  than the worst so far, for any query; then only these are looked at.
  """
  count = best.values.shape[-1]
  few = count // 8 + 16
  greatest = group_maxima(scores, axis=0)
  better = greatest > best.values[:1, :, -1]

  def merge(groups):
    values, which = top_scores(scores, groups, count, 0, greatest)
    values = jnp.concatenate([best.values[0], values], axis=1)
    rows = jnp.concatenate([best.rows[0], which + first], axis=1)
    values, which = lax.top_k(values, count)
    rows = jnp.take_along_axis(rows, which, axis=1, mode='clip')
    return best._replace(values=values[None], rows=rows[None])

  return lax.cond(
      jnp.max(jnp.sum(better, axis=0)) <= few,
      lambda: merge(few),
      lambda: merge(count),
  )


def group_maxima(scores: jax.Array, axis: int = 1) -> jax.Array:
  """The greatest of each group along an axis, or all where they do not fit.

  XLA sorts on one core of a CPU; with these it sorts only a small part.
  """
  if scores.shape[axis] % _GROUP:
    return scores
  return _split_groups(scores, axis).max(axis=axis + 1)


def top_scores(
    scores: jax.Array, groups: int, count: int, axis: int = 1,
    greatest: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The `count` best of the groups with the greatest maxima, or of all.

  With as many groups as hits it is the best of all. Scores are [Q, M], or
  [M, Q] if `axis` is 0; `greatest` are their `group_maxima`, where known. The
  result is scores, best first, and their places, int32, [Q, count] each.
  """
  size = scores.shape[axis]
  if size < 4 * groups * _GROUP or size % _GROUP:
    return lax.top_k(_by_query(scores, axis), min(count, size))
  if greatest is None:
    greatest = group_maxima(scores, axis)
  _, which = lax.top_k(_by_query(greatest, axis), groups)
  members = jnp.take_along_axis(
      _split_groups(scores, axis),
      jnp.expand_dims(_by_query(which, axis), axis + 1),
      axis=axis,
      mode='clip',
  )
  shape = list(scores.shape)
  shape[axis] = groups * _GROUP
  members = _by_query(members.reshape(shape), axis)
  values, place = lax.top_k(members, min(count, groups * _GROUP))
  group = jnp.take_along_axis(which, place // _GROUP, axis=1, mode='clip')
  return values, group * _GROUP + place % _GROUP


def _split_groups(scores: jax.Array, axis: int) -> jax.Array:
  """The axis in two, groups and their neighbours."""
  before, after = scores.shape[:axis], scores.shape[axis + 1 :]
  return scores.reshape(*before, -1, _GROUP, *after)


def _by_query(x: jax.Array, axis: int) -> jax.Array:
  """[Q, M] of [M, Q] where the axis is 0, and the other way round."""
  return x if axis else x.T
