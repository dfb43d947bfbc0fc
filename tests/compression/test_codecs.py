"""Codecs against NumPy, and the search through them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dualenc_jax.retrieval import compression
from dualenc_jax.retrieval.compression import (
  codec as codec_lib,
  Coded,
)
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.retrieval.search.exact_search import make_search
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

N, D, Q = 3001, 24, 9
# Every kind of map and of quantiser, and of bits in a byte.
NAMES = (
    'fp16', 'bf16', 'int8', 'pca:8', 'pq:3', 'pq:6x3', 'pq:24x3', 'opq:8x4',
    'hamming', 'truncate:12+int8', 'pca:12+sign',
)


@pytest.fixture(scope='module')
def vectors():
  rng = np.random.default_rng(0)
  found = rng.normal(size=(N, D)) * np.linspace(1, 0.2, D) + 0.1
  found /= np.linalg.norm(found, axis=1, keepdims=True)
  # Some are equal, so that ids have to decide.
  found[2000:2500] = found[1000:1500]
  return found.astype(np.float32)


@pytest.fixture(scope='module')
def queries(vectors):
  rng = np.random.default_rng(1)
  found = vectors[::331][:Q] + 0.1 * rng.normal(size=(Q, D))
  return found.astype(np.float32)


IDS = [f'p{i * 7919 % N}' for i in range(N)]


def trained(name, vectors):
  return compression.spec(name).fit(vectors[:1200], seed=3)


def unpacked_by_hand(codes, bits, count):
  """Whole numbers of `bits` bits, lowest first, by Python's integers."""
  out = np.empty((len(codes), count), int)
  for row, code in enumerate(codes):
    number = int.from_bytes(code.tobytes(), 'little')
    for i in range(count):
      out[row, i] = number >> (bits * i) & (2**bits - 1)
  return out


