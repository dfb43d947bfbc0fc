"""Files for faiss: read by faiss, searched by it, and written again by it."""

import errno

import faiss
import faiss_levels
import ml_dtypes
import numpy as np
import pytest

from dualenc_jax.retrieval.index import faiss_files
from dualenc_jax.retrieval.index.rows import Rows
from dualenc_jax.utils.errors import UserError

faiss_levels.keep_queries()
N, D, K = 70, 16, 12
RNG = np.random.default_rng(3)
VECTORS = RNG.normal(size=(N, D)).astype(np.float32)
QUERIES = RNG.normal(size=(5, D)).astype(np.float32)


def rows(array: np.ndarray, block: int = 9) -> Rows:
  """Rows in blocks that do not divide them."""
  starts = range(0, len(array), block)
  return Rows(
      *array.shape, array.dtype, lambda: (array[i : i + block] for i in starts)
  )


def open_again(path, index):
  """Writes an index; faiss reads it, and writes the same bytes."""
  faiss_files.write(path, index)
  assert path.stat().st_size == index.nbytes
  kind = '_binary' if index.is_binary else ''
  found = getattr(faiss, f'read_index{kind}')(str(path))
  again = path.with_name('again')
  getattr(faiss, f'write_index{kind}')(found, str(again))
  assert again.read_bytes() == path.read_bytes()
  return found


def check(path, index, values, prepared=QUERIES):
  """faiss finds by the file what the vectors of its codes say.

  Args:
    path: to write.
    index: what to write.
    values: float64 [N, d], what codes stand for.
    prepared: what the transforms of the file make of the queries.
  """
  found = open_again(path, index)
  assert (found.ntotal, found.d) == (N, D)
  assert found.metric_type == faiss.METRIC_INNER_PRODUCT
  scores, hits = found.search(QUERIES, K)
  expected = prepared.astype(np.float64) @ values.T
  order = np.argsort(-expected, axis=1)[:, :K]
  np.testing.assert_array_equal(hits, order)
  np.testing.assert_allclose(
      scores, np.take_along_axis(expected, order, 1), rtol=1e-5, atol=1e-5
  )
  return found


def test_floats(tmp_path):
  check(tmp_path / 'flat', faiss_files.flat(rows(VECTORS)), VECTORS)
  for kind, dtype in (('fp16', np.float16), ('bf16', ml_dtypes.bfloat16)):
    index = faiss_files.scalar(f'QT_{kind}', rows(VECTORS).astype(dtype))
    check(tmp_path / kind, index, VECTORS.astype(dtype).astype(np.float64))


@pytest.mark.parametrize('ranges', [D, 1])
def test_eight_bits(tmp_path, ranges):
  """By dimension, or one range for all."""
  low = -3 + RNG.random(ranges).astype(np.float32)
  step = (0.02 + 0.01 * RNG.random(ranges)).astype(np.float32)
  codes = RNG.integers(0, 256, (N, D)).astype(np.uint8)
  values = low.astype(np.float64) + step * (codes + 0.5)
  index = faiss_files.int8(low, step, rows(codes))
  index = check(tmp_path / 'int8', index, values)
  kinds = {1: faiss.ScalarQuantizer.QT_8bit_uniform}
  assert index.sq.qtype == kinds.get(ranges, faiss.ScalarQuantizer.QT_8bit)


