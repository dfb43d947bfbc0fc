"""Numbers of signs, by counting and by scipy."""

import itertools

import numpy as np
import pytest
import scipy.stats

from dualenc_jax.analysis.bits import bit_numbers


def test_by_counting():
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(400, 12)) + np.linspace(-1, 1, 12)
  vectors[:, 5] = vectors[:, 4]
  vectors[:, 7] = 0
  vectors[100:150] = vectors[:50]
  found = bit_numbers(vectors.astype(np.float32))
  bits = vectors >= 0
  ones = bits.mean(axis=0)
  assert found['dimensional_efficiency'] == pytest.approx(
      4 / 12 * sum(p * (1 - p) for p in ones)
  )
  assert found['bit_entropy'] == pytest.approx(
      np.mean([scipy.stats.entropy([p, 1 - p], base=2) for p in ones])
  )
  codes = [tuple(row) for row in bits]
  assert found['distinct_codes'] == len(set(codes)) / 400
  entropies = []
  for part in (bits[:, :8], bits[:, 8:]):
    rows = [tuple(row) for row in part]
    counts = [rows.count(row) for row in set(rows)]
    entropies.append(scipy.stats.entropy(counts, base=2))
  assert found['byte_entropy'] == pytest.approx(np.mean(entropies) / 8)
  varying = [d for d in range(12) if 0 < ones[d] < 1]
  assert 7 not in varying
  pairs = itertools.combinations(varying, 2)
  expected = [
      abs(scipy.stats.pearsonr(bits[:, a], bits[:, b])[0]) for a, b in pairs
  ]
  assert found['bit_correlation'] == pytest.approx(np.mean(expected))


def test_in_balance_and_constant():
  every = np.array(list(itertools.product([-1.0, 1.0], repeat=8)), np.float32)
  found = bit_numbers(every)
  assert found == pytest.approx({
      'dimensional_efficiency': 1, 'bit_entropy': 1, 'byte_entropy': 1,
      'distinct_codes': 1, 'bit_correlation': 0,
  })  # yapf: disable
  found = bit_numbers(np.ones((5, 8), np.float32))
  assert found == {
      'dimensional_efficiency': 0, 'bit_entropy': 0, 'byte_entropy': 0,
      'distinct_codes': 0.2,
  }  # yapf: disable
