"""Hits in a new order of scores, by hand."""

import numpy as np

from dualenc_jax.evaluation.evaluation import rerank_hits
from dualenc_jax.retrieval.search.ranking import Ranking


def test_the_first_hits_by_new_scores_and_the_others_below():
  hits = np.array([[4, 2, 0, 3, 1], [3, 4, -1, -1, -1]])
  scores = np.arange(5, 0, -1, dtype=np.float32)
  first = Ranking(np.where(hits < 0, -np.inf, scores), hits)
  scores = np.array([7, 0, 7, 0, 1], np.float32)
  found = rerank_hits(
      first, lambda pairs: scores[pairs[:, 1]], [*'abcde'], 3, ['q', 'r']
  )
  # Of equal scores the greater id is first; none of the others ties.
  assert found.indices.tolist() == [[2, 0, 4, 3, 1], [4, 3, -1, -1, -1]]
  assert found.scores.tolist() == [[7, 7, 1, 0, -1], [1, 0, *[-np.inf] * 3]]
