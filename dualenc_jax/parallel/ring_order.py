"""An order of devices in which each has a wire to the next, and their lines.

Data that travels round a ring of devices goes by one wire a hop only if
neighbours on the ring are neighbours in the machine; other hops share wires,
and the TPU's compiler then waits for each of them. Sums that are scattered over
the devices go along one line of wires after the other.
"""

from collections.abc import Sequence
import itertools

import jax
import numpy as np

# For each dimension of a grid the lines along it, of numbers of devices.
Lines = tuple[tuple[tuple[int, ...], ...], ...]


def order_devices(
    devices: Sequence[jax.Device], model_parallel: int = 1, split: bool = False
) -> list[jax.Device] | None:
  """Returns devices in the order of `make_ring`; None without coordinates.

  None also stands for a model axis on a flat slice, where the TPU's compiler
  needs it along a line, as JAX's own order has it. `split` is for parameters
  that the devices split: a path through the grid of a slice, which has lines,
  and whose last and first devices are apart.
  """
  places = _places(devices)
  if places is None:
    return None
  if model_parallel > 1 and len({device.coords[2] for device in devices}) == 1:
    return None
  order = make_ring(places)
  if split and len({place[0] for place in places}) == 1:
    sizes, numbers = _grid(places)
    path = [numbers[step] for step in _path(sizes)] if numbers else order
    if make_lines([places[i] for i in path]):
      order = path
  return [devices[number] for number in order]


def _places(devices: Sequence[jax.Device]) -> list[tuple[int, ...]] | None:
  """Slice, coordinates and core of each; None without them."""
  # GPUs have coordinates, too, but no wires from one to the next.
  if not all(hasattr(device, 'core_on_chip') for device in devices):
    return None
  return [
      (getattr(d, 'slice_index', None) or 0, *d.coords, d.core_on_chip)
      for d in devices
  ]


def data_lines(devices: np.ndarray) -> Lines | None:
  """Returns the lines of the data axis of a mesh [data, model].

  None where they are unknown, or not alike for all of the model axis.
  """
  places = [_places(column) for column in devices.T.tolist()]
  lines = {make_lines(own) if own else None for own in places}
  return lines.pop() if len(lines) == 1 else None


def make_lines(places: Sequence[Sequence[int]]) -> Lines | None:
  """Returns the lines of a full grid whose parts are parts of the order, too.

  These are its lines along all dimensions but the first, of which each has its
  planes along all but the first two, and so on: what is scattered over the
  devices of a line is scattered on over those of the next.

  None for a line and for two side by side, where one ring is as good.
  """
  sizes, numbers = _grid(places)
  if len(sizes) < 2 or len(sizes) == 2 and min(sizes) == 2:
    return None
  lines = []
  for axis, size in enumerate(sizes):
    part = np.prod(sizes[axis + 1 :], dtype=int)
    parts = {(at[: axis + 1], number // part) for at, number in numbers.items()}
    if len(parts) != np.prod(sizes[: axis + 1]):
      return None
    others = (range(1 if i == axis else n) for i, n in enumerate(sizes))
    lines.append(tuple(
        tuple(sorted(
            numbers[*at[:axis], i, *at[axis + 1 :]] for i in range(size)
        ))
        for at in itertools.product(*others)
    ))
  return tuple(lines)


def make_ring(places: Sequence[Sequence[int]]) -> list[int]:
  """Returns numbers of the places of a full grid, neighbour after neighbour.

  From each place to the next, and from the last to the first, one coordinate
  goes one step on. An odd number of places, or a line of them, has no such
  order: then only the last and the first are apart. Other places than a
  full grid stay in their order.
  """
  sizes, numbers = _grid(places)
  if not numbers:
    return list(range(len(places)))
  return [numbers[step] for step in _cycle(sizes)]


def _grid(
    places: Sequence[Sequence[int]],
) -> tuple[list[int], dict[tuple[int, ...], int]]:
  """Sizes of a full grid above 1, and places' numbers; nothing of others."""
  values = [sorted(set(axis)) for axis in zip(*places)]
  used = [axis for axis, there in enumerate(values) if len(there) > 1]
  sizes = [len(values[axis]) for axis in used]
  numbers = {
      tuple(values[axis].index(place[axis]) for axis in used): number
      for number, place in enumerate(places)
  }
  if len(numbers) != len(places) or len(places) != np.prod(sizes, dtype=int):
    return [], {}
  return sizes, numbers


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
