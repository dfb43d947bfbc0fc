"""How much the signs of embeddings say: what an index of bits is left with."""

import numpy as np

from dualenc_jax.compression.quantisers import Signs

# Codes of a byte, of eight dimensions.
_BYTE = 256


def bit_numbers(vectors: np.ndarray) -> dict[str, float]:
  """Numbers of the signs of vectors [n, D].

  With P_d the share of them whose component d is at least 0:

  Returns:
    dimensional_efficiency: 4/D sum_d P_d (1 - P_d), equation 3 of Thakur et al.
      (2022) scaled so that 1 is every bit in balance. It does not foretell
      quality there.
    bit_entropy: mean entropy of a bit, 1 where it is in balance.
    byte_entropy: the same of eight neighbouring bits together, over 8: below
      bit_entropy where bits depend on each other.
    bit_correlation: mean |correlation| of two dimensions' bits; of those that
      are constant none counts.
    distinct_codes: different codes over vectors.
  """
  codes = Signs(vectors.shape[1]).encode(vectors)
  bits = np.unpackbits(codes, axis=1, count=vectors.shape[1]).astype(np.float64)
  ones = bits.mean(axis=0)
  deviations = bits - ones
  varying = (ones > 0) & (ones < 1)
  values = {
      'dimensional_efficiency': float(4 * np.mean(ones * (1 - ones))),
      'bit_entropy': float(np.mean(_entropy(np.stack([ones, 1 - ones])))),
      'byte_entropy': float(np.mean(_entropy(_shares(codes))) / 8),
      'distinct_codes': len(np.unique(codes, axis=0)) / len(codes),
  }
  count = np.count_nonzero(varying)
  if count > 1:
    own = deviations[:, varying] / np.std(bits[:, varying], axis=0)
    correlations = np.abs(own.T @ own) / len(own)
    others = correlations.sum() - np.trace(correlations)
    values['bit_correlation'] = float(others / (count * (count - 1)))
  return values


def _shares(codes: np.ndarray) -> np.ndarray:
  """Of each value of each byte: float64 [256, w]."""
  counts = [np.bincount(column, minlength=_BYTE) for column in codes.T]
  return np.stack(counts, axis=1) / len(codes)


def _entropy(shares: np.ndarray) -> np.ndarray:
  """In bits, of shares [k, ...] that add up to 1: [...]."""
  logs = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
  return -np.sum(shares * logs, axis=0)
