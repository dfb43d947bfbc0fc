"""Counters of millions of rows, in a few bytes a row, that find equal ones."""

import array
from collections.abc import Callable, Sequence
import re

import numpy as np

from dualenc_jax.data.check.summary import Lengths, Texts
from dualenc_jax.data.readers import rows
from dualenc_jax.data.readers.rows import Occurrences, SHOWN
from dualenc_jax.data.text.tokenizer import Vocabulary
from dualenc_jax.utils import untrusted

# The hash of ''.
NONE = 0
LONG_WORD = 1000
# Characters of scripts with spaces between words.
_LONG_WORD = re.compile('[!-\u058f]{%d}' % LONG_WORD)
# UTF-8 that was read as Latin-1 or Windows-1252: a first byte and one that
# continues it; control characters; and U+FFFD for what could not be decoded.
_NEXT = '[\x80-\xbfŒœŠšŽžŸƒˆ˜™€–-›]'
_GARBLED = re.compile(
    f'[ÂÃ]{_NEXT}|(?:[Ä-ß]{_NEXT}){{2}}|â€|ðŸ|ï»¿|[\x80-\x84\x86-\x9f]|\ufffd'
)
_AROUND = 15  # Characters of an excerpt before and after.


def find_garbled(text: str) -> str | None:
  """The first place that was decoded with the wrong encoding, or None."""
  match = _GARBLED.search(text)
  if match is None:
    return None
  start = max(match.start() - _AROUND, 0)
  return untrusted.escape(text[start : match.end() + _AROUND])


def pair_hashes(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """64 bits of each pair of hashes: int64 [n]."""
  # Odd, so that no bit of the first is lost; the sum wraps around.
  return first * np.int64(0x1E3779B97F4A7C15) + second


class Places:
  """Where rows are from, 'file:line', four bytes a row."""

  def __init__(self) -> None:
    self._lines = array.array('i')
    self._files: list[str] = []
    self._starts: list[int] = []

  def append(self, location: str) -> None:
    """Adds the place of the next row: 'file:line', or anything else."""
    file, _, line = location.rpartition(':')
    if not untrusted.is_digits(line) or len(line) > 9:
      file, line = location, '0'
    if not self._files or file != self._files[-1]:
      self._files.append(file)
      self._starts.append(len(self._lines))
    self._lines.append(int(line))

  def __len__(self) -> int:
    return len(self._lines)

  def __getitem__(self, row: int) -> str:
    file = self._files[int(np.searchsorted(self._starts, row, 'right')) - 1]
    line = self._lines[row]
    if line:
      return f'{file}:{line}'
    return file or f'row {row + 1}'


def locate(
    rows: np.ndarray, others: np.ndarray | None, place: Callable[[int], str]
) -> Occurrences:
  """Counts rows and names the first few, each with its own of `others`."""
  places = [place(int(row)) for row in rows[:SHOWN]]
  if others is not None:
    pairs = zip(places, others)
    places = [f'{here} and {place(int(other))}' for here, other in pairs]
  return Occurrences(len(rows), places)


def first_rows(keys: np.ndarray) -> np.ndarray:
  """The first row with the same key, for every row: int64 [n]."""
  _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
  return first[inverse]


def contradictions(
    keys: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """(rows, firsts) of keys that have several values, one of each for a key.

  The row is the first that has another value than the first row of the key.
  Rows without key or value do not count.
  """
  given = np.flatnonzero((keys != NONE) & (values != NONE))
  firsts = given[first_rows(keys[given])]
  other = values[given] != values[firsts]
  firsts, index = np.unique(firsts[other], return_index=True)
  rows = given[other][index]
  order = np.argsort(rows)
  return rows[order], firsts[order]


def members(values: np.ndarray, others: np.ndarray) -> np.ndarray:
  """Whether each value is among the others, and not `NONE`: bool [n]."""
  return np.isin(values, others, kind='sort') & (values != NONE)


class TextCounter:
  """The queries, passages or hard negatives of a split."""

  def __init__(self, vocabulary: Vocabulary, limit: int, lists: bool = True):
    """`lists` is whether to count texts that are lists."""
    self._vocabulary = vocabulary
    self._limit, self._look_for_lists = limit, lists
    self._hashes: array.array[int] = array.array('q')
    self._ids: array.array[int] = array.array('q')
    self._tokens: array.array[int] = array.array('i')
    self._unknown = 0
    names = 'blank', 'lists', 'long_words', 'garbled'
    self._found = {name: Occurrences() for name in names}

  @property
  def hashes(self) -> np.ndarray:
    """int64 [n], `NONE` where a row has no text."""
    return np.frombuffer(self._hashes, np.int64)

  @property
  def ids(self) -> np.ndarray:
    """int64 [n], hashes of the ids, `NONE` where a row has none."""
    return np.frombuffer(self._ids, np.int64)

  def add(
      self, texts: Sequence[str], place: Callable[[int], str],
      ids: Sequence[str] = (),
  ) -> None:
    """Adds a chunk of n texts and ids, '' for none; or no ids in any chunk.

    `place` says where number i of the chunk is from.
    """
    self._hashes.extend(map(hash, texts))
    self._ids.extend(map(hash, ids))
    for i, text in enumerate(texts):
      if text and not text.strip():
        self._found['blank'].add(place(i))
      if self._look_for_lists and rows.is_list(text):
        self._found['lists'].add(place(i))
      if len(text) >= LONG_WORD and any(
          len(word) >= LONG_WORD and _LONG_WORD.search(word)
          for word in text.split()
      ):
        self._found['long_words'].add(place(i))
      if not text.isascii() and (excerpt := find_garbled(text)):
        self._found['garbled'].add(f'{place(i)} "{excerpt}"')
    # More tokens than any text has.
    tokens = self._vocabulary.encode([t for t in texts if t], 2**31)
    self._tokens.extend(tokens.lengths.tolist())
    self._unknown += int(
        np.count_nonzero(tokens.values == self._vocabulary.unk)
    )

  def result(self, place: Callable[[int], str]) -> Texts:
    """The counts; `place` says where text i of all is from."""
    given = self.hashes != NONE
    counts = np.bincount(first_rows(self.hashes)[given], minlength=1)
    names = 'ids_of_several_texts', 'texts_of_several_ids'
    several = {name: Occurrences() for name in names}
    if len(self.ids):
      both = self.ids, self.hashes
      for name, keys, values in zip(several, both, both[::-1]):
        several[name] = locate(*contradictions(keys, values), place)
    return Texts(
        count=int(given.sum()),
        distinct=int(np.count_nonzero(counts)),
        most_repeated=int(counts.max()),
        found=self._found | several,
        lengths=Lengths.count(
            np.frombuffer(self._tokens, np.int32), self._limit, self._unknown
        ),
    )
