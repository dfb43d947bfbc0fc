"""Latency by a clock of our own, against NumPy."""

import dataclasses

import numpy as np
import pytest
import tiny_towers

from dualenc_jax.retrieval.encoding import latency
from dualenc_jax.retrieval.encoding.towers import LoadedModel, Towers

TEXTS = list(tiny_towers.TEXTS)


class Clock:
  """Time that only the models below let pass; who took it, and how long."""

  def __init__(self):
    self.now, self.calls = 0.0, []

  def perf_counter(self) -> float:
    return self.now


class Slow(Towers):
  """Towers of which each call takes the next of given milliseconds."""

  dim = 3

  def __init__(self, name: str, clock: Clock, times):
    self.name, self.clock, self.times = name, clock, iter(times)

  def batches(self, method, params, tokens, rows=None):
    assert method == 'encode_query' and len(tokens) == 1 and rows is None
    self.clock.calls.append((self.name, tokens.values.tolist()))
    self.clock.now += next(self.times) / 1e3
    yield np.arange(1), np.zeros((1, 3), np.float32)

  def digest(self, params, tower):
    raise AssertionError('Nobody asks which tower it is.')


@pytest.fixture(scope='module')
def towers() -> LoadedModel:
  return tiny_towers.loaded(apart=True, prefixes=('find: ', 'code: '))


@pytest.fixture
def clock(monkeypatch) -> Clock:
  clock = Clock()
  monkeypatch.setattr(latency, 'time', clock)
  return clock


def slow(towers, name, clock, times):
  warm = [1000.0] * (2 * latency.WARM_UP)
  own = Slow(name, clock, [*warm, *times])
  return dataclasses.replace(towers, embedder=own)


def test_what_is_said_of_the_calls(towers, clock):
  count = 40
  rng = np.random.default_rng(0)
  # With tokens or with text, in an order that nobody sees: both are alike.
  times = {
      name: np.repeat(scale * rng.gamma(9, size=count), 2)
      for name, scale in (('one', 6), ('other', 2))
  }
  models = {n: slow(towers, n, clock, t) for n, t in times.items()}
  found = latency.measure(models, dict.fromkeys(models, TEXTS), count)
  assert [each.model for each in found] == ['one', 'other']
  first, own = times['one'][::2], times['other'][::2]
  for each, expected in zip(found, (first, own)):
    assert each.tower == each.with_tokenizer
    np.testing.assert_allclose(
        (each.tower.p50, each.tower.p95, each.tower.mean),
        (np.median(expected), np.percentile(expected, 95), expected.mean()),
        rtol=1e-9,
    )
    assert each.warm_up == latency.WARM_UP
  same, faster = (each.tower for each in found)
  assert same.speedup == 1
  np.testing.assert_allclose(
      faster.speedup, np.median(first) / np.median(own), rtol=1e-9
  )


def test_models_take_turns_and_have_the_same_query(towers, clock):
  names, count = ['a', 'b', 'c'], 9
  models = {n: slow(towers, n, clock, [1] * (2 * count)) for n in names}
  latency.measure(models, dict.fromkeys(models, TEXTS), count)
  calls = clock.calls[len(names) * 2 * latency.WARM_UP :]
  tokens = towers.tokenizer.encode_queries(TEXTS)
  orders = set()
  for i in range(count):
    part = calls[6 * i : 6 * i + 6]
    assert sorted(name for name, _ in part) == sorted(2 * names)
    row = tokens.row(i % len(TEXTS)).tolist()
    assert all(ids == row for _, ids in part)
    orders.add(tuple(name for name, _ in part))
  assert len(calls) == 6 * count and len(orders) > 3
