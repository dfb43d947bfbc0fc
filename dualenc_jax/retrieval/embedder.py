"""Encodes many texts with a tower, sorted by length, on the mesh.

Texts are cut into chunks whose shape and content depend on the texts alone; a
device encodes whole chunks, all devices by the same program. So an embedding is
the same to the last bit on any number of devices of a kind. Devices on the
model axis share a chunk, and their number does show in the last bits.
"""

import collections
from collections.abc import Iterator
import dataclasses
import functools
from typing import Any

from flax import linen as nn
import jax
from jax.sharding import PartitionSpec
import numpy as np

from dualenc_jax.data.ragged import Ragged
from dualenc_jax.models import DualEncoder
from dualenc_jax.training.partitioning import Partitioner

# Tokens of a chunk at most, padding counted; it has more than half of them
# unless `batch_size` is in the way. On a CPU the activations of small chunks
# stay in the cache. An accelerator wants products large enough to fill it, and
# calls long enough to hide the host behind them.
CPU_TOKENS = 2048
ACCELERATOR_TOKENS = 32768
# Steps that wait on the devices while the host is busy with an earlier one.
AHEAD = 2


@dataclasses.dataclass(frozen=True)
class Step:
  """What all devices encode at once: a chunk each, or nothing.

  Attributes:
    start: first of its texts, in the order of length.
    stop: after the last of them.
    rows: of each chunk; those without a text are padding.
    length: tokens of each row.
  """

  start: int
  stop: int
  rows: int
  length: int


def padded_length(longest: int) -> int:
  """The shortest length of the lattice that holds `longest` tokens.

  The lattice has four lengths for each doubling and no two closer than 8, so
  that compilations are few and, from 32 tokens on, at most a fifth is padding.
  """
  step = 1 << max((longest - 1).bit_length() - 3, 3)
  return max(-(-longest // step), 1) * step


def plan_steps(
    lengths: np.ndarray, devices: int, batch_size: int, max_tokens: int
) -> Iterator[Step]:
  """Cuts texts into chunks, and deals consecutive ones to devices.

  Args:
    lengths: of the texts, in descending order.
    devices: chunks a step at most; it decides nothing about a chunk.
    batch_size: rows of a chunk at most.
    max_tokens: of a chunk at most, unless a text alone has more.
  """
  start, count = 0, len(lengths)
  while start < count:
    length = padded_length(int(lengths[start]))
    rows = _power_of_two(max(min(batch_size, max_tokens // length), 1))
    # One query alone is not to cost a whole chunk.
    while rows >= 2 * count:
      rows //= 2
    stop = start
    for _ in range(devices):
      if stop < count and padded_length(int(lengths[stop])) == length:
        stop += rows
    yield Step(start, min(stop, count), rows, length)
    start = stop


class Embedder:
  """The two towers, compiled for chunks of a few shapes."""

  def __init__(
      self,
      model: DualEncoder,
      partitioner: Partitioner,
      param_shardings: Any,
      batch_size: int,
  ):
    """Plans; compiles when first called.

    Args:
      model: the dual encoder.
      partitioner: the mesh; chunks go over its data axis. Parameters that are
        sharded over that axis are gathered on every device.
      param_shardings: shardings of the parameters, without those of the loss.
      batch_size: most rows that a device encodes at once. Long texts are fewer,
        so that `CPU_TOKENS` or `ACCELERATOR_TOKENS` hold.
    """
    self._partitioner = partitioner
    self._batch_size = batch_size
    self._features = model.projection.features
    platform = partitioner.mesh.devices.flat[0].platform
    self._max_tokens = CPU_TOKENS if platform == 'cpu' else ACCELERATOR_TOKENS
    # Within a chunk there is no data axis any more.
    rules = [
        (name, None if axis == 'data' else axis)
        for name, axis in partitioner.logical_rules
    ]

    @functools.partial(
        jax.jit,
        static_argnums=0,
        in_shardings=(param_shardings, partitioner.rows),
        out_shardings=partitioner.replicated,
    )
    def encode(method, params, tokens):
      """One chunk for each device of the data axis: [n, R, L] -> [n, R, D]."""

      def encode_chunk(params, tokens):
        with nn.logical_axis_rules(rules):
          chunk = model.apply({'params': params}, tokens[0], method=method)
        return chunk[None]

      with partitioner.scope():
        return jax.shard_map(
            encode_chunk,
            mesh=partitioner.mesh.abstract_mesh,
            axis_names={'data'},
            in_specs=(PartitionSpec(), PartitionSpec('data')),
            out_specs=PartitionSpec('data'),
        )(params, tokens)

    self._encode = encode

  def queries(
      self, params: Any, tokens: Ragged, rows: np.ndarray | None = None
  ) -> np.ndarray:
    """Embeds tokenised queries.

    Args:
      params: the model's parameters.
      tokens: token ids.
      rows: which of them, in the order wanted; None for all.

    Returns:
      float32 [len(rows), D].
    """
    return self._collect('encode_query', params, tokens, rows)

  def passages(
      self, params: Any, tokens: Ragged, rows: np.ndarray | None = None
  ) -> np.ndarray:
    """Embeds tokenised passages; see `queries`."""
    return self._collect('encode_passage', params, tokens, rows)

  def batches(
      self,
      method: str,
      params: Any,
      tokens: Ragged,
      rows: np.ndarray | None = None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Encodes step by step, the longest rows first.

    The devices work on the next steps while one is yielded; no more than these
    are in memory.

    Args:
      method: 'encode_query' or 'encode_passage'.
      params: the model's parameters.
      tokens: token ids.
      rows: which of them; None for all.

    Yields:
      (int64 [n] positions in `rows`, float32 [n, D] their embeddings).
    """
    if rows is None:
      rows = np.arange(len(tokens))
    lengths = tokens.lengths[rows]
    order = np.argsort(-lengths, kind='stable')
    devices = self._partitioner.mesh.shape['data']
    waiting = collections.deque()
    for step in plan_steps(
        lengths[order], devices, self._batch_size, self._max_tokens
    ):
      positions = order[step.start : step.stop]
      chunks = np.zeros((devices, step.rows, step.length), np.int32)
      chunks.reshape(-1, step.length)[: len(positions)] = tokens.padded(
          rows[positions], step.length
      )
      device_chunks = jax.make_array_from_callback(
          chunks.shape, self._partitioner.rows, lambda i, c=chunks: c[i]
      )
      embeddings = self._encode(method, params, device_chunks)
      waiting.append((positions, embeddings))
      if len(waiting) > AHEAD:
        yield _fetch(*waiting.popleft())
    while waiting:
      yield _fetch(*waiting.popleft())

  def _collect(self, method, params, tokens, rows) -> np.ndarray:
    count = len(tokens) if rows is None else len(rows)
    out = np.empty((count, self._features), np.float32)
    for positions, embeddings in self.batches(method, params, tokens, rows):
      out[positions] = embeddings
    return out


def _power_of_two(limit: int) -> int:
  """The largest that is not above `limit`."""
  return 1 << (limit.bit_length() - 1)


def _fetch(
    positions: np.ndarray, embeddings: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
  flat = np.asarray(embeddings).reshape(-1, embeddings.shape[-1])
  return positions, flat[: len(positions)]
