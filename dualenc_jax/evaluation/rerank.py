"""Re-ranking of the best hits by a teacher's scores."""

from collections.abc import Callable, Sequence

import numpy as np

from dualenc_jax.evaluation import evaluation
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.search.ranking import best_hits, Ranking
from dualenc_jax.utils import finite
from dualenc_jax.utils.errors import UserError


def evaluate(
    first: Evaluation, retrieval_set: RetrievalSet,
    score: Callable[[np.ndarray], np.ndarray], depth: int,
) -> Evaluation:
  """Re-ranks the `depth` best hits of each query; the others stay below.

  New scores are of pairs int64 [n, 2], numbers of a query and a passage.

  Raises:
    UserError: documents were ranked, or a score is not finite.
  """
  if retrieval_set.documents is not None:
    raise UserError(
        'A re-ranker scores passages, not documents: leave out --max_passage or'
        ' the re-ranking.'
    )
  ranking = rerank(
      first.ranking, score, retrieval_set.ranked_ids, depth,
      retrieval_set.query_ids,
  )
  ranks = evaluation.ranks_in(ranking, retrieval_set.gold)
  for query, rank in first.ranks.items():
    # Below the ranking they are as before.
    ranks[query] = ranks[query] or rank
  return evaluation.score(ranking, retrieval_set, ranks)


def rerank(
    first: Ranking, score: Callable[[np.ndarray], np.ndarray],
    ids: Sequence[str], depth: int, query_ids: list[str],
) -> Ranking:
  """The same hits [Q, k], with the first `depth` of each query by new scores.

  Scores of the hits below fall on by one each from the lowest new score.
  """
  count, k = first.indices.shape
  depth = min(depth, k)
  taken = first.indices[:, :depth]
  real = taken >= 0
  scores = np.zeros((count, depth), np.float32)
  scores[real] = score(np.stack([np.nonzero(real)[0], taken[real]], axis=1))
  finite.check_rows("the teacher's scores", scores, lambda q: query_ids[q])
  best = best_hits(np.where(real, scores, -np.inf), taken, ids, depth)
  below = best.scores[:, -1:] - np.arange(1, k - depth + 1, dtype=np.float32)
  below[first.indices[:, depth:] < 0] = -np.inf
  return Ranking(
      np.concatenate([best.scores, below], axis=1),
      np.concatenate([best.indices, first.indices[:, depth:]], axis=1),
  )
