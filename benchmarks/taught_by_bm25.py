"""JPQ+GPL with BM25 in the teacher's place, where no cross-encoder is at hand.

  python taught_by_bm25.py --gin_file=... --gin_file=losses/jpq_gpl.gin ...

Takes the flags of `dualenc train`. Scores are BM25's over 4, of texts that are
decoded from their tokens.
"""

import sys

import numpy as np

from dualenc_jax.commands import train
from dualenc_jax.objectives import TaughtPq
from dualenc_jax.objectives.over_codes import OverCodes
from dualenc_jax.search.bm25 import BM25
from dualenc_jax.text.joined import Around

_OVER = 4
_NONE = np.zeros(0, np.int64)


class Teacher:
  """BM25 over all passages, as `TaughtPq` asks a cross-encoder."""

  provenance = {'teacher': 'bm25'}
  around = Around(_NONE, _NONE, _NONE, 2**20)
  vocabulary = None

  def __init__(self):
    self._index, self._known = None, {}

  def of_tokens(self, joined, rows):
    if self._index is None:
      every = np.arange(len(joined.passages))
      self._index = BM25(self._texts(joined.passages, every))
    queries, numbers = np.unique(rows[:, 0], return_inverse=True)
    texts = self._texts(joined.queries, queries)
    scores = np.empty(len(rows), np.float32)
    for number, text in enumerate(texts):
      own = numbers == number
      scores[own] = self._index.scores(text)[rows[own, 1]]
    return scores / _OVER

  def _texts(self, pool, rows):
    lengths = pool.lengths(rows)
    starts = np.cumsum(lengths) - lengths
    out = np.zeros(lengths.sum(), np.int64)
    pool.copy(rows, out, starts)
    return [
        self.vocabulary.decode(out[start : start + length])
        for start, length in zip(starts, lengths)
    ]


def main():
  teacher = Teacher()

  def check_batch(self, run):
    OverCodes.check_batch(self, run)
    teacher.vocabulary = run.tokenizer.vocabulary

  TaughtPq.cross_encoder = teacher
  TaughtPq.check_batch = check_batch
  train.main(sys.argv[1:])


if __name__ == '__main__':
  main()
