"""Encodes many texts with a tower, sorted by length, on the mesh.

Texts are cut into chunks whose shape and content depend on the texts alone; a
device encodes whole chunks, all devices by the same program. So an embedding is
the same to the last bit on any number of devices of a kind. Devices on the
model axis share a chunk, and their number does show in the last bits.
"""

import collections
from collections.abc import Iterable, Iterator
import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

from flax import linen as nn
import jax
from jax.sharding import PartitionSpec
import numpy as np

from dualenc_jax.models import DualEncoder
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.text.ragged import Ragged

# Chunks of one length at least, while there are texts: a set too small to keep
# many devices busy at many lengths, or to be worth many programs, has few.
LEAST_CHUNKS = 8
# Steps that wait on the devices while the host is busy with an earlier one.
AHEAD = 2


@dataclasses.dataclass(frozen=True)
class Shapes:
  """Which shapes chunks have.

  Attributes:
    max_tokens: of a chunk, padding counted; it has more than half of them
      unless the batch size is in the way.
    lengths: that rows are padded to, for each doubling of the length; no two
      are closer than 8.
  """

  max_tokens: int
  lengths: int

  def padded_length(self, longest: int) -> int:
    """The shortest length that holds `longest` tokens."""
    step = max((1 << (longest - 1).bit_length()) // (2 * self.lengths), 8)
    return max(-(-longest // step), 1) * step


# On a CPU the activations of small chunks stay in the cache, tokens are dear,
# and a program compiles in about a second.
CPU = Shapes(max_tokens=2048, lengths=8)
# An accelerator wants products large enough to fill it, calls long enough to
# hide the host behind them, and fewer programs, which take longer to compile.
ACCELERATOR = Shapes(max_tokens=32768, lengths=4)


class Chunk(NamedTuple):
  """Texts that a device encodes at once.

  Attributes:
    start: first of them, in descending order of length.
    stop: after the last.
    rows: a text each; those that are left over are padding.
    length: tokens of each row.
  """

  start: int
  stop: int
  rows: int
  length: int


def cut(
    lengths: np.ndarray, batch_size: int, shapes: Shapes
) -> Iterator[Chunk]:
  """Cuts texts into chunks, which no device count has a say in.

  Args:
    lengths: of the texts, in descending order.
    batch_size: rows of a chunk at most.
    shapes: of chunks; a text that is longer than one is a chunk.
  """
  start, count = 0, len(lengths)
  while start < count:
    length = shapes.padded_length(int(lengths[start]))
    rows = max(min(batch_size, shapes.max_tokens // length), 1)
    rows = 1 << (rows.bit_length() - 1)
    # One query alone is not to cost a whole chunk.
    while rows >= 2 * count:
      rows //= 2
    chunks = 0
    while start < count and (
        chunks < LEAST_CHUNKS
        or shapes.padded_length(int(lengths[start])) == length
    ):
      yield Chunk(start, min(start + rows, count), rows, length)
      start += rows
      chunks += 1


def deal(chunks: Iterable[Chunk], devices: int) -> Iterator[list[Chunk]]:
  """Groups consecutive chunks of one shape: at most one for each device."""
  for _, alike in itertools.groupby(chunks, lambda c: (c.rows, c.length)):
    while step := list(itertools.islice(alike, devices)):
      yield step


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
      batch_size: most rows that a device encodes at once, rounded down to a
        power of two; fewer where `Shapes.max_tokens` says so.
    """
    self._partitioner = partitioner
    self._batch_size = batch_size
    self._features = model.projection.features
    platform = partitioner.mesh.devices.flat[0].platform
    self._shapes = CPU if platform == 'cpu' else ACCELERATOR
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
    chunks = cut(lengths[order], self._batch_size, self._shapes)
    for step in deal(chunks, devices):
      positions = order[step[0].start : step[-1].stop]
      rows_each, length = step[0].rows, step[0].length
      # A device without a chunk gets padding.
      host = np.zeros((devices, rows_each, length), np.int32)
      host.reshape(-1, length)[: len(positions)] = tokens.padded(
          rows[positions], length
      )
      device_chunks = jax.make_array_from_callback(
          host.shape, self._partitioner.rows, lambda i, host=host: host[i]
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


def _fetch(
    positions: np.ndarray, embeddings: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
  flat = np.asarray(embeddings).reshape(-1, embeddings.shape[-1])
  return positions, flat[: len(positions)]
