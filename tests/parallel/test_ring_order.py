"""Rings of devices: each a neighbour of the one before."""

import itertools
import types

import numpy as np
import pytest

from dualenc_jax.parallel import ring_order


def places(*sizes):
  """All places of a grid, in another order than that of their coordinates."""
  grid = list(itertools.product(*map(range, sizes)))
  return [grid[i] for i in np.random.default_rng(0).permutation(len(grid))]


def hops(order):
  """Steps from each place to the next, round the ring."""
  around = np.array([*order, order[0]])
  return np.abs(np.diff(around, axis=0)).sum(axis=1)


@pytest.mark.parametrize(
    'sizes',
    [(2, 2), (2, 4), (16, 16), (4, 3), (2, 2, 1), (4, 4, 8), (3, 3, 2)],
)
def test_each_is_a_neighbour_of_the_next(sizes):
  given = places(*sizes)
  order = ring_order.make_ring(given)
  assert sorted(order) == list(range(len(given)))
  assert set(hops([given[i] for i in order])) == {1}


@pytest.mark.parametrize('sizes', [(8,), (3, 3), (3, 5, 3), (1,)])
def test_where_no_cycle_is_only_one_hop_is_long(sizes):
  given = places(*sizes)
  order = ring_order.make_ring(given)
  assert sorted(order) == list(range(len(given)))
  assert set(hops([given[i] for i in order])[:-1]) <= {1}


def test_devices_go_along_their_wires():
  devices = [
      types.SimpleNamespace(coords=[x, y, z], core_on_chip=0)
      for x, y, z in places(4, 2, 2)
  ]
  around = ring_order.order_devices(devices)
  assert sorted(map(id, around)) == sorted(map(id, devices))
  assert set(hops([device.coords for device in around])) == {1}
