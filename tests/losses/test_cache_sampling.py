"""What is drawn from a negative cache, against NumPy and by its frequencies."""

import collections
import functools

import cache_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from dualenc_jax.losses import negative_cache
from dualenc_jax.losses.negative_cache import sample

pytestmark = pytest.mark.devices(8)

TEMPERATURE = 0.3
Draw = collections.namedtuple('Draw', ['count', 'top_k'], defaults=[1, None])
# More than a block, which does not divide it.
SIZE, QUERIES = 2448, 8


@functools.cache
def case():
  """A cache, queries, the passages known of each, and exact scores."""
  cache = cache_cases.make_cache(SIZE)
  rng = np.random.default_rng(1)
  query = cache_cases.unit(rng.normal(size=(QUERIES, 8)))
  exact = query.astype(np.float64) @ cache.embeddings.astype(np.float64).T
  scores = exact / TEMPERATURE
  # The best of each, so that a mask left out would show, and a stranger.
  best = np.argsort(-scores, axis=1)[:, :2]
  texts = np.concatenate([best, np.full((QUERIES, 1), SIZE + 5)], axis=1)
  np.put_along_axis(scores, best, -np.inf, axis=1)
  return cache, query, cache_cases.ids_of(texts), scores


@functools.cache
def program(draw, devices, model_parallel):
  def of_seed(seed, cache, query, known, numbers):
    key = jax.random.key(seed)
    return sample(cache, query, known, TEMPERATURE, key, numbers, *draw)

  return cache_cases.on_devices(devices, of_seed, 4, model_parallel, ahead=1)


def drawn(draw, devices=1, seed=0, model_parallel=1):
  cache, query, known, _ = case()
  numbers = np.arange(QUERIES, dtype=np.uint32)
  return jax.device_get(
      program(draw, devices, model_parallel)(seed, cache, query, known, numbers)
  )


def candidates(draw):
  """The slots of each query that could be drawn, by plain loops."""
  _, _, _, scores = case()
  for row in scores:
    if draw.top_k is None:
      found = [j for j in range(SIZE) if row[j] > -np.inf]
    else:
      found = sorted(range(SIZE), key=lambda j: -row[j])[: draw.top_k]
    yield [j for j in found if row[j] > -np.inf]


@pytest.mark.parametrize('draw', [Draw(SIZE), Draw(64, 64)], ids=str)
def test_all_candidates_are_drawn_and_nothing_else(draw):
  cache, _, _, scores = case()
  got = drawn(draw)
  for i, found in enumerate(candidates(draw)):
    count = len(found)
    assert got.rows.valid[i].tolist() == [j < count for j in range(draw.count)]
    slots = got.rows.slots[i]
    assert sorted(slots[:count]) == sorted(found)
    assert (slots[count:] == SIZE).all()
    row = scores[i]
    exact = scipy.special.logsumexp(row[found])
    np.testing.assert_allclose(got.lse[i], exact, rtol=1e-6)
    np.testing.assert_allclose(got.maximum[i], row.max(), rtol=1e-5)
    assert got.unmasked[i] == np.isfinite(row).sum()
    np.testing.assert_array_equal(
        got.rows.embeddings[i, :count], cache.embeddings[slots[:count]]
    )
    np.testing.assert_array_equal(
        got.rows.tokens[i, :count], cache.tokens[slots[:count]]
    )
    assert not got.rows.embeddings[i, count:].any()
    assert not got.rows.tokens[i, count:].any()


@pytest.mark.parametrize(
    'draw, devices, model_parallel',
    [(Draw(5), 8, 2), (Draw(5, 24), 8, 1)], ids=str,
)
def test_the_number_of_devices_changes_nothing(draw, devices, model_parallel):
  one, other, again = (
      drawn(draw), drawn(draw, devices, 0, model_parallel),
      drawn(draw, devices, 1, model_parallel),
  )
  jax.tree.map(np.testing.assert_array_equal, one.rows, other.rows)
  np.testing.assert_allclose(one.lse, other.lse, rtol=1e-6)
  np.testing.assert_allclose(one.maximum, other.maximum, rtol=1e-6)
  np.testing.assert_array_equal(one.unmasked, other.unmasked)
  assert (again.rows.slots != one.rows.slots).any()


