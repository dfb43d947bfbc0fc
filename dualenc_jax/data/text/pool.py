"""Rows of token ids from several sources, numbered as one."""

from collections.abc import Mapping, Sequence
import copy
from typing import Any, Self

import numpy as np

from dualenc_jax.data.text.ragged import Ragged


class Pool:
  """Rows of token ids, with numbers that go with them; parts in turn."""

  def __init__(self, parts: Sequence[tuple[Ragged, Mapping[str, np.ndarray]]]):
    """Takes token rows and their columns [n], the same in all parts."""
    self._parts = parts
    self.first = np.cumsum([0, *(len(rows) for rows, _ in parts)])

  def __len__(self) -> int:
    return int(self.first[-1])

  def lengths(self, rows: np.ndarray) -> np.ndarray:
    """Tokens of rows [...], 0 for the row -1: int64 [...]."""
    out = np.zeros(rows.shape, np.int64)
    for (tokens, _), chosen, own in self._split(rows):
      out[chosen] = tokens.offsets[own + 1] - tokens.offsets[own]
    return out

  def gather(self, name: str, rows: np.ndarray, absent: Any = 0) -> np.ndarray:
    """The numbers of a column of rows [...], `absent` for the row -1: [...]."""
    out = np.full(rows.shape, absent, self._parts[0][1][name].dtype)
    for (_, columns), chosen, own in self._split(rows):
      out[chosen] = columns[name][own]
    return out

  def copy(
      self, rows: np.ndarray, out: np.ndarray, starts: np.ndarray,
      most: np.ndarray | None = None,
  ) -> None:
    """Writes the tokens of rows [n] into flat `out`, each from its start on.

    At most `most` of each row, int64 [n]; None for all.
    """
    for (tokens, _), chosen, own in self._split(rows):
      begins = tokens.offsets[own]
      lengths = tokens.offsets[own + 1] - begins
      if most is not None:
        lengths = np.minimum(lengths, most[chosen])
      before = np.cumsum(lengths) - lengths
      position = np.arange(lengths.sum())
      source = position + np.repeat(begins - before, lengths)
      out[position + np.repeat(starts[chosen] - before, lengths)] = (
          tokens.values[source]
      )

  def _split(self, rows):
    """Yields (part, which of `rows` are in it, their numbers there)."""
    if len(self._parts) == 1 and (rows.size == 0 or rows.min() >= 0):
      yield self._parts[0], np.s_[...], rows
      return
    for part, start, end in zip(self._parts, self.first, self.first[1:]):
      chosen = (rows >= start) & (rows < end)
      if chosen.any():
        yield part, chosen, rows[chosen] - start


class Distinct:
  """Each text once; rows without tokens are none.

  Attributes:
    pool: all rows.
    fingerprints: of the texts, uint64 [N], ascending.
    rows: where they are in the pool, the first of equal ones: int64 [N].
  """

  def __init__(self, parts: Sequence[tuple[Ragged, np.ndarray]]):
    """Takes rows and their fingerprints, uint64; reads no tokens."""
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
    """Some of the texts, by their numbers in ascending order."""
    found = copy.copy(self)
    found.fingerprints = self.fingerprints[numbers]
    found.rows = self.rows[numbers]
    return found

  def numbers(self, fingerprints: np.ndarray) -> np.ndarray:
    """The numbers of texts by their fingerprints, all of which are known."""
    return np.searchsorted(self.fingerprints, fingerprints)
