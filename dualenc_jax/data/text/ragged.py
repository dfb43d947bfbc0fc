"""Rows of unequal length, their fingerprints, and pools of several sources."""

from collections.abc import Iterable, Mapping, Sequence, Sized
import copy
import dataclasses
from typing import Any, Self

import numpy as np

from dualenc_jax.utils.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
  """n rows; row i is `values[offsets[i]:offsets[i + 1]]`.

  Values are token ids or UTF-8 (uint8); offsets int64 [n + 1] begin with 0.
  """

  values: np.ndarray
  offsets: np.ndarray

  @classmethod
  def from_rows(cls, rows: Sequence[Any], dtype) -> 'Ragged':
    """Copies a list of lists (or arrays) of integers."""
    offsets = row_offsets(rows)
    flat = (value for row in rows for value in row)
    return cls(np.fromiter(flat, dtype, int(offsets[-1])), offsets)

  @classmethod
  def from_texts(cls, texts: Iterable[str]) -> 'Ragged':
    """Encodes texts as UTF-8."""
    rows = [text.encode('utf-8') for text in texts]
    return cls(np.frombuffer(b''.join(rows), np.uint8), row_offsets(rows))

  def __len__(self) -> int:
    return len(self.offsets) - 1

  @property
  def lengths(self) -> np.ndarray:
    """int64 [n]."""
    return np.diff(self.offsets)

  def row(self, index: int) -> np.ndarray:
    """Row `index`, a view."""
    return self.values[self.offsets[index] : self.offsets[index + 1]]

  def text(self, index: int) -> str:
    """Row `index` of a uint8 Ragged as a string."""
    try:
      return self.row(index).tobytes().decode('utf-8')
    except UnicodeDecodeError as e:
      file = getattr(self.values.base, 'filename', 'It')
      raise UserError(
          f'{file} has a text {index} that is not UTF-8: {e}. If it is of a'
          ' token cache, remove its folder: it is made again.'
      ) from e

  def padded(self, indices: np.ndarray, length: int) -> np.ndarray:
    """Rows `indices` [n], cut and padded with 0: int32 [n, length]."""
    indices = np.asarray(indices)
    starts = self.offsets[indices]
    lengths = np.minimum(self.offsets[indices + 1] - starts, length)
    out = np.zeros((len(indices), length), np.int32)
    real = np.arange(length) < lengths[:, None]
    # Position of each real token in `values`: its row's start plus its rank.
    shift = starts - np.cumsum(lengths) + lengths
    flat = np.arange(lengths.sum()) + np.repeat(shift, lengths)
    out[real] = self.values[flat]
    return out


def row_offsets(rows: Sequence[Sized]) -> np.ndarray:
  """int64 [n + 1] offsets of n rows, one after the other."""
  return lengths_to_offsets(np.fromiter(map(len, rows), np.int64, len(rows)))


def lengths_to_offsets(lengths: np.ndarray) -> np.ndarray:
  """[n] lengths -> int64 [n + 1] offsets."""
  offsets = np.zeros(len(lengths) + 1, np.int64)
  np.cumsum(lengths, out=offsets[1:])
  return offsets


def fingerprints(rows: Ragged) -> np.ndarray:
  """Fingerprints of rows of token ids of any dtype: uint64 [n].

  The fingerprint of a row is mix(sum of mix(token + 2^32 position) + mix(its
  length)) modulo 2^64, with splitmix64's bijection mix. Rows that differ in
  their tokens, or in the order of these, share one by a chance of 2^-64.
  Memory is 8 bytes a row and a few megabytes.
  """
  out = np.empty(len(rows), np.uint64)
  start = 0
  while start < len(rows):
    limit = rows.offsets[start] + _VALUES_AT_ONCE
    end = int(np.searchsorted(rows.offsets, limit, side='right')) - 1
    end = max(end, start + 1)
    first, last = rows.offsets[start], rows.offsets[end]
    part = Ragged(
        rows.values[first:last], rows.offsets[start : end + 1] - first
    )
    out[start:end] = _of_part(part)
    start = end
  return out


def _of_part(rows: Ragged) -> np.ndarray:
  lengths = rows.lengths
  key = np.arange(len(rows.values), dtype=np.uint64)
  key -= np.repeat(rows.offsets[:-1].astype(np.uint64), lengths)
  # Token and position fill disjoint halves, so every pair has its own key.
  key <<= _U(32)
  key |= rows.values.astype(np.uint64)
  total = np.zeros(len(key) + 1, np.uint64)
  np.cumsum(_mix(key), out=total[1:])
  # Differences of running sums: exact, because uint64 wraps around.
  sums = total[rows.offsets[1:]] - total[rows.offsets[:-1]]
  return _mix(sums + _mix(lengths.astype(np.uint64)))


def as_uint32_pairs(values: np.ndarray) -> np.ndarray:
  """uint64 [...] -> uint32 [..., 2], (low, high): JAX has no 64-bit integers.

  The numbers, not the bytes, are split, whatever the machine's byte order.
  """
  low = (values & _U(0xFFFFFFFF)).astype(np.uint32)
  high = (values >> _U(32)).astype(np.uint32)
  return np.stack([low, high], axis=-1)


def from_uint32_pairs(pairs: np.ndarray) -> np.ndarray:
  """uint32 [..., 2] -> uint64 [...]: what `as_uint32_pairs` was given."""
  low, high = np.moveaxis(np.asarray(pairs).astype(_U), -1, 0)
  return low | high << _U(32)


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


class DistinctTexts:
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
    by_part = [
        fingerprints[own - first]
        for first, own, (_, fingerprints) in zip(self.pool.first, rows, parts)
    ]
    self.fingerprints, first = np.unique(
        np.concatenate(by_part), return_index=True
    )
    self.rows = np.concatenate(rows)[first]

  def __len__(self) -> int:
    return len(self.fingerprints)

  def select(self, numbers: np.ndarray) -> Self:
    """Some of the texts, by their numbers in ascending order."""
    subset = copy.copy(self)
    subset.fingerprints = self.fingerprints[numbers]
    subset.rows = self.rows[numbers]
    return subset

  def numbers(self, fingerprints: np.ndarray) -> np.ndarray:
    """The numbers of texts by their fingerprints, all of which are known."""
    return np.searchsorted(self.fingerprints, fingerprints)


_U = np.uint64
# Tokens, or bytes of text.
_VALUES_AT_ONCE = 2**18


def _mix(x: np.ndarray) -> np.ndarray:
  """The output function of splitmix64: a bijection that spreads every bit."""
  x = x + _U(0x9E3779B97F4A7C15)
  shifted = x >> _U(30)
  for multiplier, shift in ((0xBF58476D1CE4E5B9, 27), (0x94D049BB133111EB, 31)):
    x ^= shifted
    x *= _U(multiplier)
    np.right_shift(x, _U(shift), out=shifted)
  x ^= shifted
  return x
