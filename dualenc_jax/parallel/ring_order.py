"""An order of devices in which each has a wire to the next.

Data that travels round a ring of devices goes by one wire a hop only if
neighbours on the ring are neighbours in the machine; other hops share wires,
and the TPU's compiler then waits for each of them.
"""

from collections.abc import Sequence
import itertools

import jax
import numpy as np


def order_devices(
    devices: Sequence[jax.Device], model_parallel: int = 1
) -> list[jax.Device] | None:
  """Returns devices in the order of `make_ring`; None without coordinates.

  None also stands for a model axis on a flat slice, where the TPU's compiler
  needs it along a line, as JAX's own order has it.
  """
  # GPUs have coordinates, too, but no wires from one to the next.
  if not all(hasattr(device, 'core_on_chip') for device in devices):
    return None
  if model_parallel > 1 and len({device.coords[2] for device in devices}) == 1:
    return None
  order = make_ring([
      (getattr(d, 'slice_index', None) or 0, *d.coords, d.core_on_chip)
      for d in devices
  ])
  return [devices[number] for number in order]


def make_ring(places: Sequence[Sequence[int]]) -> list[int]:
  """Returns numbers of the places of a full grid, neighbour after neighbour.

  From each place to the next, and from the last to the first, one coordinate
  goes one step on. An odd number of places, or a line of them, has no such
  order: then only the last and the first are apart. Other places than a
  full grid stay in their order.
  """
  values = [sorted(set(axis)) for axis in zip(*places)]
  used = [axis for axis, there in enumerate(values) if len(there) > 1]
  sizes = [len(values[axis]) for axis in used]
  numbers = {
      tuple(values[axis].index(place[axis]) for axis in used): number
      for number, place in enumerate(places)
  }
  if len(numbers) != len(places) or len(places) != np.prod(sizes, dtype=int):
    return list(range(len(places)))
  return [numbers[step] for step in _cycle(sizes)]


def _cycle(sizes: Sequence[int]) -> list[tuple[int, ...]]:
  """A cycle through a grid, or where there is none a path."""
  if len(sizes) < 2 or np.prod(sizes) % 2:
    return _path(sizes)
  # An even axis, and a path through all others: a grid of two dimensions. Along
  # the path's first place the cycle comes back.
  even = next(i for i, size in enumerate(sizes) if size % 2 == 0)
  path = _path([*sizes[:even], *sizes[even + 1 :]])
  there = [
      (i, rest)
      for i, turn in zip(range(sizes[even]), itertools.cycle((1, -1)))
      for rest in path[1:][::turn]
  ]
  back = [(i, path[0]) for i in reversed(range(sizes[even]))]
  return [(*rest[:even], i, *rest[even:]) for i, rest in there + back]


def _path(sizes: Sequence[int]) -> list[tuple[int, ...]]:
  """Through a grid, as oxen plough."""
  if not sizes:
    return [()]
  rest = _path(sizes[1:])
  return [
      (i, *place)
      for i in range(sizes[0])
      for place in (rest if i % 2 == 0 else rest[::-1])
  ]
