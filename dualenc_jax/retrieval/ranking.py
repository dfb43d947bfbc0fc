"""Exact ranking of a corpus by dot product, under one total order.

Hits are ordered by score, highest first, and equal scores by passage id,
greatest string first: trec_eval's rule. Score and id are packed into one
int64 key a hit, so selecting, merging and counting compare plain integers
and no tie is left to a sorting routine's whim.

A score is the dot product summed in float64 from left to right and rounded
to float32. It is a function of the two vectors alone: it does not depend on
the block size, on a passage's place in the corpus, or on the BLAS below
NumPy, so equal passages tie exactly.

Shapes: Q queries, N corpus passages, D embedding dim, k hits a query.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dualenc_jax.errors import UserError

# A block of 256 x 4,096 scores in float64 is 8 MiB.
BLOCK_SIZE = 4096
_QUERY_BLOCK = 256
# Pairs that are summed one by one are taken this many at a time.
_PAIR_BLOCK = 1024


class Ranking(NamedTuple):
  """The best hits of each query, best first.

  Attributes:
    scores: float32 [Q, k].
    indices: int64 [Q, k], rows of the corpus.
  """

  scores: np.ndarray
  indices: np.ndarray


class HitOrder:
  """The total order of the hits in one corpus, as int64 keys: more is better.

  The high half of a key is the float32 score as an integer of the same order,
  the low half the passage's place among all ids in ascending order.
  """

  def __init__(self, passage_ids: Sequence[str]):
    """Sorts the N ids. Raises UserError if there are none or one repeats."""
    if not len(passage_ids):
      raise UserError('the corpus is empty: expected at least one passage.')
    # Strings compare by code point, which is the order of their UTF-8 bytes
    # and therefore that of trec_eval's strcmp.
    by_id = sorted(range(len(passage_ids)), key=passage_ids.__getitem__)
    for a, b in zip(by_id, by_id[1:]):
      if passage_ids[a] == passage_ids[b]:
        raise UserError(
            f'passage id {passage_ids[a]!r} stands at corpus rows {a} and {b}: '
            'ids must be unique. Remove or rename one of the two.'
        )
    self._index_of_place = np.array(by_id, np.int64)
    self._place_of_index = np.empty_like(self._index_of_place)
    self._place_of_index[self._index_of_place] = np.arange(len(by_id))

  def __len__(self) -> int:
    return len(self._index_of_place)

  def keys(self, scores: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """int64 [Q, M] keys of float32 [Q, M] scores of passages `indices` [M]."""
    # Adding zero turns -0.0 into 0.0: the two are a tie.
    bits = (scores + np.float32(0)).view(np.int32)
    places = self._place_of_index[indices]
    return _flip_negative(bits).astype(np.int64) << 32 | places

  def ranking(self, keys: np.ndarray) -> Ranking:
    """Sorts keys [Q, k], best first, and unpacks them."""
    keys = np.sort(keys, axis=1)[:, ::-1]
    scores = _flip_negative((keys >> 32).astype(np.int32)).view(np.float32)
    return Ranking(scores, self._index_of_place[keys & 0xFFFFFFFF])


def best_keys(keys: np.ndarray, k: int) -> np.ndarray:
  """The k greatest keys of each row of [Q, M], unsorted; all if M <= k."""
  if keys.shape[1] <= k:
    return keys
  return np.partition(keys, -k, axis=1)[:, -k:]


def top_k(
    query_embeddings: np.ndarray,
    passage_embeddings: np.ndarray,
    passage_ids: Sequence[str],
    k: int,
    block_size: int = BLOCK_SIZE,
) -> Ranking:
  """Ranks the whole corpus for every query and keeps the k best hits.

  Memory is k hits a query plus one block of the corpus, never Q x N.

  Args:
    query_embeddings: float32 [Q, D].
    passage_embeddings: float32 [N, D], in memory or memory-mapped.
    passage_ids: N different strings; they break ties.
    k: hits a query; a corpus of fewer passages gives N hits.
    block_size: corpus rows scored at a time; the result is the same for all.

  Returns:
    The ranking, [Q, min(k, N)].

  Raises:
    UserError: k below 1, an empty side, shapes that disagree, repeated ids,
      or a vector that is not finite (its row is named).
  """
  if k < 1:
    raise UserError(f'k is {k}: expected at least 1 hit a query.')
  _check(query_embeddings, passage_embeddings, passage_ids)
  order = HitOrder(passage_ids)
  query_blocks = [q for _, q in _blocks(query_embeddings, 'query')]
  best = [np.empty((len(q), 0), np.int64) for q in query_blocks]
  for start, passages in _blocks(passage_embeddings, 'passage', block_size):
    indices = np.arange(start, start + len(passages))
    for i, queries in enumerate(query_blocks):
      keys = order.keys(dot_products(queries, passages), indices)
      best[i] = best_keys(np.hstack([best[i], best_keys(keys, k)]), k)
  return order.ranking(np.concatenate(best))


def gold_ranks(
    query_embeddings: np.ndarray,
    passage_embeddings: np.ndarray,
    passage_ids: Sequence[str],
    gold: Sequence[Sequence[int]],
    block_size: int = BLOCK_SIZE,
    self_hits: np.ndarray | None = None,
) -> np.ndarray:
  """The rank of each query's best relevant passage in the full ranking.

  Counts the hits above it, so nothing is sorted or kept. Agrees exactly with
  the order of `top_k`, ties included.

  Args:
    query_embeddings: float32 [Q, D].
    passage_embeddings: float32 [N, D], in memory or memory-mapped.
    passage_ids: N different strings; they break ties.
    gold: for each query the corpus rows of its relevant passages.
    block_size: corpus rows scored at a time; the result is the same for all.
    self_hits: a corpus row for each query that does not count, -1 for none;
      see `without`. It is not among the query's gold.

  Returns:
    int64 [Q], counted from 1; 0 for a query without a relevant passage here.

  Raises:
    UserError: as `top_k`, or `gold` of another length or out of range.
  """
  _check(query_embeddings, passage_embeddings, passage_ids)
  if len(gold) != len(query_embeddings):
    raise UserError(
        f'gold has {len(gold)} entries: expected one for each of the '
        f'{len(query_embeddings)} queries.'
    )
  order = HitOrder(passage_ids)
  query_blocks = list(_blocks(query_embeddings, 'query'))
  gold_keys = np.empty((len(gold), 1), np.int64)
  for start, queries in query_blocks:
    for i, query in enumerate(queries, start):
      gold_keys[i] = _gold_key(query, passage_embeddings, gold[i], i, order)
  ranks = np.array([len(rows) > 0 for rows in gold]).astype(np.int64)
  for start, passages in _blocks(passage_embeddings, 'passage', block_size):
    indices = np.arange(start, start + len(passages))
    for first, queries in query_blocks:
      rows = slice(first, first + len(queries))
      keys = order.keys(dot_products(queries, passages), indices)
      ranks[rows] += np.count_nonzero(keys > gold_keys[rows], axis=1)
  if self_hits is not None:
    for start, queries in query_blocks:
      for i, query in enumerate(queries, start):
        if ranks[i] and self_hits[i] >= 0:
          own = _gold_key(query, passage_embeddings, self_hits[i], i, order)
          ranks[i] -= own > gold_keys[i, 0]
  return ranks


def without(ranking: Ranking, self_hits: np.ndarray) -> Ranking:
  """A ranking one hit shorter, from which one hit of each query is left out.

  Args:
    ranking: [Q, k].
    self_hits: the corpus row to leave out of each query's hits, [Q]; where it
      is none of them, -1 say, the last hit goes.
  """
  keep = ranking.indices != self_hits[:, None]
  keep[keep.all(axis=1), -1] = False
  shape = len(keep), -1
  return Ranking(
      ranking.scores[keep].reshape(shape), ranking.indices[keep].reshape(shape)
  )


def dot_products(queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
  """Scores [Q, D] against [M, D]: float32 [Q, M], each of its pair alone.

  The inputs hold float32 values, so their products are exact in float64 and
  only the order of the sum can differ. BLAS picks it by shape and place, yet
  any two orders are at most 2 (D - 1) 2^-53 |q| |p| apart. Where that cannot
  change the rounding to float32 the product of BLAS is the answer; the few
  pairs left are summed from left to right.
  """
  queries = queries.astype(np.float64, copy=False)
  passages = passages.astype(np.float64, copy=False)
  product = queries @ passages.T
  # Twice the bound, to cover the rounding of the bound itself.
  longest = [np.linalg.norm(x, axis=1).max() for x in (queries, passages)]
  epsilon = np.finfo(np.float64).eps
  margin = 2 * queries.shape[1] * epsilon * longest[0] * longest[1]
  scores = (product - margin).astype(np.float32)
  rows, columns = np.nonzero(scores != (product + margin).astype(np.float32))
  for start in range(0, len(rows), _PAIR_BLOCK):
    i = rows[start : start + _PAIR_BLOCK]
    j = columns[start : start + _PAIR_BLOCK]
    sums = np.add.accumulate(queries[i] * passages[j], axis=1)
    scores[i, j] = sums[:, -1]
  return scores


def _gold_key(query, passage_embeddings, rows, i, order):
  """The best key among the passages `rows`; the greatest int64 for none."""
  rows = np.atleast_1d(np.asarray(rows, np.int64))
  if not rows.size:
    return np.iinfo(np.int64).max
  if not 0 <= rows.min() <= rows.max() < len(order):
    raise UserError(
        f'gold of query row {i} is {rows.tolist()}: expected corpus rows from '
        f'0 to {len(order) - 1}.'
    )
  passages = np.asarray(passage_embeddings[rows], np.float32)
  return order.keys(dot_products(query[None], passages), rows).max()


def _flip_negative(bits: np.ndarray) -> np.ndarray:
  """Maps float32 bits to int32 of the same order, and back."""
  return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))


def _blocks(
    embeddings: np.ndarray, side: str, block_size: int = _QUERY_BLOCK
) -> Iterator[tuple[int, np.ndarray]]:
  """Yields (first row, float64 [block, D]) of checked float32 embeddings."""
  if block_size < 1:
    raise UserError(f'block_size is {block_size}: expected at least 1 row.')
  for start in range(0, len(embeddings), block_size):
    block = np.asarray(embeddings[start : start + block_size], np.float32)
    finite = np.isfinite(block).all(axis=1)
    if not finite.all():
      bad = (start + np.flatnonzero(~finite)).tolist()
      more = f' and {len(bad) - 5} more nearby' if len(bad) > 5 else ''
      raise UserError(
          f'{side} embeddings hold NaN or infinity in rows '
          f'{", ".join(map(str, bad[:5]))}{more}: expected finite numbers. '
          'Look at the checkpoint and the text of these rows.'
      )
    yield start, block.astype(np.float64)


def _check(queries, passages, passage_ids) -> None:
  """Raises UserError unless the shapes are [Q, D], [N, D] and N ids."""
  for side, embeddings in (('query', queries), ('passage', passages)):
    if embeddings.ndim != 2 or 0 in embeddings.shape:
      raise UserError(
          f'{side} embeddings have shape {embeddings.shape}: expected '
          '[rows, dim], at least one of each.'
      )
  if queries.shape[1] != passages.shape[1]:
    raise UserError(
        f'query embeddings have dim {queries.shape[1]} and passage embeddings '
        f'{passages.shape[1]}: expected the same. Encode both with one model.'
    )
  if len(passage_ids) != len(passages):
    raise UserError(
        f'{len(passage_ids)} passage ids for {len(passages)} passage '
        'embeddings: expected one each.'
    )
