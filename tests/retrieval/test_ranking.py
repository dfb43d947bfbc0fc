"""Exact ranking against full sorts of exactly summed scores in Python."""

import math
import tracemalloc

import numpy as np
import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.retrieval import ranking

BLOCK_SIZES = [1, 3, 64, 257, 4096]


def exact_score(query, passage):
  """The exact dot product, rounded once to float64 and once to float32."""
  products = query.astype(np.float64) * passage.astype(np.float64)
  return np.float32(math.fsum(products.tolist()))


def full_sort(queries, passages, ids):
  """Per query all (score, row), by score, then by id, both descending."""
  result = []
  for query in queries:
    scores = [exact_score(query, passage) for passage in passages]
    rows = sorted(range(len(ids)), key=lambda i: ids[i], reverse=True)
    rows.sort(key=lambda i: -scores[i])  # stable: ids stay in order
    result.append([(scores[i], i) for i in rows])
  return result


def unit(x):
  x = x.astype(np.float32)
  return x / np.linalg.norm(x, axis=1, keepdims=True)


def random_vectors(rng):
  return unit(rng.normal(size=(9, 96))), unit(rng.normal(size=(301, 96)))


def clustered_vectors(rng):
  center = rng.normal(size=96)
  queries = center + 1e-6 * rng.normal(size=(9, 96))
  return unit(queries), unit(center + 1e-6 * rng.normal(size=(301, 96)))


def duplicated_vectors(rng):
  queries, passages = random_vectors(rng)
  return queries, passages[rng.integers(0, 7, 301)]


def constant_vectors(rng):
  queries, passages = random_vectors(rng)
  return queries, np.repeat(passages[:1], 301, axis=0)


def orthogonal_vectors(rng):
  return np.eye(96, dtype=np.float32)[:9], np.eye(96, dtype=np.float32)[
      rng.integers(0, 96, 301)
  ]


def small_integers(rng):
  return (
      rng.integers(-2, 3, (9, 5)).astype(np.float32),
      rng.integers(-2, 3, (301, 5)).astype(np.float32),
  )


CASES = [
    random_vectors,
    clustered_vectors,
    duplicated_vectors,
    constant_vectors,
    orthogonal_vectors,
    small_integers,
]


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def case(request):
  rng = np.random.default_rng(0)
  queries, passages = request.param(rng)
  # 'p10' sorts before 'p9', and the order of the rows says nothing.
  ids = [f'p{i}' for i in rng.permutation(len(passages))]
  return queries, passages, ids


@pytest.mark.parametrize('block_size', BLOCK_SIZES)
def test_top_k_is_the_head_of_a_full_sort(case, block_size):
  queries, passages, ids = case
  expected = full_sort(queries, passages, ids)
  for k in (1, 10, 300, 1000):
    scores, indices = ranking.top_k(queries, passages, ids, k, block_size)
    assert scores.dtype == np.float32 and indices.dtype == np.int64
    assert indices.shape == (9, min(k, 301))
    assert indices.tolist() == [[i for _, i in hits[:k]] for hits in expected]
    np.testing.assert_array_equal(
        scores, [[s for s, _ in hits[:k]] for hits in expected]
    )


@pytest.mark.parametrize('block_size', BLOCK_SIZES)
def test_gold_ranks_are_places_in_a_full_sort(case, block_size):
  queries, passages, ids = case
  rng = np.random.default_rng(1)
  gold = [rng.choice(301, size, replace=False) for size in [1] * 6 + [5, 40, 0]]
  expected = [
      min((p for p, (_, i) in enumerate(hits, 1) if i in rows), default=0)
      for hits, rows in zip(full_sort(queries, passages, ids), gold)
  ]
  ranks = ranking.gold_ranks(queries, passages, ids, gold, block_size)
  assert ranks.dtype == np.int64
  assert ranks.tolist() == expected


