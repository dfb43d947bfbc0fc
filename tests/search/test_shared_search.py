"""Hosts that share a corpus find what one finds, ties and ranks included."""

from typing import Any

from host_threads import Network
import jax
import numpy as np
import pytest
import search_cases
import search_reference as reference

from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval import compression
from dualenc_jax.retrieval.compression import Coded
from dualenc_jax.retrieval.index import RowStore
from dualenc_jax.retrieval.search import exact_search, ranking, shared
from dualenc_jax.retrieval.search.exact_search import make_search
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)


CASES = (
    search_cases.random, search_cases.duplicated, search_cases.zeros,
    search_cases.norms_apart,
)


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def corpus(request):
  rng = np.random.default_rng(0)
  queries, passages = request.param(rng)
  return queries, passages, reference.shuffled_ids(rng, len(passages))


def split(passages):
  """Shards of 300 rows, the last of fewer."""
  return [passages[i : i + 300] for i in range(0, len(passages), 300)]


def mesh(host):
  """Two devices of its own."""
  own = jax.devices()[2 * host.index : 2 * host.index + 2]
  return jax.sharding.Mesh(np.array(own), ('x',))


def test_hits_and_ranks_are_those_of_a_full_sort(corpus, monkeypatch):
  queries, passages, ids = corpus
  # Gathered a few queries at a time.
  monkeypatch.setattr(shared, '_AT_ONCE', 1000)
  full = reference.full_ranking(queries, passages, ids)
  rng = np.random.default_rng(1)
  sizes = [1] * 12 + [5, 40, 0, 2611]
  gold = [rng.choice(len(ids), size, replace=False) for size in sizes]
  for i, place in enumerate((0, -1, 1300)):
    gold[i] = full.indices[i, [place]]
  own = rng.choice(len(ids), len(queries))
  own[[3, *(i for i, g in enumerate(gold) if own[i] in g)]] = -1
  rest = [full._replace(indices=h[None, h != o])
          for h, o in zip(full.indices, own)]
  expected = [reference.ranks_in(r, [g])[0] for r, g in zip(rest, gold)]

  def work(host):
    search = make_search(RowStore(split(passages), host), ids, mesh(host))
    # All hosts have the queries of the first.
    given = queries if not host.index else np.zeros_like(queries)
    return (
        *(search.top_k(given, k) for k in (1, 100, 2000)),
        search.gold_ranks(given, gold, own),
    )

  for *found, ranks in Network(4, monkeypatch).run(work):
    for k, hits in zip((1, 100, 2000), found):
      reference.assert_same(hits, full, k)
    assert ranks.tolist() == expected


@pytest.mark.parametrize('on_disk', [True, False])
@pytest.mark.parametrize('codec', ['int8', 'binary:50'])
def test_codes_are_found_as_by_one_host(codec, on_disk, monkeypatch):
  rng = np.random.default_rng(0)
  queries, passages = search_cases.random(rng)
  ids = reference.shuffled_ids(rng, len(passages))
  fitted = compression.spec(codec).fit(passages)
  codes = fitted.encode(passages)
  gold = [rng.choice(len(ids), 3, replace=False) for _ in queries]
  one = make_search(Coded(fitted, codes), ids)
  full, ranks = one.top_k(queries, 50), one.gold_ranks(queries, gold)

  def work(host):
    stored: Any = RowStore(split(codes), host)
    if not on_disk:
      first, own = stored.own_part()
      stored = shared.OwnRows(first, own[:], len(codes))
    search = make_search(Coded(fitted, stored), ids, mesh(host))
    return search.top_k(queries, 50), search.gold_ranks(queries, gold)

  for found, own in Network(2, monkeypatch).run(work):
    reference.assert_same(found, full, 50)
    np.testing.assert_array_equal(own, ranks)


def test_the_first_host_trains_for_all(monkeypatch):
  _, passages = search_cases.random(np.random.default_rng(0))
  spec, trained = compression.spec('pca:5+int8'), []

  def train():
    trained.append(spec.fit(passages))
    return trained[0]

  found = Network(3, monkeypatch).run(
      lambda host: shared.from_first(host, train).encode(passages)
  )
  assert len(trained) == 1 and len(found) == 3
  for codes in found:
    np.testing.assert_array_equal(codes, trained[0].encode(passages))


def test_a_host_scores_its_own_candidates_alone(monkeypatch):
  rng = np.random.default_rng(0)
  queries, passages = search_cases.random(rng)
  ids = reference.shuffled_ids(rng, len(passages))
  scored = []
  score = ranking.score_candidates
  monkeypatch.setattr(
      exact_search, 'score_candidates',
      lambda q, p, rows: scored.append((len(p), (rows >= 0).sum()))
      or score(q, p, rows),
  )
  Network(4, monkeypatch).run(
      lambda host: make_search(
          RowStore(split(passages), host), ids, mesh(host)
      ).top_k(queries, 100)
  )
  assert sum(size for size, _ in scored) == len(passages)
  # The k best of all, and few whose place rounding leaves open.
  count = sum(count for _, count in scored)
  assert 100 * len(queries) <= count < 101 * len(queries)


def test_parts_of_shards(monkeypatch):
  rows = np.arange(2000, dtype=np.float32)[:, None]

  def parts(count, size):
    shards = [rows[i : i + size] for i in range(0, len(rows), size)]
    found = [RowStore(shards, Host(i, count)).own_part() for i in range(count)]
    np.testing.assert_array_equal(
        np.concatenate([own[:] for _, own in found]), rows
    )
    return [first for first, _ in found]

  assert parts(1, 300) == [0]
  assert parts(3, 300) == [0, 666, 1333]
  # Of many shards each has whole ones.
  assert parts(3, 70) == [0, 700, 1400]
  with pytest.raises(UserError, match='2 passages for 3 hosts; expected one'):
    RowStore([rows[:2]], Host(0, 3)).own_part()
