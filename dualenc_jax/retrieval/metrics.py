"""Retrieval metrics of one ranking, by trec_eval's code.

pytrec_eval sorts what it is given by its own reading of the scores. It is
therefore given places instead of scores, strictly decreasing, so that every
metric reads the one ranking that was computed here.
"""

from collections.abc import Mapping, Sequence
import logging

import numpy as np
import pytrec_eval

from dualenc_jax.errors import UserError
from dualenc_jax.retrieval.ranking import Ranking

Qrels = Mapping[str, Mapping[str, int]]

# The deepest cut-off below; hits after it matter to the full MRR only.
DEPTH = 100


def relevant_rows(
    qrels: Qrels, query_ids: Sequence[str], passage_ids: Sequence[str]
) -> list[list[int]]:
  """For each query the corpus rows of its relevant passages (grade >= 1).

  The `gold` of `ranking.gold_ranks`. Judged passages that are not in this
  corpus have no row.
  """
  row_of = {passage_id: i for i, passage_id in enumerate(passage_ids)}
  return [
      [
          row_of[passage_id]
          for passage_id, grade in qrels.get(query_id, {}).items()
          if grade >= 1 and passage_id in row_of
      ]
      for query_id in query_ids
  ]


def evaluate(
    ranking: Ranking,
    query_ids: Sequence[str],
    passage_ids: Sequence[str],
    qrels: Qrels,
    ranks: np.ndarray | None = None,
) -> dict[str, float]:
  """P@1, MRR, MRR@10, nDCG@10 and Recall@{1, 10, 100}, in this order.

  Each is a mean over the queries of `qrels` that have a relevant passage
  (grade >= 1), as by `trec_eval -c`: a query that was not ranked counts as 0.
  Queries of `qrels` without a relevant passage are left out; how many is
  logged. MRR is over the whole corpus.

  Args:
    ranking: [Q, k] hits with k at least min(100, N), or N without `ranks`.
    query_ids: Q different strings.
    passage_ids: the ids of all N passages of the corpus.
    qrels: query id -> passage id -> grade.
    ranks: int64 [Q] from `ranking.gold_ranks`, 0 where no relevant passage is
      in the corpus. They must agree with `ranking` as far as it goes.

  Raises:
    UserError: a ranking too shallow for a metric, sizes that disagree,
      repeated query ids, ranks of another ranking, or qrels that judge none
      of the queries relevant.
  """
  _check(ranking, query_ids, passage_ids, ranks)
  judged = {
      query_id: dict(grades)
      for query_id, grades in qrels.items()
      if any(grade >= 1 for grade in grades.values())
  }
  if not judged.keys() & set(query_ids):
    raise UserError(
        f'none of the {len(query_ids)} queries has a relevant passage in the '
        'qrels: expected at least one. Are they of the same data set?'
    )
  gold = relevant_rows(qrels, query_ids, passage_ids)
  seen = _first_relevant(ranking, gold)
  if ranks is None:
    ranks = seen
  else:
    _check_ranks(ranks, seen, gold, ranking, query_ids)
  _log_left_out(qrels, judged, query_ids)

  hits = _as_run(ranking, query_ids, passage_ids, DEPTH)
  scores = _totals(judged, hits, {'P.1', 'ndcg_cut.10', 'recall.1,10,100'})
  first_ten = _as_run(ranking, query_ids, passage_ids, 10)
  scores_at_10 = _totals(judged, first_ten, {'recip_rank'})
  reciprocal = sum(1.0 / rank for rank in ranks.tolist() if rank)
  totals = {
      'P@1': scores['P_1'],
      'MRR': reciprocal,
      'MRR@10': scores_at_10['recip_rank'],
      'nDCG@10': scores['ndcg_cut_10'],
      'Recall@1': scores['recall_1'],
      'Recall@10': scores['recall_10'],
      'Recall@100': scores['recall_100'],
  }
  return {name: total / len(judged) for name, total in totals.items()}


def _as_run(ranking, query_ids, passage_ids, depth):
  """The first `depth` hits as pytrec_eval wants them, scored by place."""
  # trec_eval keeps scores in float32, which holds these integers exactly.
  return {
      query_id: {
          passage_ids[index]: float(depth - place)
          for place, index in enumerate(row)
      }
      for query_id, row in zip(query_ids, ranking.indices[:, :depth].tolist())
  }


def _totals(judged, run, measures):
  """Sums over the queries of the run that are judged, by metric."""
  evaluator = pytrec_eval.RelevanceEvaluator(judged, measures)
  by_query = list(evaluator.evaluate(run).values())
  return {name: sum(q[name] for q in by_query) for name in by_query[0]}


def _first_relevant(ranking: Ranking, gold: list[list[int]]) -> np.ndarray:
  """int64 [Q]: the place of the first relevant hit from 1, 0 for none."""
  places = np.zeros(len(gold), np.int64)
  for i, rows in enumerate(gold):
    hit = np.isin(ranking.indices[i], rows)
    places[i] = hit.argmax() + 1 if hit.any() else 0
  return places


def _check(ranking, query_ids, passage_ids, ranks) -> None:
  if len(set(query_ids)) != len(query_ids):
    seen = set()
    repeated = next(q for q in query_ids if q in seen or seen.add(q))
    raise UserError(f'query id {repeated!r} is repeated: ids must be unique.')
  if len(ranking.indices) != len(query_ids):
    raise UserError(
        f'the ranking has {len(ranking.indices)} rows for {len(query_ids)} '
        'query ids: expected one each.'
    )
  if ranks is not None and np.shape(ranks) != (len(query_ids),):
    raise UserError(
        f'ranks have shape {np.shape(ranks)}: expected one for each of the '
        f'{len(query_ids)} queries.'
    )
  depth = ranking.indices.shape[1]
  if ranks is None and depth != len(passage_ids):
    raise UserError(
        f'MRR needs the whole corpus of {len(passage_ids)} passages, but the '
        f'ranking holds {depth} hits a query: give the ranks of gold_ranks, '
        'or rank all passages.'
    )
  if depth < min(DEPTH, len(passage_ids)):
    raise UserError(
        f'Recall@100 needs {min(DEPTH, len(passage_ids))} hits a query, but '
        f'the ranking holds {depth}: rank with a larger k.'
    )


def _check_ranks(ranks, seen, gold, ranking, query_ids) -> None:
  """Ranks must be those of this ranking, or lie below its last hit."""
  depth = ranking.indices.shape[1]
  below = np.where([len(rows) > 0 for rows in gold], ranks > depth, ranks == 0)
  wrong = np.flatnonzero(~np.where(seen > 0, ranks == seen, below))
  if wrong.size:
    i = wrong[0]
    place = f'at {seen[i]}' if seen[i] else f'not among the first {depth}'
    raise UserError(
        f'query {query_ids[i]!r} has rank {ranks[i]}, but its first relevant '
        f'hit in the ranking is {place}: compute both from the same '
        'embeddings and qrels.'
    )


def _log_left_out(qrels, judged, query_ids) -> None:
  log = logging.getLogger(__name__)
  if len(judged) < len(qrels):
    log.warning(
        '%d of the %d queries in the qrels have no relevant passage and are '
        'left out of the means.',
        len(qrels) - len(judged),
        len(qrels),
    )
  missing = len(judged.keys() - set(query_ids))
  if missing:
    log.warning(
        '%d of the %d judged queries were not ranked and count as 0.',
        missing,
        len(judged),
    )