def test_scores_do_not_depend_on_blocks_or_places():
  # At 768 dims a plain float32 matmul differs in most bits between shapes.
  rng = np.random.default_rng(2)
  queries = unit(rng.normal(size=(300, 768)))
  passages = unit(rng.normal(size=(1003, 768)))
  passages[1000:] = passages[:3]
  ids = [f'{i:04}' for i in range(1003)]
  whole = ranking.top_k(queries, passages, ids, 1003)
  for block_size in (1, 7, 100, 512):
    if block_size == 1:
      part = ranking.top_k(queries[:5], passages, ids, 1003, block_size)
    else:
      part = ranking.top_k(queries, passages, ids, 1003, block_size)
    rows = slice(len(part.indices))
    np.testing.assert_array_equal(part.indices, whole.indices[rows])
    np.testing.assert_array_equal(part.scores, whole.scores[rows])
  # The copies at the end tie with the originals exactly.
  place = np.argsort(whole.indices, axis=1)
  for original in range(3):
    np.testing.assert_array_equal(
        place[:, original], place[:, 1000 + original] + 1
    )


def test_scores_next_to_a_rounding_boundary():
  # The dot products are 1 + 2^-24, half way between two float32, and that
  # plus or minus 2^-46: they round to the even neighbour, up and down.
  tail = np.array([0, 2**-46, -(2**-46)], np.float32)
  passages = np.zeros((3, 700), np.float32)
  passages[:, 0] = 1
  passages[:, 350] = 2**-24
  passages[:, 699] = tail
  query = np.ones((1, 700), np.float32)
  scores = ranking.dot_products(query, passages)
  assert scores.tolist() == [[1.0, 1.0 + 2**-23, 1.0]]


@pytest.mark.parametrize('passages_in_block', [1, 3, 40])
def test_sums_run_from_left_to_right(passages_in_block):
  # After the 1, each tiny product is lost in float64 and the sum stays half
  # way, which rounds down to even; before it they add up and tip the balance.
  # BLAS sums in lanes, so its own answer to both is the second.
  big_first = np.full(700, 2.0**-54, np.float32)
  big_first[:2] = 1, 2**-24
  query = np.ones((2, 700), np.float32)
  for passage, expected in ((big_first, 1.0), (big_first[::-1], 1 + 2**-23)):
    passages = np.repeat(passage[None], passages_in_block, axis=0)
    scores = ranking.dot_products(query, passages)
    assert scores.tolist() == [[expected] * passages_in_block] * 2


def test_minus_zero_ties_with_zero():
  order = ranking.HitOrder(['b', 'a', 'c'])
  keys = order.keys(np.array([[-0.0, 0.0, -0.0]], np.float32), np.arange(3))
  assert order.ranking(keys).indices.tolist() == [[2, 0, 1]]


def test_extreme_scores_keep_their_order():
  values = [0.0, -1.0, 1.0, -1e-40, 1e-40, -3e38, 3e38, 2.0, -2.0]
  passages = np.array(values, np.float32)[:, None]
  hits = ranking.top_k(
      np.ones((1, 1), np.float32), passages, [f'{i}' for i in range(9)], 9
  )
  assert hits.scores[0].tolist() == sorted(passages[:, 0].tolist())[::-1]


def test_ids_order_by_their_utf8_bytes():
  ids = ['a', 'Z', 'é', '𝔸', '\uffff', 'a ', '10', '9']
  hits = ranking.top_k(
      np.ones((1, 2), np.float32), np.ones((8, 2), np.float32), ids, 8
  )
  by_bytes = sorted(ids, key=lambda i: i.encode(), reverse=True)
  assert [ids[i] for i in hits.indices[0]] == by_bytes


def test_one_query_one_passage():
  one = np.ones((1, 4), np.float32)
  hits = ranking.top_k(one, one, ['p'], 10)
  assert hits.scores.tolist() == [[4.0]] and hits.indices.tolist() == [[0]]
  assert ranking.gold_ranks(one, one, ['p'], [[0]]).tolist() == [1]


def test_memory_mapped_corpus(tmp_path):
  queries, passages = random_vectors(np.random.default_rng(3))
  ids = [str(i) for i in range(301)]
  np.save(tmp_path / 'e.npy', passages)
  mapped = np.load(tmp_path / 'e.npy', mmap_mode='r')
  expected = full_sort(queries, passages, ids)
  hits = ranking.top_k(queries, mapped, ids, 20, 50)
  assert hits.indices.tolist() == [[i for _, i in h[:20]] for h in expected]
  best = [[h[4][1]] for h in expected]
  assert ranking.gold_ranks(queries, mapped, ids, best).tolist() == [5] * 9


