"""maxP: documents ranked by the best of their passages.

A document's hit is its first passage in the ranking of passages, so the k best
documents are exact as soon as k of them are found.

Shapes: Q queries, N passages, D documents, k documents a query.
"""

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np

from dualenc_jax.retrieval.search.ranking import Ranking
from dualenc_jax.utils.errors import UserError

# How much deeper passages are ranked where too few documents were found.
_DEEPER = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Documents:
  """The documents of a corpus of passages.

  Attributes:
    ids: strings [D], ascending, as trec_eval compares them.
    of_passage: int64 [N], the document of each passage.
  """

  ids: np.ndarray
  of_passage: np.ndarray

  @classmethod
  def from_passage_ids(
      cls, passage_ids: Sequence[str], separator: str = '#'
  ) -> 'Documents':
    """The document of passage 'd#3' is 'd', that of passage 'e' is 'e'.

    Raises:
      UserError: no id has the separator, or one starts with its only one.
    """
    if not separator or not any(separator in name for name in passage_ids):
      raise UserError(
          f'There is no passage id with {separator!r} in it; the first is'
          f' {passage_ids[0]!r}. Expected ids such as \'d1#0\': give the'
          ' separator with --max_passage=SEPARATOR, or leave it out.'
      )
    names = np.array(
        [_document_id(name, separator) for name in passage_ids],
        np.dtypes.StringDType(),
    )
    ids, of_passage = np.unique(names, return_inverse=True)
    return cls(ids, of_passage)

  def find(self, ids: Sequence[str]) -> np.ndarray:
    """The documents of these ids, int64 [n], -1 where missing."""
    wanted = np.array(ids, np.dtypes.StringDType())
    at = np.minimum(np.searchsorted(self.ids, wanted), len(self.ids) - 1)
    return np.where(self.ids[at] == wanted, at, -1)


def top_k_documents(
    rank: Callable[[np.ndarray, int], Ranking], queries: int,
    document_of: np.ndarray, k: int,
) -> Ranking:
  """The k best documents of each query, in order: [Q, min(k, D)].

  Documents are ordered by the score of their best passage, highest first, and
  equal ones by number, greatest first: with the numbers of `Documents` this is
  trec_eval's rule. The passages of a query are ranked deeper until its order is
  certain, so many passages of equal score cost depth.

  Args:
    rank: ranks the passages of some queries, by their numbers, to the depth
      asked for or to the end.
    queries: Q, the number of queries.
    document_of: int64 [N], the document of each passage, from 0 to D - 1.
    k: documents a query.
  """
  total, documents = len(document_of), int(document_of.max()) + 1
  k = min(k, documents)
  scores = np.empty((queries, k), np.float32)
  numbers = np.empty((queries, k), np.int64)
  left, depth = np.arange(queries), k * -(-total // documents)
  while len(left):
    depth = min(depth, total)
    hits = rank(left, depth)
    uncertain = []
    for query, *passages in zip(left.tolist(), hits.scores, hits.indices):
      *best, complete = _best_documents(
          passages[0], document_of[passages[1]], k
      )
      if complete or depth == total:
        scores[query], numbers[query] = best
      else:
        uncertain.append(query)
    left = np.array(uncertain, np.int64)
    depth *= _DEEPER
  return Ranking(scores, numbers)


def _best_documents(
    scores: np.ndarray, documents: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray, bool]:
  """A query's best documents: scores, numbers, and whether these are certain.

  They are uncertain if fewer than k are found, or if the last passage ties with
  the k-th document, as the next passage may tie, too.
  """
  first = np.sort(np.unique(documents, return_index=True)[1])
  complete = len(first) >= k and bool(scores[-1] < scores[first[k - 1]])
  order = np.lexsort((-documents[first], -scores[first]))[:k]
  best = first[order]
  return scores[best], documents[best], complete


def _document_id(passage_id: str, separator: str) -> str:
  head, found, tail = passage_id.rpartition(separator)
  if not (name := head if found else tail):
    raise UserError(
        f'passage id {passage_id!r} names no document: expected something'
        f' before {separator!r}.'
    )
  return name
