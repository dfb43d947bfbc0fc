"""Approximate search by faiss's HNSW, to be measured beside exact search.

HNSW (Malkov and Yashunin 2016) is a graph of the passages in which a query
walks towards its nearest ones. Its index holds the vectors and the links.
"""

from collections.abc import Sequence
import importlib
from typing import Any

import numpy as np

from dualenc_jax.retrieval.search.ranking import (
  check_k,
  rank_candidates,
  Ranking,
)
from dualenc_jax.utils.progress import Progress

# Candidates of a new passage's links, and the least of a query, as in BEIR.
_EF_CONSTRUCTION, _EF_SEARCH = 200, 128
_BLOCK = 2**14


class GraphSearch:
  """Ranks the passages that the graph leads to, by inner products."""

  def __init__(self, passages: Any, ids: Sequence[str], links: int):
    """Builds the graph, on one thread, so that it is the same every time.

    Args:
      passages: [N, D], an array or a store of rows.
      ids: N different strings; they break ties.
      links: M, of a passage in each upper layer; 2 M in the lowest.

    Raises:
      ImportError: faiss is not installed.
    """
    faiss = self._faiss = importlib.import_module('faiss')
    count, dim = passages.shape
    self._ids = ids
    self._index = faiss.IndexHNSWFlat(dim, links, faiss.METRIC_INNER_PRODUCT)
    self._index.hnsw.efConstruction = _EF_CONSTRUCTION
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
      with Progress('Linking', count, 'passages') as progress:
        for start in range(0, count, _BLOCK):
          block = np.asarray(passages[start : start + _BLOCK], np.float32)
          self._index.add(np.ascontiguousarray(block))
          progress(len(block))
    finally:
      faiss.omp_set_num_threads(threads)

  @property
  def bytes_per_passage(self) -> float:
    """Bytes of the whole index, as faiss writes it, over N."""
    total = 0

    def count(content: bytes) -> None:
      nonlocal total
      total += len(content)

    # It holds back less than a block until it is gone.
    writer = self._faiss.PyCallbackIOWriter(count)
    self._faiss.write_index(self._index, writer)
    del writer
    return total / self._index.ntotal

  def top_k(self, queries: np.ndarray, k: int) -> Ranking:
    """Ranks what is found for queries float32 [Q, D]: [Q, min(k, N)] hits.

    The walk keeps as many candidates as hits, and 128 at least.
    """
    check_k(k)
    k = min(k, self._index.ntotal)
    # faiss by itself keeps 16 candidates, however many hits it returns.
    how = self._faiss.SearchParametersHNSW(efSearch=max(k, _EF_SEARCH))
    scores, rows = self._index.search(
        np.ascontiguousarray(queries, np.float32), k, params=how
    )
    scores = np.where(rows >= 0, scores, -np.inf).astype(np.float32)
    return rank_candidates(scores, rows, self._ids, k)

  def gold_ranks(
      self, queries: np.ndarray, gold: Sequence[Sequence[int]],
      self_hits: np.ndarray | None = None,
  ) -> np.ndarray:
    """Zeros, int64 [Q]: what is not among the hits has no rank."""
    del gold, self_hits
    return np.zeros(len(queries), np.int64)
