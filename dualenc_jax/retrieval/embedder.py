"""Encodes many texts with a tower, sorted by length, on the mesh."""

from collections.abc import Iterator
import functools
from typing import Any

import jax
import numpy as np

from dualenc_jax.data.ragged import Ragged
from dualenc_jax.models import DualEncoder
from dualenc_jax.training.partitioning import Partitioner

# Rows are padded to one of these lengths, so that compilations are few. The
# steps are 1.25 to 1.5 times: at most a third of a row is padding.
LENGTHS = (8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)


def padded_length(longest: int) -> int:
  """The shortest length of the lattice that holds `longest` tokens."""
  for length in LENGTHS:
    if longest <= length:
      return length
  return -(-longest // 128) * 128


class Embedder:
  """The two towers, compiled for batches of one size and a few lengths."""

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
      partitioner: the mesh; rows go over its data axis.
      param_shardings: shardings of the parameters, without those of the loss.
      batch_size: rows at once, rounded up to a multiple of the data axis.
    """
    self._data = partitioner.mesh.shape['data']
    self.batch_size = -(-batch_size // self._data) * self._data
    self._partitioner = partitioner

    @functools.partial(
        jax.jit,
        static_argnums=0,
        in_shardings=(param_shardings, partitioner.rows),
        out_shardings=partitioner.replicated,
    )
    def encode(method, params, tokens):
      with partitioner.scope():
        return model.apply({'params': params}, tokens, method=method)

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
    return self._collect(self.batches('encode_query', params, tokens, rows))

  def passages(
      self, params: Any, tokens: Ragged, rows: np.ndarray | None = None
  ) -> np.ndarray:
    """Embeds tokenised passages; see `queries`."""
    return self._collect(self.batches('encode_passage', params, tokens, rows))

  def batches(
      self,
      method: str,
      params: Any,
      tokens: Ragged,
      rows: np.ndarray | None = None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (positions in `rows`, their embeddings), the longest rows first.

    While one batch is on the device, the one before it is yielded.
    """
    if rows is None:
      rows = np.arange(len(tokens))
    lengths = tokens.lengths[rows]
    order = np.argsort(lengths, kind='stable')[::-1]
    # One query alone is not to cost a whole batch.
    size = self._data
    while size < min(len(order), self.batch_size):
      size = min(2 * size, self.batch_size)
    pending = None
    for start in range(0, len(order), size):
      positions = order[start : start + size]
      length = padded_length(int(lengths[positions[0]]))
      batch = np.zeros((size, length), np.int32)
      batch[: len(positions)] = tokens.padded(rows[positions], length)
      device_batch = jax.make_array_from_callback(
          batch.shape, self._partitioner.rows, lambda index, b=batch: b[index]
      )
      embeddings = self._encode(method, params, device_batch)
      if pending is not None:
        yield _fetch(*pending)
      pending = positions, embeddings
    if pending is not None:
      yield _fetch(*pending)

  def _collect(
      self, batches: Iterator[tuple[np.ndarray, np.ndarray]]
  ) -> np.ndarray:
    positions, embeddings = zip(*batches)
    positions = np.concatenate(positions)
    out = np.empty((len(positions), embeddings[0].shape[1]), np.float32)
    out[positions] = np.concatenate(embeddings)
    return out


def _fetch(
    positions: np.ndarray, embeddings: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
  return positions, np.asarray(embeddings)[: len(positions)]
