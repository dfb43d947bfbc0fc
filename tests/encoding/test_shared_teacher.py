"""A teacher of several hosts scores what one scores, in the same order."""

from host_threads import Network
import numpy as np
import pytest

from dualenc_jax.retrieval.encoding import shared_teacher
from dualenc_jax.retrieval.encoding.teacher import PairScorer

QUERIES, PASSAGES = [*'abcdefg'], [str(i) for i in range(50)]


class Teacher(PairScorer):
  """Scores by the texts, and counts the pairs."""

  provenance = {'run_id': 'x'}
  calibration = None

  def __init__(self):
    self.scored = 0

  def blocks(self, queries, passages, pairs, size=4):
    for start in range(0, len(pairs), size):
      block = pairs[start : start + size]
      self.scored += len(block)
      yield block, np.array(
          [ord(queries[q]) + int(passages[p]) / 64 for q, p in block],
          np.float32,
      )


# None, fewer than hosts, one round, and several with a rest.
@pytest.mark.parametrize('counts', [[], [2], [12, 0, 5], [31], [36]])
def test_scores_and_shares(counts, monkeypatch):
  rng = np.random.default_rng(0)
  asked = [
      np.stack([rng.integers(7, size=n), rng.integers(50, size=n)], axis=1)
      for n in counts
  ]

  def work(host):
    own = Teacher()
    teacher = shared_teacher.share(own, host)
    if host.index:
      teacher.help(QUERIES, PASSAGES)
      return own.scored, []
    found = [
        [*teacher.blocks(QUERIES, PASSAGES, pairs, 4)] for pairs in asked
    ]
    teacher.release()
    return own.scored, found

  (_, found), *_ = results = Network(3, monkeypatch).run(work)
  for pairs, blocks in zip(asked, found, strict=True):
    if len(pairs):
      got, scores = map(np.concatenate, zip(*blocks))
      np.testing.assert_array_equal(got, pairs)
      expected = Teacher().scores(QUERIES, PASSAGES, pairs)
      np.testing.assert_array_equal(scores, expected)
    else:
      assert not blocks
  scored = [count for count, _ in results]
  # Each pair once, and no host two blocks more than another.
  assert sum(scored) == sum(counts) and max(scored) - min(scored) <= 8