@functools.cache
def few(rows, draw, steps=1):
  """Slots [steps, rows, K] drawn for one query of 12 slots, and its softmax."""
  cache = cache_cases.make_cache(12, seed=3)
  rng = np.random.default_rng(4)
  query = cache_cases.unit(rng.normal(size=8))
  own = 4
  scores = cache.embeddings.astype(np.float64) @ query.astype(np.float64)
  scores /= TEMPERATURE
  scores[own] = -np.inf
  known = np.tile(cache_cases.ids_of(np.array([own])), (rows, 1, 1))
  numbers = np.arange(rows, dtype=np.uint32)

  @jax.jit
  def of_steps(cache, queries, known, numbers):
    def of_step(step):
      key = jax.random.fold_in(jax.random.key(7), step)
      return sample(
          cache, queries, known, TEMPERATURE, key, numbers, *draw
      ).rows.slots

    return jax.lax.map(of_step, np.arange(steps))

  # As arguments: of constants the compiler would compute all it can.
  arrays = cache, np.tile(query, (rows, 1)), known, numbers
  return np.asarray(of_steps(*arrays)), scores


def is_drawn_from(counts, probabilities):
  possible = probabilities > 0
  assert counts[~possible].sum() == 0
  assert possible.sum() > 1
  expected = probabilities[possible] * counts.sum()
  assert expected.min() > 5
  found = scipy.stats.chisquare(counts[possible], expected)
  return found.pvalue > 1e-4


@pytest.mark.parametrize(
    'rows, steps, draw', [(2, 4_000, Draw()), (8_000, 1, Draw(1, 4))], ids=str
)
def test_frequencies_are_the_softmax_of_the_kept(rows, steps, draw):
  slots, scores = few(rows, draw, steps)
  best = np.argsort(-scores)[: draw.top_k]
  kept = np.full(12, -np.inf)
  kept[best] = scores[best]
  counts = np.bincount(slots.ravel(), minlength=12)
  assert is_drawn_from(counts, scipy.special.softmax(kept))
  # The check can fail.
  assert not is_drawn_from(counts, scipy.special.softmax(0.7 * kept))


def test_several_are_drawn_without_replacement():
  slots, scores = few(8_000, Draw(2))
  first, second = slots[0].T
  assert (first != second).all()
  p = scipy.special.softmax(scores)
  pairs = p[:, None] * p[None, :] / (1 - p[:, None])
  np.fill_diagonal(pairs, 0.0)
  counts = np.bincount(12 * first + second, minlength=144)
  # A chi-square of rare pairs would be none.
  often = pairs.ravel() * 8_000 > 10
  rest = np.append(counts[often], counts[~often].sum())
  of_rest = np.append(pairs.ravel()[often], pairs.ravel()[~often].sum())
  assert often.sum() > 30
  assert is_drawn_from(rest, of_rest)


def test_the_draws_of_rows_and_steps_are_independent():
  slots, scores = few(2, Draw(), 4_000)
  p = scipy.special.softmax(scores)
  common = np.argsort(-p)[:3]

  def table(one, other):
    return [[np.sum((one == i) & (other == j)) for j in common] for i in common]

  first, second = slots[:, 0, 0], slots[:, 1, 0]
  for one, other in ((first, second), (first[1:], first[:-1])):
    assert scipy.stats.chi2_contingency(table(one, other)).pvalue > 1e-4


def test_without_candidates_nothing_is_drawn():
  cache = cache_cases.make_cache(16)
  query = cache.embeddings[:2]
  known = np.tile(cache.ids, (2, 1, 1))
  draws = Draw(3), Draw(3, 4)

  @jax.jit
  def of_all(*arrays):
    key, numbers = jax.random.key(0), np.arange(2)
    return [sample(*arrays, 0.01, key, numbers, *draw) for draw in draws]

  for got in of_all(cache, query, known):
    assert not got.rows.valid.any()
    assert (got.rows.slots == 16).all()
    assert np.isfinite(got.lse).all() and (got.lse < -1e29).all()
    assert (got.maximum < -1e29).all() and not got.unmasked.any()
  # Softmax of a positive and of nothing else.
  probabilities = jax.nn.softmax(jnp.array([3.0, got.lse[0]]))
  assert probabilities.tolist() == [1.0, 0.0]


def test_noise_is_finite_and_gumbel():
  ends = np.array([0, 1, 2**31, 2**32 - 129, 2**32 - 1], np.uint32)
  assert np.isfinite(negative_cache.gumbel(ends)).all()
  bits = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32)
  got = np.asarray(negative_cache.gumbel(bits))
  assert scipy.stats.kstest(got, scipy.stats.gumbel_r.cdf).pvalue > 1e-4
  # Where it is large: the exact quantiles of the smallest numbers.
  bits = np.array([0, 1, 7, 1000], np.uint32)
  exact = scipy.stats.gumbel_r.isf((bits.astype(np.float64) + 0.5) / 2**32)
  np.testing.assert_allclose(negative_cache.gumbel(bits), exact, rtol=1e-6)