def decoded_by_hand(codec, codes):
  """What codes stand for, float64, from the arrays of the codec alone."""
  q = codec.quantiser
  match type(q).__name__:
    case 'Floats':
      return codes.astype(np.float64)
    case 'Int8':
      return np.float64(q.low) + np.float64(q.step) * (codes + 0.5)
    case 'Product':
      numbers = unpacked_by_hand(codes, q.bits, q.parts)
      parts = [np.float64(q.score)[m, numbers[:, m]] for m in range(q.parts)]
      return np.concatenate(parts, axis=1)
  signs = np.empty((len(codes), q.dim))
  for d in range(q.dim):
    signs[:, d] = np.where(codes[:, d // 8] >> (7 - d % 8) & 1, 1.0, -1.0)
  return signs


@pytest.mark.parametrize('name', NAMES)
def test_scores_are_products_with_what_codes_stand_for(
    name, vectors, queries, tmp_path
):
  codec = trained(name, vectors)
  codes = codec.encode(vectors[:500])
  assert codes.nbytes == 500 * codec.bytes_per_passage
  own = codec.queries(queries)
  by_hand = decoded_by_hand(codec, codes)
  lengths = np.linalg.norm(by_hand, axis=1)
  scale = np.linalg.norm(own, axis=1)[:, None] * lengths
  found = np.asarray(
      codec.quantiser.scores(jnp.asarray(own), jnp.asarray(codes))
  )
  assert found.dtype == np.float32
  error = np.abs(found - own.astype(np.float64) @ by_hand.T) / scale
  assert np.max(error) < 1e-6
  host = codec.decode(codes)
  np.testing.assert_allclose(host, by_hand, rtol=2e-7)
  bound = codec.quantiser.norm_bound
  longest = np.linalg.norm(host.astype(np.float64), axis=1).max()
  assert bound is None or longest <= bound * (1 + 1e-12)
  # Devices decode to the bits of the host. Queries of hamming are signs.
  if name != 'hamming':
    units = np.eye(host.shape[1], dtype=np.float32)
    scores = jax.jit(lambda q, c: q.scores(units, c))
    found = np.asarray(scores(codec.quantiser, codes))
    np.testing.assert_array_equal(found.T, host)
  path = tmp_path / codec_lib.FILE
  codec_lib.save(path, codec)
  again, digest = codec_lib.load(path)
  assert (again.name, again.dim, again.rescored) == (codec.name, D, None)
  np.testing.assert_array_equal(codes, again.encode(vectors[:500]), strict=True)
  np.testing.assert_array_equal(host, again.decode(codes))
  np.testing.assert_array_equal(own, again.queries(queries))
  assert codec_lib.load(path)[1] == digest and len(digest) == 64


def ranked_by_hand(scores):
  """Rows by score, then id, both descending, of each query."""
  rows = sorted(range(N), key=lambda i: IDS[i], reverse=True)
  rows = np.array(rows)
  return np.stack([rows[np.argsort(-s[rows], kind='stable')] for s in scores])


def searched(codec, vectors, devices):
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ('data',))
  return make_search(Coded(codec, codec.encode(vectors)), IDS, mesh)


@pytest.mark.parametrize('name, devices', [
    ('int8', 3), ('pq:24x2', 8), ('pq:6x4', 1), ('sign', 3), ('hamming', 8),
])
def test_the_same_hits_on_any_mesh(name, devices, vectors, queries):
  codec = trained(name, vectors)
  search = searched(codec, vectors, devices)
  by_hand = decoded_by_hand(codec, codec.encode(vectors))
  exact = codec.queries(queries).astype(np.float64) @ by_hand.T
  expected = ranked_by_hand(exact.astype(np.float32))
  found = search.top_k(queries, 60)
  np.testing.assert_array_equal(found.indices, expected[:, :60])
  gold = [[row[5 * i + 70], row[-1]] for i, row in enumerate(expected.tolist())]
  np.testing.assert_array_equal(
      search.gold_ranks(queries, gold), [5 * i + 71 for i in range(Q)]
  )


@pytest.mark.parametrize('rescored, devices', [(1, 8), (900, 1), (10 * N, 8)])
def test_two_steps(rescored, devices, vectors, queries):
  codec = trained(f'binary:{rescored}', vectors)
  search = searched(codec, vectors, devices)
  signs = np.where(vectors >= 0, 1.0, -1.0)
  by_hamming = ranked_by_hand(np.where(queries >= 0, 1.0, -1.0) @ signs.T)
  exact = (queries.astype(np.float64) @ signs.T).astype(np.float32)
  expected = []
  for scores, first in zip(exact, by_hamming):
    near = set(first[:rescored].tolist())
    best = [row for row in ranked_by_hand([scores])[0] if row in near]
    expected.append([*best, *first[rescored:]])
  count = min(rescored, N)
  found = search.top_k(queries, count)
  np.testing.assert_array_equal(found.indices, np.array(expected)[:, :count])
  gold = [[int(rows[3 * i]), int(rows[-1])] for i, rows in enumerate(expected)]
  np.testing.assert_array_equal(
      search.gold_ranks(queries, gold), [3 * i + 1 for i in range(Q)]
  )
  # Without the best hit all that are below it are one place further up.
  if rescored > 1:
    own = np.array([rows[0] for rows in expected])
    below = [[int(rows[3 * i + 2])] for i, rows in enumerate(expected)]
    np.testing.assert_array_equal(
        search.gold_ranks(queries, below, own), [3 * i + 2 for i in range(Q)]
    )
  if rescored < N:
    with pytest.raises(UserError, match=f'use binary:{rescored + 1}'):
      search.top_k(queries, rescored + 1)


def test_int8_is_half_a_step_off_at_most(vectors):
  codec = compression.spec('int8').fit(vectors)
  # Steps are rounded up by at most 2^-15.
  ranges = np.ptp(vectors, axis=0) / 255
  np.testing.assert_allclose(codec.quantiser.step, ranges, rtol=2**-14)
  error = np.abs(codec.decode(codec.encode(vectors)) - vectors)
  assert np.all(error <= 0.5 * codec.quantiser.step * (1 + 1e-5))


def test_ends_of_ranges_signs_and_float16(vectors):
  quantiser = compression.spec('int8:uniform').fit(vectors).quantiser
  assert np.ptp(quantiser.low) == np.ptp(quantiser.step) == 0
  assert quantiser.low[0] == vectors.min()
  # Zero is a one on both sides.
  codec = compression.spec('hamming').fit(np.ones((2, 8), np.float32))
  zeros = np.zeros((1, 8), np.float32)
  assert codec.encode(zeros) == 255
  np.testing.assert_array_equal(codec.queries(-zeros), np.ones((1, 8)))
  large = np.full((2, 8), 7e4, np.float32)
  with pytest.raises(UserError, match='row 0 .*7e\\+04.*float16 ends at 65504'):
    compression.spec('fp16').fit(large).encode(large)


def test_constant_dimensions(vectors):
  flat = vectors.copy()
  flat[:, 3] = 0.25
  for name in ('int8', 'opq:8x4', 'pca:8', 'sign'):
    codec = compression.spec(name).fit(flat)
    decoded = codec.decode(codec.encode(flat))
    assert np.isfinite(decoded).all(), name
    if name == 'int8':
      np.testing.assert_array_equal(decoded[:, 3], 0.25)


def test_truncation_is_of_length_one(vectors, queries):
  codec = compression.spec('truncate:8').fit(vectors)
  expected = vectors[:, :8].astype(np.float64)
  expected /= np.linalg.norm(expected, axis=1, keepdims=True)
  np.testing.assert_allclose(codec.encode(vectors), expected, atol=1e-7)
  np.testing.assert_allclose(
      np.linalg.norm(codec.queries(queries), axis=1), 1, atol=1e-6
  )


@pytest.mark.parametrize('name, message', [
    ('int9', "called 'int9'. Did you mean 'int8'"),
    ('pq:\u0668', "'pq:\u0668': expected pq:96"),
    ('pq:8+int8', 'nothing may follow pq:8'),
    ('pq:7', 'does not divide it. Take 4 or 6 or 8'),
    ('pq:6x9', 'pq of 9 bits: expected 1 to 8'),
    ('pca:25', 'of dim 24: expected at most 24'),
    ('pca:8:queries', "'pca:8:queries': expected pca:256"),
    ('int8:q0.99', 'expected int8 or int8:uniform'),
    ('pq:6', 'pq:6 needs .* 256 vectors .* 100'),
])
def test_names_and_sizes_that_do_not_suit(name, message, vectors):
  with pytest.raises(UserError, match=message):
    compression.spec(name).fit(vectors[:100])


def test_vectors_that_are_not_finite(vectors):
  broken = vectors.copy()
  broken[7, 3] = np.nan
  for name in ('int8', 'pq:6x4', 'pca:8'):
    with pytest.raises(UserError, match='row 7 .*NaN'):
      compression.spec(name).fit(broken)
  for name in ('binary', 'sign', 'truncate:8', 'fp16', 'int8'):
    codec = compression.spec(name).fit(vectors)
    for side in (codec.encode, codec.queries):
      with pytest.raises(UserError, match='embeddings of row 7 hold NaN'):
        side(broken)


def test_a_folder_stands_for_its_codec(tmp_path):
  rng = np.random.default_rng(0)
  assign, score = rng.normal(size=(2, 4, 16, 2)).astype(np.float32)
  codec = compression.Codec('jpq:4x4', 8, (), Product(assign, score))
  codec_lib.save(tmp_path / codec_lib.FILE, codec)
  spec = compression.spec(str(tmp_path))
  assert spec.name == 'jpq:4x4' and tuple(spec.shape(8)) == ('uint8', 2)
  vectors = rng.normal(size=(5, 8)).astype(np.float32)
  codes = spec.fit(vectors[:1]).encode(vectors)
  np.testing.assert_array_equal(codes, codec.encode(vectors))


def test_of_another_dim(vectors):
  codec = compression.spec('int8').fit(vectors)
  with pytest.raises(UserError, match=r'trained for \[rows, 24\]'):
    codec.encode(vectors[:, :12])
