"""A teacher's scores of pairs, each computed once, in memory and a file."""

from collections.abc import Callable
import os
import pathlib

import numpy as np

from dualenc_jax.utils import files, untrusted
from dualenc_jax.utils.errors import UserError

# Bytes of a file, of more pairs than memory holds.
_LARGEST = 2**36
_RECORD = np.dtype([('query', '<u8'), ('passage', '<u8'), ('score', '<f4')])


class PairScores:
  """Scores by pair, in memory, of about 100 bytes each, and in a file.

  A killed process loses none that it has returned, and a later process returns
  the same.
  """

  def __init__(
      self,
      score: Callable[[np.ndarray], np.ndarray],
      path: pathlib.Path | None = None,
      instead: str = '',
  ):
    """Reads the file at `path`, if any.

    Args:
      score: computes scores of new pairs, uint64 [n, 2] -> float32 [n].
      path: the file; None to keep scores in memory alone.
      instead: remedy for errors: a flag that names another folder.
    """
    self._score = score
    self._path = path
    self._instead = instead
    self._known: dict[tuple[int, int], float] = {}
    if path is not None and path.exists():
      self._read(path)

  def __len__(self) -> int:
    return len(self._known)

  def __call__(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of pairs uint64 [n, 2]; new ones are computed in their order.

    Returns:
      float32 [n]; bool [n], True where it was computed, once of equal pairs.

    Raises:
      UserError: a score is not finite, or the file cannot be written.
    """
    keys: list[tuple[int, int]] = [tuple(pair) for pair in pairs.tolist()]
    new: dict[tuple[int, int], int] = {}
    for place, key in enumerate(keys):
      if key not in self._known:
        new.setdefault(key, place)
    asked = np.zeros(len(keys), bool)
    if new:
      places = np.fromiter(new.values(), np.int64)
      asked[places] = True
      found = self._score(pairs[places])
      if not np.isfinite(found).all():
        raise UserError(
            f'The teacher gives {np.sum(~np.isfinite(found)):,} of'
            f' {len(found):,} pairs a score that is not finite. Give another'
            ' teacher.'
        )
      if self._path is not None:
        self._write(self._path, pairs[places], found)
      self._known.update(zip(new, found.tolist()))
    scores = np.array([self._known[key] for key in keys], np.float32)
    return scores, asked

  def _write(
      self, path: pathlib.Path, pairs: np.ndarray, scores: np.ndarray
  ) -> None:
    """Appends records, in one call, so that none but the last is torn."""
    records = np.empty(len(pairs), _RECORD)
    records['query'], records['passage'] = pairs.T
    records['score'] = scores
    with files.writing(path, self._instead):
      with open(path, 'ab', buffering=0) as out:
        out.write(records.tobytes())

  def _read(self, path: pathlib.Path) -> None:
    content = untrusted.read(path, _LARGEST)
    whole = len(content) // _RECORD.itemsize * _RECORD.itemsize
    if whole < len(content):
      # A record that a full disk has cut.
      with files.writing(path, self._instead):
        os.truncate(path, whole)
    records = np.frombuffer(content[:whole], _RECORD)
    if not np.isfinite(records['score']).all():
      row = int(np.argmin(np.isfinite(records['score'])))
      raise UserError(
          f'{path}: record {row} has the score {records["score"][row]:g};'
          ' expected a finite number. Remove the file: its pairs are scored'
          ' again.'
      )
    pairs = zip(records['query'].tolist(), records['passage'].tolist())
    self._known = dict(zip(pairs, records['score'].tolist()))
