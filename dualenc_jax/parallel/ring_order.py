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
  """Returns devices in the order of `make_ring`, or of `make_blocks` if it has.

  In a ring any number of devices, one after another, are a path along wires;
  those that are that number apart are a ring of few wires a hop. None stands
  for devices without coordinates.
  """
  places = [place for device in devices if (place := _place(device))]
  if len(places) < len(devices):
    return None
  order = make_blocks(places, model_parallel) if model_parallel > 1 else None
  return [devices[number] for number in order or make_ring(places)]


def _place(device: jax.Device) -> tuple[int, ...] | None:
  coords = getattr(device, 'coords', None)
  # GPUs have coordinates, too, but no wires from one to the next.
  if coords is None or not hasattr(device, 'core_on_chip'):
    return None
  part = getattr(device, 'slice_index', None) or 0
  return (part, *coords, device.core_on_chip)


def make_ring(places: Sequence[Sequence[int]]) -> list[int]:
  """Returns numbers of the places of a full grid, neighbour after neighbour.

  From each place to the next, and from the last to the first, one coordinate
  goes one step on. An odd number of places, or a line of them, has no such
  order: then only the last and the first are apart. Other places than a
  full grid stay in their order.
  """
  values = [sorted(set(axis)) for axis in zip(*places)]
  values = [axis for axis in values if len(axis) > 1]
  numbers = {tuple(place): number for number, place in enumerate(_used(places))}
  sizes = [len(axis) for axis in values]
  if len(numbers) != len(places) or len(places) != np.prod(sizes, dtype=int):
    return list(range(len(places)))
  steps = _cycle(sizes)
  return [
      numbers[tuple(axis[i] for axis, i in zip(values, step))]
      for step in steps
  ]


def make_blocks(
    places: Sequence[Sequence[int]], size: int
) -> list[int] | None:
  """Returns numbers of the places of a flat grid, block after block.

  A block is `size` places of a line; the blocks are in a ring. On flat slices
  with a side beyond 4 the TPU's compiler refuses sums over devices that are not
  the same number apart in every line, as those `size` apart in a ring are not.
  None stands for a grid that is smaller, or not flat, or whose sides `size`
  does not divide.
  """
  used = _used(places)
  sides = [len(set(axis)) for axis in zip(*used)]
  if len(sides) != 2 or max(sides) <= 4 or np.prod(sides) != len(used):
    return None
  along = next((axis for axis in (1, 0) if sides[axis] % size == 0), None)
  if along is None:
    return None
  members: dict[tuple[int, int], list[int]] = {}
  for number in sorted(range(len(used)), key=used.__getitem__):
    place = used[number]
    block = place[1 - along], place[along] // size
    members.setdefault(block, []).append(number)
  each = list(members)
  return [n for block in make_ring(each) for n in members[each[block]]]


def _used(places: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
  """The coordinates that are not the same everywhere."""
  used = [len(set(axis)) > 1 for axis in zip(*places)]
  return [tuple(itertools.compress(place, used)) for place in places]


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
