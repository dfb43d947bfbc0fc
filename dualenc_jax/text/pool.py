"""Rows of token ids from several places under one numbering."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dualenc_jax.text.ragged import Ragged


class Pool:
  """Rows of token ids, with numbers that go with them; parts in turn."""

  def __init__(self, parts: Sequence[tuple[Ragged, Mapping[str, np.ndarray]]]):
    """Copies nothing.

    Args:
      parts: n token rows and their columns [n], by name; the same in all parts.
    """
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

    Args:
      rows: numbers.
      out: flat.
      starts: int64 [n].
      most: tokens of a row that are written at most, int64 [n]; None for all.
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
