"""What search must find: every score summed in plain NumPy, every hit sorted.

Shapes: Q queries, N corpus passages, D embedding dim.
"""

from collections.abc import Sequence

import numpy as np

from dualenc_jax.retrieval.search.ranking import Ranking


def scores_of(queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
  """float32 [Q, N]: float64 products, summed one dimension after the other."""
  sums = np.zeros((len(queries), len(passages)))
  for q, p in zip(queries.T.astype(np.float64), passages.T.astype(np.float64)):
    sums += q[:, None] * p
  return sums.astype(np.float32)


def full_ranking(
    queries: np.ndarray, passages: np.ndarray, ids: Sequence[str]
) -> Ranking:
  """All N hits of each query by score, then by id, both descending."""
  scores = scores_of(queries, passages)
  order = np.array([
      sorted(range(len(ids)), key=lambda i: (row[i], ids[i]), reverse=True)
      for row in scores.tolist()
  ])
  return Ranking(np.take_along_axis(scores, order, axis=1), order)


def ranks_in(full: Ranking, gold: Sequence[Sequence[int]]) -> list[int]:
  """From 1, the first place of a row of each query's gold; 0 without gold."""
  return [
      min((int(np.flatnonzero(hits == row)[0]) + 1 for row in rows), default=0)
      for hits, rows in zip(full.indices, gold)
  ]


def assert_same(found: Ranking, full: Ranking, k: int) -> None:
  """`found` is the first k hits, or all there are, of a full ranking."""
  assert found.scores.dtype == np.float32 and found.indices.dtype == np.int64
  np.testing.assert_array_equal(found.indices, full.indices[:, :k])
  np.testing.assert_array_equal(found.scores, full.scores[:, :k])


def unit(x: np.ndarray) -> np.ndarray:
  """Rows of norm 1, float32."""
  return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def shuffled_ids(rng: np.random.Generator, count: int) -> list[str]:
  """'p10' sorts before 'p9', and the order of the rows says nothing."""
  return [f'p{i}' for i in rng.permutation(count)]