def test_memory_stays_far_below_queries_times_passages():
  rng = np.random.default_rng(4)
  queries = rng.normal(size=(300, 8)).astype(np.float32)
  passages = rng.normal(size=(20000, 8)).astype(np.float32)
  ids = [str(i) for i in range(20000)]
  gold = [[i] for i in range(300)]
  tracemalloc.start()
  try:
    ranking.top_k(queries, passages, ids, 10, block_size=500)
    ranking.gold_ranks(queries, passages, ids, gold, block_size=500)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert peak < 300 * 20000 * 4 / 2


GOOD = np.ones((3, 4), np.float32)
IDS = ['a', 'b', 'c']


def with_bad_rows(bad, value):
  x = np.ones((700, 4), np.float32)
  x[bad, 1] = value
  return x


MANY_IDS = [str(i) for i in range(700)]


@pytest.mark.parametrize(
    'queries, passages, ids, k, block_size, message',
    [
        (GOOD, GOOD, IDS, 0, 8, 'k is 0: expected at least 1'),
        (GOOD, GOOD, IDS, 1, 0, 'block_size is 0'),
        (GOOD, np.ones((3, 5), np.float32), IDS, 1, 8, 'dim 4 .* 5'),
        (GOOD, GOOD[:0], [], 1, 8, r'passage embeddings have shape \(0, 4\)'),
        (GOOD[:0], GOOD, IDS, 1, 8, r'query embeddings have shape \(0, 4\)'),
        (GOOD[0], GOOD, IDS, 1, 8, r'query embeddings have shape \(4,\)'),
        (GOOD, GOOD, IDS[:2], 1, 8, '2 passage ids for 3 passage'),
        (GOOD, GOOD, ['a', 'b', 'a'], 1, 8, "'a' stands at corpus rows 0 and"),
        (
            with_bad_rows([5, 699], np.nan),
            GOOD,
            IDS,
            1,
            8,
            'query embeddings .* rows 5:',
        ),
        (
            GOOD,
            with_bad_rows([3, 300], np.inf),
            MANY_IDS,
            1,
            1000,
            'passage embeddings .* rows 3, 300:',
        ),
        (
            GOOD,
            with_bad_rows(range(650, 700), np.nan),
            MANY_IDS,
            1,
            64,
            'rows 650, 651, 652, 653, 654 and 45 more',
        ),
    ],
)
def test_bad_input(queries, passages, ids, k, block_size, message):
  with pytest.raises(UserError, match=message):
    ranking.top_k(queries, passages, ids, k, block_size)
  if k:
    gold = [[0]] * len(queries)
    with pytest.raises(UserError, match=message):
      ranking.gold_ranks(queries, passages, ids, gold, block_size)


def test_bad_gold():
  with pytest.raises(UserError, match='gold has 2 entries: .* 3 queries'):
    ranking.gold_ranks(GOOD, GOOD, IDS, [[0], [1]])
  with pytest.raises(UserError, match=r'gold of query row 1 is \[3\]'):
    ranking.gold_ranks(GOOD, GOOD, IDS, [[0], [3], [1]])
  with pytest.raises(UserError, match=r'gold of query row 2 is \[-1\]'):
    ranking.gold_ranks(GOOD, GOOD, IDS, [[0], [2], [-1]])


def test_a_self_hit_is_as_if_it_were_not_there(case):
  """Against ranking a corpus that lacks the passage, query by query."""
  queries, passages, ids = case
  rng = np.random.default_rng(2)
  own = np.where(np.arange(9) % 3, rng.integers(0, len(ids), 9), -1)
  gold = [[int(p) for p in rng.integers(0, len(ids), 2) if p != o] for o in own]
  gold[4] = []
  hits = ranking.without(ranking.top_k(queries, passages, ids, 21), own)
  ranks = ranking.gold_ranks(queries, passages, ids, gold, self_hits=own)
  for i, query in enumerate(queries):
    rows = np.delete(np.arange(len(ids)), own[i : i + 1] if own[i] >= 0 else [])
    alone = query[None], passages[rows], [ids[row] for row in rows]
    want = ranking.top_k(*alone, 20)
    np.testing.assert_array_equal(hits.indices[i], rows[want.indices[0]])
    np.testing.assert_array_equal(hits.scores[i], want.scores[0])
    place = {int(row): j for j, row in enumerate(rows)}
    (rank,) = ranking.gold_ranks(*alone, [[place[p] for p in gold[i]]])
    assert ranks[i] == rank
