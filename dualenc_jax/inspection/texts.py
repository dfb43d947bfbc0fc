"""Takes in the texts of one kind, chunk by chunk."""

from collections.abc import Callable, Sequence

import numpy as np

from dualenc_jax.inspection import columns, mojibake, summary
from dualenc_jax.readers.bad_rows import Found
from dualenc_jax.text.tokenizer import UNK, Vocabulary

_WHOLE = 2**31  # More tokens than any text has.


class TextColumn:
  """The queries, passages or hard negatives of a split.

  Attributes:
    hashes: int64 [n], `columns.NONE` where a row has no text.
  """

  def __init__(self, vocabulary: Vocabulary, limit: int):
    self._vocabulary = vocabulary
    self._limit = limit
    self._hashes = columns.Column(np.int64)
    self._ids = columns.Column(np.int64)
    self._tokens = columns.Column(np.int32)
    self._unknown = 0
    self._blank, self._mojibake, self._replaced = Found(), Found(), Found()

  @property
  def hashes(self) -> np.ndarray:
    return self._hashes.values

  def add(
      self,
      texts: Sequence[str],
      place: Callable[[int], str],
      ids: Sequence[str] = (),
  ) -> None:
    """Takes in a chunk.

    Args:
      texts: n of them, '' for none.
      place: tells where number i of the chunk is from.
      ids: n of them, '' for none; or none at all, in every chunk.
    """
    self._hashes.append(columns.hashes(texts))
    self._ids.append(columns.hashes(ids))
    for i, text in enumerate(texts):
      if not text.isascii():
        self._look(text, i, place)
      elif text and not text.strip():
        self._blank.add(place(i))
    tokens = self._vocabulary.encode([t for t in texts if t], _WHOLE)
    self._tokens.append(tokens.lengths)
    self._unknown += int(np.count_nonzero(tokens.values == UNK))

  def result(self, place: Callable[[int], str]) -> summary.Texts:
    """What there is; `place` tells where text i of all is from."""
    hashes = self.hashes
    given = hashes != columns.NONE
    counts = np.bincount(columns.first_rows(hashes)[given], minlength=1)
    most = int(counts.argmax())
    several_texts = several_ids = Found()
    if len(ids := self._ids.values):
      several_texts, several_ids = (
          columns.found_again(*columns.contradictions(*pair), place)
          for pair in ((ids, hashes), (hashes, ids))
      )
    return summary.Texts(
        count=int(given.sum()),
        distinct=int(np.count_nonzero(counts)),
        most_repeated=int(counts[most]),
        most_repeated_at=place(most) if counts[most] else '',
        blank=self._blank,
        mojibake=self._mojibake,
        replaced=self._replaced,
        ids_of_several_texts=several_texts,
        texts_of_several_ids=several_ids,
        lengths=summary.Lengths.of(
            self._tokens.values, self._limit, self._unknown
        ),
    )

  def _look(self, text: str, i: int, place: Callable[[int], str]) -> None:
    """Notes what is odd about a text that is not ASCII."""
    if not text.strip():
      self._blank.add(place(i))
    if excerpt := mojibake.find(text):
      self._mojibake.add(f'{place(i)} "{excerpt}"')
    if excerpt := mojibake.find_replaced(text):
      self._replaced.add(f'{place(i)} "{excerpt}"')
