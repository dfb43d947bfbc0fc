"""The live search of codes, on any number of devices, against brute force."""

import jax
import meshes
import numpy as np
import pytest

from dualenc_jax.losses import code_search
from dualenc_jax.retrieval.compression.quantisers import pack

pytestmark = pytest.mark.devices(8)

PARTS, WIDTH, QUERIES, KNOWN = 4, 2, 8, 3


def case(total, bits, seed=0):
  """Whole numbers, so that scores are exact and many are equal."""
  rng = np.random.default_rng(seed)
  numbers = rng.integers(0, 2**bits, (total, PARTS))
  score = rng.integers(-2, 3, (PARTS, 2**bits, WIDTH)).astype(np.float32)
  query = rng.integers(-3, 4, (QUERIES, PARTS * WIDTH)).astype(np.float32)
  valid = rng.random(total) < 0.8
  targets = rng.integers(0, total, (QUERIES, KNOWN)).astype(np.int32)
  codes = code_search.Codes(pack(numbers, bits), valid)
  return codes, query, score, targets, numbers


def brute_force(query, score, numbers, valid, k):
  """Rows of the best of each query: by float64 products of what is decoded."""
  decoded = np.concatenate(
      [score[m].astype(np.float64)[numbers[:, m]] for m in range(PARTS)], axis=1
  )
  scores = query.astype(np.float64) @ decoded.T
  found = []
  for own in scores:
    order = sorted(np.flatnonzero(valid), key=lambda row: (-own[row], row))
    found.append(order[:k])
  return np.array(found)


def on_devices(devices, score, k):
  partitioner = meshes.SmallPartitioner(devices=devices)

  def scoped(codes, query, targets):
    with partitioner.scope():
      return code_search.search(codes, query, score, targets, k)

  return jax.jit(scoped, in_shardings=(partitioner.rows,) * 3)


@pytest.mark.parametrize(
    'devices, bits, block', [(1, 3, 7), (4, 8, 2**13), (8, 3, 7)]
)
def test_hits_are_those_of_brute_force(monkeypatch, devices, bits, block):
  monkeypatch.setattr(code_search, 'BLOCK', block)
  codes, query, score, targets, numbers = case(200, bits)
  run = on_devices(devices, score, 20)
  found = run(codes, query, targets)
  expected = brute_force(query, score, numbers, codes.valid, 20)
  np.testing.assert_array_equal(found.rows, expected)
  np.testing.assert_array_equal(found.codes, codes.codes[expected])
  np.testing.assert_array_equal(found.wanted, codes.codes[targets])


def test_fewer_passages_than_hits():
  codes, query, score, targets, numbers = case(16, 8)
  found = on_devices(8, score, 30)(codes, query, targets)
  there = codes.valid.sum()
  expected = brute_force(query, score, numbers, codes.valid, 30)
  assert there < 16 and found.rows.shape == (QUERIES, 30)
  np.testing.assert_array_equal(found.rows[:, :there], expected)
  np.testing.assert_array_equal(found.codes[:, :there], codes.codes[expected])
  assert (np.asarray(found.rows[:, there:]) == 16).all()
