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


def tpus(*sizes):
  """TPUs at all places of a grid."""
  return [
      types.SimpleNamespace(coords=[*place], core_on_chip=0)
      for place in places(*sizes)
  ]


@pytest.mark.parametrize('sizes', [(4, 4, 1), (2, 2, 2), (4, 8, 1), (4, 2, 3)])
def test_lines_of_a_path(sizes):
  """Scattered along them, one after the other, part i comes to device i."""
  path = np.array(ring_order.order_devices(tpus(*sizes), split=True))
  assert set(hops([device.coords for device in path])[:-1]) == {1}
  lines = ring_order.data_lines(path[:, None])
  held = [range(len(path))] * len(path)
  used = [axis for axis, size in enumerate(sizes) if size > 1]
  for axis, along in zip(used, lines, strict=True):
    assert sorted(sum(along, ())) == list(range(len(path)))
    for line in along:
      at = np.array([path[i].coords for i in line])
      assert len(line) == sizes[axis]
      assert (np.delete(at, axis, axis=1) == np.delete(at[0], axis)).all()
      for place, device in enumerate(line):
        parts = held[device]
        size = len(parts) // len(line)
        held[device] = parts[place * size : (place + 1) * size]
  assert [list(parts) for parts in held] == [[i] for i in range(len(path))]


@pytest.mark.parametrize('sizes', [(1, 1, 1), (8, 1, 1), (2, 2, 1), (2, 4, 1)])
def test_one_ring_is_as_good(sizes):
  devices = tpus(*sizes)
  ring = ring_order.order_devices(devices)
  assert ring_order.order_devices(devices, split=True) == ring
  assert ring_order.data_lines(np.array(ring)[:, None]) is None


def test_no_lines():
  """A ring has none, nor do CPUs, nor slices side by side."""
  ring = np.array(ring_order.order_devices(tpus(4, 4, 1)))
  assert ring_order.data_lines(ring[:, None]) is None
  cpus = np.array([types.SimpleNamespace()] * 16)
  assert ring_order.data_lines(cpus[:, None]) is None
  many = tpus(4, 4, 1) + tpus(4, 4, 1)
  for number, device in enumerate(many):
    device.slice_index = number // 16
  assert ring_order.order_devices(many, split=True) == (
      ring_order.order_devices(many)
  )