def packed(numbers, bits):
  """Numbers one bit after the other, the lowest first."""
  out = np.zeros((len(numbers), -(-numbers.shape[1] * bits // 8)), np.uint8)
  for row, line in zip(out, numbers):
    whole = sum(int(number) << (bits * m) for m, number in enumerate(line))
    row[:] = np.frombuffer(whole.to_bytes(len(row), 'little'), np.uint8)
  return out


@pytest.mark.parametrize('bits', [1, 8, 10])
def test_product_quantiser_of_any_bits(tmp_path, bits):
  # Of one bit more of them, or many codes would be equal.
  parts = D if bits == 1 else D // 2
  centroids = RNG.normal(size=(parts, 1 << bits, D // parts))
  centroids = centroids.astype(np.float32)
  numbers = RNG.integers(0, 1 << bits, (N, parts))
  values = centroids[np.arange(parts), numbers].reshape(N, D)
  # Codes that are equal would be hits of any order.
  assert len(np.unique(values, axis=0)) == N
  index = faiss_files.product(centroids, rows(packed(numbers, bits)))
  check(tmp_path / 'pq', index, values.astype(np.float64))


def test_maps_before_codes(tmp_path):
  """OPQ, and queries that are cut and normalised."""
  rotation = np.linalg.qr(RNG.normal(size=(D, D)))[0].astype(np.float32)
  centroids = RNG.normal(size=(4, 16, D // 4)).astype(np.float32)
  numbers = RNG.integers(0, 16, (N, 4))
  values = centroids[np.arange(4), numbers].reshape(N, D).astype(np.float64)
  index = faiss_files.pre_transform(
      [faiss_files.linear(rotation)],
      faiss_files.product(centroids, rows(packed(numbers, 4))),
  )
  check(tmp_path / 'opq', index, values @ rotation)
  short, cut = (
      x[:, : D // 2] / np.linalg.norm(x[:, : D // 2], axis=1, keepdims=True)
      for x in (VECTORS, QUERIES)
  )
  eye = np.eye(D // 2, D, dtype=np.float32)
  transforms = [faiss_files.linear(eye), faiss_files.unit(D // 2)]
  index = faiss_files.pre_transform(transforms, faiss_files.flat(rows(short)))
  check(tmp_path / 'cut', index, short.astype(np.float64), cut)


@pytest.mark.parametrize('dim', [64, 61])
def test_binary_counts_bits_that_differ(tmp_path, dim):
  vectors, queries = RNG.normal(size=(N, dim)), RNG.normal(size=(5, dim))
  index = faiss_files.binary(rows(np.packbits(vectors >= 0, axis=1)))
  found = open_again(tmp_path / 'binary', index)
  assert (found.d, found.ntotal) == (64, N)
  distances, hits = found.search(np.packbits(queries >= 0, axis=1), N)
  expected = ((queries >= 0)[:, None] != (vectors >= 0)).sum(-1)
  np.testing.assert_array_equal(distances, np.sort(expected, axis=1))
  np.testing.assert_array_equal(
      np.take_along_axis(expected, hits, 1), distances
  )


def test_ids_of_ones_own(tmp_path):
  """Also beyond 32 bits and below zero, of floats and of bits."""
  ids, bits = RNG.permutation(N) * (1 << 40) - 7, np.packbits(VECTORS >= 0, 1)
  inner = faiss_files.flat(rows(VECTORS))
  found = open_again(
      tmp_path / 'ids', faiss_files.with_ids(rows(ids[:, None]), inner)
  )
  _, hits = found.search(QUERIES, K)
  _, expected = found.index.search(QUERIES, K)
  np.testing.assert_array_equal(hits, ids[expected])
  inner = faiss_files.binary(rows(bits))
  found = open_again(
      tmp_path / 'bits', faiss_files.with_ids(rows(ids[:, None]), inner)
  )
  distances, hits = found.search(bits, 1)
  assert len(np.unique(bits, axis=0)) == N
  assert not distances.any() and (hits[:, 0] == ids).all()


def failing():
  yield VECTORS[:30]
  raise OSError(errno.ENOSPC, 'No space left on device')


@pytest.mark.parametrize(
    'blocks, error, message',
    [
        # Another count of rows.
        ([[VECTORS[:-1]]], ValueError, f'expected {N}'),
        ([failing()], UserError, 'No space left.*another --out'),
        # Blocks that are others when they are compared.
        ([[VECTORS], [VECTORS[::-1]]], UserError, 'differs from what was writ'),
    ],
)
def test_what_cannot_be_written_whole_leaves_nothing(
    tmp_path, blocks, error, message
):
  given = iter(blocks)
  index = faiss_files.flat(Rows(N, D, np.float32, lambda: next(given)))
  with pytest.raises(error, match=message):
    faiss_files.write(tmp_path / 'file', index, 'another --out')
  assert not list(tmp_path.iterdir())
