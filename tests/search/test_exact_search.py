"""Search against full sorts of float64 scores in NumPy."""

import functools

import jax
import numpy as np
import pytest
import search_cases
import search_reference as reference

from dualenc_jax.retrieval.index import RowStore
from dualenc_jax.retrieval.search import exact_search, search_programs
from dualenc_jax.retrieval.search.exact_search import ExactSearch

pytestmark = pytest.mark.devices(8)

BLOCK_ROWS = 64


@pytest.fixture(params=search_cases.ALL, ids=lambda case: case.__name__)
def corpus(request):
  rng = np.random.default_rng(0)
  queries, passages = request.param(rng)
  ids = reference.shuffled_ids(rng, len(passages))
  return queries, passages, ids


@pytest.fixture(params=[False, True], ids=['devices', 'host'])
def both_forms(request, monkeypatch):
  """The best kept as on accelerators, and as on CPUs."""
  form = functools.partial(search_programs.programs, on_host=request.param)
  monkeypatch.setattr(exact_search, 'programs', form)


@pytest.fixture
def on_host(caplog):
  """Called: how many queries were ranked from scratch on the host."""
  caplog.set_level('INFO', 'dualenc_jax.retrieval.search.exact_search')
  return lambda: sum(record.args[0] for record in caplog.records)


def search(passages, ids, devices=8, block_rows=BLOCK_ROWS):
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ('x',))
  return ExactSearch(passages, ids, mesh, block_rows)


def test_top_k_is_the_head_of_a_full_sort(corpus):
  queries, passages, ids = corpus
  full = reference.full_ranking(queries, passages, ids)
  found = search(passages, ids)
  for k in (1, 100, 2600, 5000):
    reference.assert_same(found.top_k(queries, k), full, k)


def test_gold_ranks_are_places_in_a_full_sort(corpus):
  queries, passages, ids = corpus
  full = reference.full_ranking(queries, passages, ids)
  rng = np.random.default_rng(1)
  sizes = [1] * 12 + [5, 40, 0, 2611]
  gold = [rng.choice(len(ids), size, replace=False) for size in sizes]
  # The first, the last, and one in the middle of each ranking.
  for i, place in enumerate((0, -1, 1300)):
    gold[i] = full.indices[i, [place]]
  found = search(passages, ids)
  ranks = found.gold_ranks(queries, gold)
  assert ranks.dtype == np.int64
  assert ranks.tolist() == reference.ranks_in(full, gold)
  # A self hit is as if it were not there: right above and below the gold, far
  # away, and none.
  gold = [rng.choice(len(ids), 2, replace=False) for _ in queries]
  ranks = np.array(reference.ranks_in(full, gold))
  places = np.resize([-2, 0, 700, -1], len(queries)) + ranks
  own = np.take_along_axis(full.indices, places[:, None] % 2611, axis=1)[:, 0]
  own[3::4] = -1
  own = np.where([o in g for o, g in zip(own, gold)], -1, own)
  rest = [full._replace(indices=h[None, h != o])
          for h, o in zip(full.indices, own)]
  expected = [reference.ranks_in(r, [g])[0] for r, g in zip(rest, gold)]
  assert expected != ranks.tolist()
  assert found.gold_ranks(queries, gold, own).tolist() == expected


def test_one_query_among_many_is_ranked_on_the_host(on_host, both_forms):
  rng = np.random.default_rng(3)
  queries, passages = search_cases.random(rng)
  # No rest, of another block.
  passages = passages[:2560]
  queries[5] = passages[7]
  passages[100:1300] = passages[7]
  ids = reference.shuffled_ids(rng, len(passages))
  full = reference.full_ranking(queries, passages, ids)
  found = search(passages, ids)
  reference.assert_same(found.top_k(queries, 10), full, 10)
  assert on_host() == 1
  gold = full.indices[:, [3]].copy()
  gold[5] = 300
  ranks = found.gold_ranks(queries, gold)
  assert ranks.tolist() == reference.ranks_in(full, gold)
  assert on_host() == 2


def check(queries, passages, k, place, made=search):
  """The first k hits are right, and so is the rank of the hit at a place."""
  ids = reference.shuffled_ids(np.random.default_rng(1), len(passages))
  full = reference.full_ranking(queries, passages, ids)
  found = made(passages, ids)
  reference.assert_same(found.top_k(queries, k), full, k)
  ranks = found.gold_ranks(queries, full.indices[:, [place]])
  assert ranks.tolist() == [place + 1] * len(queries)


@pytest.mark.parametrize('devices, block_rows, scored, size', [
    (1, 2**17, 16, 2611), (3, 500, 16, 2611), (8, 13, 6, 2611),
    # Devices without a row.
    (8, 1, 1, 1), (8, 4, 1, 9), (3, 4, 1, 65),
])
def test_devices_blocks_and_queries_at_once_do_not_matter(
    devices, block_rows, scored, size, monkeypatch
):
  monkeypatch.setattr(exact_search, '_SCORES_ON_CPU', 4 * block_rows * scored)
  rng = np.random.default_rng(5)
  queries, passages = search_cases.dense(rng)
  passages[1000:1100] = passages[17]
  made = functools.partial(search, devices=devices, block_rows=block_rows)
  check(queries, passages[:size], 30, min(40, size - 1), made)


@pytest.mark.parametrize(
    'both_forms, block_rows', [(True, 4096), (False, 2**17)],
    indirect=['both_forms'], ids=['host', 'devices'],
)
def test_blocks_of_many_groups_of_neighbours(both_forms, block_rows):
  """A single device's block so long that maxima of groups come first."""
  rng = np.random.default_rng(7)
  queries = reference.unit(rng.normal(size=(4, 8)))
  # Blocks of one size, or of two.
  passages = reference.unit(rng.normal(size=(2**15 + 2**12, 8)))
  # All of the best are neighbours, late in the corpus, or each in a group of
  # its own; and a group of copies.
  passages[30_000:30_050] = queries[0] + 1e-3 * rng.normal(size=(50, 8))
  passages[100] = 2 * queries[2]
  passages[20_500:24_500:40] = queries[2] + 1e-3 * rng.normal(size=(100, 8))
  passages[320:352] = queries[1]
  made = functools.partial(search, devices=1, block_rows=block_rows)
  check(queries, passages, 60, 30, made)


@pytest.mark.parametrize('kind', ['float16', 'shards', 'strided'])
def test_wherever_the_corpus_lies(kind):
  rng = np.random.default_rng(9)
  queries, passages = search_cases.random(rng)
  if kind == 'float16':
    store = passages = passages.astype(np.float16)
  elif kind == 'strided':
    store = np.repeat(passages, 2, axis=1)[:, ::2]
  else:
    # Blocks lie within a shard, and across two and three of them.
    store = RowStore(np.split(passages, [600, 601, 1500, 2610]))
  check(queries, passages, 10, 500, lambda _, ids: search(store, ids))


def test_meshes_of_any_shape():
  rng = np.random.default_rng(10)
  queries, passages = search_cases.pairs(rng)
  kind = jax.sharding.AxisType.Explicit
  mesh = jax.make_mesh((2, 4), ('data', 'model'), (kind, kind))
  with jax.set_mesh(mesh):
    check(queries, passages, 10, 50, lambda *x: ExactSearch(*x, mesh, 64))
  check(queries, passages, 10, 50, ExactSearch)
