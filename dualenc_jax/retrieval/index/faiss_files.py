"""Files of faiss, written without faiss: flat, scalar, product, binary.

Each function returns an index, in the order of the bytes of its file; indexes
are put inside one another as in faiss:

  codes = product(centroids, Rows.of(codes))
  write(path, with_ids(ids, pre_transform([linear(matrix)], codes)))

Numbers are little-endian; a class begins with four letters, an array with a
uint64, the count of its elements. Scores are inner products; of binary indexes
they are Hamming distances. faiss 1.15 reads these files, and writes the same
bytes again.

Shapes: N rows, d their dim, M sub-vectors.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import pathlib
import struct

import numpy as np

from dualenc_jax.retrieval.index.rows import Rows
from dualenc_jax.utils import files
from dualenc_jax.utils.errors import UserError

# Faiss's numbers of scalar quantisers, whose codes are uint8, uint8, float16
# and bfloat16.
SCALAR = {'QT_8bit': 0, 'QT_8bit_uniform': 2, 'QT_fp16': 4, 'QT_bf16': 7}
_INNER_PRODUCT, _L2 = 0, 1
# Two fields of the header that faiss no longer reads.
_UNUSED = 1 << 20
_TRAINED = struct.pack('<?', True)


@dataclasses.dataclass(frozen=True)
class Index:
  """An index: the bytes of its file.

  Attributes:
    dim: d of the vectors that it takes; bits, of a binary one.
    count: N.
    parts: of the file, in order.
    is_binary: whether faiss opens it by `read_index_binary`.
  """

  dim: int
  count: int
  parts: tuple[bytes | Rows, ...]
  is_binary: bool = False

  @property
  def nbytes(self) -> int:
    """The size of the file."""
    return sum(
        part.nbytes if isinstance(part, Rows) else len(part)
        for part in self.parts
    )

  def chunks(self) -> Iterator[bytes | memoryview]:
    """All bytes of the file, as buffers."""
    for part in self.parts:
      if isinstance(part, bytes):
        yield part
        continue
      for block in part:
        order = block.dtype.newbyteorder('<')
        block = np.ascontiguousarray(block.astype(order, copy=False))
        yield block.reshape(-1).view(np.uint8).data


@dataclasses.dataclass(frozen=True)
class Transform:
  """A map of vectors in front of an index: dims that it takes, its bytes."""

  dim_in: int
  content: bytes


def flat(rows: Rows) -> Index:
  """IndexFlatIP of float32 [N, d]."""
  return _index(b'IxFI', rows.width, rows.count, *_vector(rows))


def scalar(
    kind: str, rows: Rows, trained: Sequence[float] | np.ndarray = ()
) -> Index:
  """IndexScalarQuantizer.

  Args:
    kind: a key of `SCALAR`.
    rows: codes [N, d] of its dtype, as `SCALAR` says.
    trained: of QT_8bit all d least values, then all d ranges; of
      QT_8bit_uniform one each; of the others nothing. A code c stands for
      least + range (c + 1/2)/255.
  """
  d, each = rows.width, rows.nbytes // max(rows.count, 1)
  settings = struct.pack('<iifQQ', SCALAR[kind], 0, 0.0, d, each)
  numbers = np.asarray(trained, '<f4')
  # The codes are bytes to faiss, whatever their dtype.
  codes = struct.pack('<Q', rows.nbytes), rows
  return _index(b'IxSQ', d, rows.count, settings, *_vector(numbers), *codes)


def int8(low: np.ndarray, step: np.ndarray, rows: Rows) -> Index:
  """`scalar` of uint8 codes c [N, d] that stand for low + step (c + 1/2).

  `low` and `step` are float32 [d], or [1] where all dimensions share them.
  """
  is_shared = len(low) == 1 and rows.width > 1
  kind = 'QT_8bit_uniform' if is_shared else 'QT_8bit'
  return scalar(kind, rows, np.concatenate([low, np.float32(255) * step]))


def product(centroids: np.ndarray, rows: Rows) -> Index:
  """IndexPQ of centroids float32 [M, 2^b, d/M].

  Rows are uint8 [N, ceil(M b/8)], the M numbers of b bits each, lowest bits
  first.
  """
  parts, size, each = centroids.shape
  d, bits = parts * each, (size - 1).bit_length()
  sizes = struct.pack('<QQQ', d, parts, bits)
  numbers = _vector(np.asarray(centroids, '<f4'))
  # The plain search, no encoded signs, no polysemous threshold.
  settings = struct.pack('<i?i', 0, False, 0)
  return _index(
      b'IxPq', d, rows.count, sizes, *numbers, *_vector(rows), settings
  )


def linear(matrix: np.ndarray) -> Transform:
  """LinearTransform y = A x of float32 A [d_out, d_in]: PCA, OPQ, rotations."""
  d_out, d_in = matrix.shape
  numbers = np.asarray(matrix, '<f4')
  # No bias in front, and an empty one behind the matrix.
  head = struct.pack('<?Q', False, numbers.size)
  sizes = struct.pack('<Qii', 0, d_in, d_out)
  content = b'LTra' + head + numbers.tobytes() + sizes + _TRAINED
  return Transform(d_in, content)


def unit(dim: int) -> Transform:
  """NormalizationTransform: to length one."""
  content = b'VNrm' + struct.pack('<fii', 2.0, dim, dim) + _TRAINED
  return Transform(dim, content)


def pre_transform(transforms: Sequence[Transform], inner: Index) -> Index:
  """IndexPreTransform: queries go through the transforms, the first first."""
  content = [struct.pack('<i', len(transforms))]
  content += [t.content for t in transforms]
  return _index(
      b'IxPT', transforms[0].dim_in, inner.count, *content, *inner.parts
  )


def binary(rows: Rows) -> Index:
  """IndexBinaryFlat of uint8 [N, w], as `np.packbits` has them.

  Where d is no multiple of 8 it has the bits that fill the last byte, too: 0 in
  `np.packbits` of passages and queries, so that no distance changes.
  """
  head = _binary_header(8 * rows.width, rows.count)
  parts = b'IBxF' + head, *_vector(rows)
  return Index(8 * rows.width, rows.count, parts, is_binary=True)


def with_ids(ids: Rows, inner: Index) -> Index:
  """IndexIDMap, or IndexBinaryIDMap: hits have these ids, int64 [N, 1]."""
  if not inner.is_binary:
    return _index(b'IxMp', inner.dim, inner.count, *inner.parts, *_vector(ids))
  head = b'IBMp' + _binary_header(inner.dim, inner.count)
  parts = head, *inner.parts, *_vector(ids)
  return dataclasses.replace(inner, parts=parts)


def write(
    path: pathlib.Path, index: Index, instead: str = 'another folder'
) -> None:
  """Writes a file that appears when it is complete and was read again.

  `instead` is as of `files.writing`. UserError where it cannot be written, or
  is not what was written; nothing is left then.
  """
  with files.writing(path, instead):
    with files.replacing(path, sync=True) as file:
      for chunk in index.chunks():
        file.write(chunk)
      file.flush()
      _check_written(pathlib.Path(file.name), path, index)


def _check_written(
    partial: pathlib.Path, path: pathlib.Path, index: Index
) -> None:
  """Compares every byte."""
  with partial.open('rb') as file:
    for chunk in index.chunks():
      start = file.tell()
      if file.read(len(chunk)) != bytes(chunk):
        raise UserError(
            f'{path} differs from what was written, after byte {start}. Check'
            ' the disk, and convert again.'
        )
    if file.read(1):
      raise UserError(f'{path} goes on after what was written.')


def _index(letters: bytes, dim: int, count: int, *parts: bytes | Rows) -> Index:
  """An index of floats, with its header in front."""
  header = struct.pack('<iqqq', dim, count, _UNUSED, _UNUSED)
  metric = struct.pack('<i', _INNER_PRODUCT)
  return Index(dim, count, (letters + header + _TRAINED + metric, *parts))


def _binary_header(dim: int, count: int) -> bytes:
  sizes = struct.pack('<iiq', dim, dim // 8, count)
  return sizes + _TRAINED + struct.pack('<i', _L2)


def _vector(array: np.ndarray | Rows) -> tuple[bytes, bytes | Rows]:
  """The count of elements, and the elements."""
  if isinstance(array, Rows):
    return struct.pack('<Q', array.count * array.width), array
  return struct.pack('<Q', array.size), array.tobytes()
