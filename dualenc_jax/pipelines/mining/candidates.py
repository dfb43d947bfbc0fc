"""The best passages of queries, by a model, BM25 or a TREC run.

Shapes: Q queries, k candidates.
"""

from collections.abc import Callable, Sequence
import dataclasses
import itertools
import pathlib

import numpy as np

from dualenc_jax.evaluation import evaluation, trec
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval.encoding.towers import LoadedModel
from dualenc_jax.retrieval.index import build_for_model
from dualenc_jax.retrieval.search import ranking as ranking_lib
from dualenc_jax.retrieval.search.bm25 import BM25, mask_unmatched
from dualenc_jax.retrieval.search.exact_search import make_search
from dualenc_jax.utils.progress import Progress

NONE = -1
# Pairs of query and passage, int64 [n, 2] -> scores by a teacher, float32 [n].
Score = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Candidates:
  """Ranked passages of each query, and what its positives score.

  Attributes:
    name: of the source.
    passages: int64 [Q, k], numbers of passages, best first; -1 for none.
    scores: float32 [Q, k]; NaN for none.
    positives: float32 of each query, scores of its known positives in the
      order of `RetrievalSet.gold`; NaN where the source has none.
  """

  name: str
  passages: np.ndarray
  scores: np.ndarray
  positives: Sequence[np.ndarray]


def find_by_model(
    model: LoadedModel,
    ranked: RetrievalSet,
    depth: int,
    index_dir: pathlib.Path | None = None,
    host: Host = Host(),
) -> Candidates:
  """The `depth` best passages of each query by exact search with a model.

  `host` is one of those that share the index, all of which call this.
  """
  queries = evaluation.encode_queries(model.embedder, model.params, ranked)
  passages = build_for_model.corpus_embeddings(
      model, ranked.corpus, index_dir, host
  )
  search = make_search(passages, ranked.corpus.ids)
  found = search.top_k(queries, min(depth, len(ranked.corpus)))
  own = [np.zeros(0, np.float32)] * len(queries)
  # One query may have thousands: rectangles are of those that have about as
  # many.
  sizes = np.array([len(known).bit_length() for known in ranked.gold])
  for size in np.unique(sizes):
    some = np.flatnonzero(sizes == size)
    rows = np.full((len(some), 2**size - 1), NONE)
    for row, query in zip(rows, some):
      row[: len(ranked.gold[query])] = ranked.gold[query]
    scores = ranking_lib.score_candidates(queries[some], passages, rows)
    for query, values in zip(some, scores):
      own[query] = values[: len(ranked.gold[query])]
  return Candidates('model', found.indices, found.scores, own)


def find_by_bm25(words: BM25, ranked: RetrievalSet, depth: int) -> Candidates:
  """By BM25; a passage without a word of the query is not a candidate."""
  places = ranking_lib.id_places(ranked.corpus.ids)
  best, own = [], []
  with Progress('BM25', len(ranked.gold), 'queries') as progress:
    for text, known in zip(ranked.query_texts, ranked.gold):
      scores = words.scores(text)
      scores = mask_unmatched(scores)
      best.append(ranking_lib.rank_scores(scores, places, depth))
      own.append(scores[np.array(known, int)])
      progress(1)
  found = ranking_lib.concatenate(best)
  none = np.isinf(found.scores)
  scores = np.where(none, np.float32(np.nan), found.scores)
  return Candidates('bm25', found.indices, scores, own)


def find_in_run(
    path: pathlib.Path, ranked: RetrievalSet, depth: int
) -> Candidates:
  """The hits of a TREC run over the corpus, which may lack some queries.

  Raises:
    UserError: the run is empty, or has ids that the set lacks.
  """
  run = trec.read_run(path)
  queries, passages = trec.numbers(
      run, ranked.query_ids, ranked.corpus.ids, path
  )
  gold = ranked.gold
  shape = len(gold), min(depth, max(map(len, run.values())))
  found, scores = np.full(shape, NONE), np.full(shape, np.nan, np.float32)
  own = [np.full(len(known), np.nan, np.float32) for known in gold]
  for query_id, hits in run.items():
    query = queries[query_id]
    best = ranking_lib.sort_hits(hits)[:depth]
    found[query, : len(best)] = [passages[hit] for hit in best]
    scores[query, : len(best)] = [hits[hit] for hit in best]
    by_number = {passages[hit]: score for hit, score in hits.items()}
    own[query][:] = [by_number.get(p, np.nan) for p in gold[query]]
  return Candidates(path.stem, found, scores, own)


def with_scores(
    candidates: Candidates, ranked: RetrievalSet, score: Score
) -> Candidates:
  """The candidates in the same order, with the scores of a teacher."""
  passages = candidates.passages
  real = passages >= 0
  scores = np.full(passages.shape, np.nan, np.float32)
  pairs = np.stack([np.nonzero(real)[0], passages[real]], axis=1)
  scores[real] = score(pairs)
  counts = [len(known) for known in ranked.gold]
  gold = np.fromiter(itertools.chain(*ranked.gold), np.int64)
  pairs = np.stack([np.repeat(np.arange(len(counts)), counts), gold], axis=1)
  own = np.split(score(pairs), np.cumsum(counts)[:-1])
  return dataclasses.replace(candidates, scores=scores, positives=own)
