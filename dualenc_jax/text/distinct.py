"""The different ones among rows of token ids from several places."""

from collections.abc import Sequence
import copy
from typing import Self

import numpy as np

from dualenc_jax.text.pool import Pool
from dualenc_jax.text.ragged import Ragged


class Distinct:
  """Each text once; rows without tokens are none.

  Attributes:
    pool: all rows.
    fingerprints: of the texts, uint64 [N], ascending.
    rows: where they are in the pool, the first of equal ones: int64 [N].
  """

  def __init__(self, parts: Sequence[tuple[Ragged, np.ndarray]]):
    """Reads no tokens.

    Args:
      parts: rows and their fingerprints, uint64.
    """
    self.parts = [tokens for tokens, _ in parts]
    self.pool = Pool([(tokens, {}) for tokens in self.parts])
    rows = [
        first + np.flatnonzero(tokens.lengths)
        for first, tokens in zip(self.pool.first, self.parts)
    ]
    found = [
        fingerprints[own - first]
        for first, own, (_, fingerprints) in zip(self.pool.first, rows, parts)
    ]
    self.fingerprints, first = np.unique(
        np.concatenate(found), return_index=True
    )
    self.rows = np.concatenate(rows)[first]

  def __len__(self) -> int:
    return len(self.fingerprints)

  def some(self, numbers: np.ndarray) -> Self:
    """Those of these numbers, ascending."""
    found = copy.copy(self)
    found.fingerprints = self.fingerprints[numbers]
    found.rows = self.rows[numbers]
    return found

  def numbers(self, fingerprints: np.ndarray) -> np.ndarray:
    """Which texts these are, of some that are known."""
    return np.searchsorted(self.fingerprints, fingerprints)
