"""A teacher's scores of pairs, each asked for once."""

from collections.abc import Callable
import os
import pathlib

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.io import files, untrusted

# Bytes of a file, of more pairs than memory holds.
_LARGEST = 2**36
# What a file has of a pair.
_RECORD = np.dtype([('query', '<u8'), ('passage', '<u8'), ('score', '<f4')])


class PairScores:
  """Scores by pair, in memory, of about 100 bytes each, and in a file.

  A process that is killed loses none that were given out: what the file has of
  a pair is what any later process gives out.
  """

  def __init__(
      self,
      score: Callable[[np.ndarray], np.ndarray],
      path: pathlib.Path | None = None,
      instead: str = '',
  ):
    """Reads what is there.

    Args:
      score: scores of pairs that have none yet, uint64 [n, 2] -> float32 [n].
      path: of the file; None for none.
      instead: what to give in place of its folder, for errors.

    Raises:
      UserError: the file cannot be read, or has a score that is not finite.
    """
    self._score = score
    self._path = path
    self._instead = instead
    self._known = {}
    if path is not None and path.exists():
      self._read()

  def __len__(self) -> int:
    return len(self._known)

  def __call__(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scores of pairs, those that are new asked for in their order.

    Args:
      pairs: uint64 [n, 2], of a query and of a passage.

    Returns:
      float32 [n]; bool [n], True where it was asked for, once of equal ones.

    Raises:
      UserError: a score is not finite, or the file cannot be written.
    """
    keys = [tuple(pair) for pair in pairs.tolist()]
    new = {}
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
            f' {len(found):,} pairs a score that is not finite. Give another.'
        )
      self._write(pairs[places], found)
      self._known.update(zip(new, found.tolist()))
    scores = np.array([self._known[key] for key in keys], np.float32)
    return scores, asked

  def _write(self, pairs: np.ndarray, scores: np.ndarray) -> None:
    """Appends records, in one call, so that none but the last is torn."""
    if self._path is None:
      return
    records = np.empty(len(pairs), _RECORD)
    records['query'], records['passage'] = pairs.T
    records['score'] = scores
    with files.writing(self._path, self._instead):
      with open(self._path, 'ab', buffering=0) as out:
        out.write(records.tobytes())

  def _read(self) -> None:
    content = untrusted.read(self._path, _LARGEST)
    whole = len(content) // _RECORD.itemsize * _RECORD.itemsize
    if whole < len(content):
      # A record that a full disk has cut.
      with files.writing(self._path, self._instead):
        os.truncate(self._path, whole)
    records = np.frombuffer(content[:whole], _RECORD)
    if not np.isfinite(records['score']).all():
      row = int(np.argmin(np.isfinite(records['score'])))
      raise UserError(
          f'{self._path}: record {row} has the score'
          f' {records["score"][row]:g}; expected a finite number. Remove the'
          ' file: its pairs are scored again.'
      )
    self._known = dict(
        zip(
            zip(records['query'].tolist(), records['passage'].tolist()),
            records['score'].tolist(),
        )
    )
