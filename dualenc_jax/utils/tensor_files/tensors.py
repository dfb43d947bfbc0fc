"""`Tensor`, a tensor of a checkpoint that is read when it is needed.

`scan_layers` stacks layers in one array; `unstack` names each of them.
"""

from collections.abc import Callable, Mapping
import dataclasses
import math

import numpy as np

from dualenc_jax.utils import finite, machine
from dualenc_jax.utils.errors import UserError

# No model has more.
_MOST_LAYERS = 1_000


class DamageError(UserError):
  """Files of a checkpoint are missing, cut off or changed."""


@dataclasses.dataclass(frozen=True)
class Tensor:
  """A tensor in a file, not read yet.

  Attributes:
    where: the file and the name in it, for messages.
    shape: of what `load` returns.
    load: reads it, in any floating dtype; nothing is kept.
    load_at: (axis, i) -> entry i along an axis, where the file lets it be read
      alone.
  """

  where: str
  shape: tuple[int, ...]
  load: Callable[[], np.ndarray]
  load_at: Callable[[int, int], np.ndarray] | None = None

  def read(self) -> np.ndarray:
    """The tensor in float32.

    Raises:
      DamageError: it cannot be read, or is not of its shape.
      UserError: it has NaN or infinity, or is larger than the memory.
    """
    size, memory = 4 * math.prod(self.shape), machine.machine_memory()
    if size > memory:
      raise UserError(
          f'{self.where} has the shape {self.shape}, {size:,} bytes in float32;'
          f' this machine has {memory:,}. Copy the file again, or use a larger'
          ' machine.'
      )
    try:
      array = self.load()
      if array.dtype.kind in 'cOSUmM':
        raise ValueError(f'it holds {array.dtype}, not floating numbers')
      shape, array = array.shape, np.asarray(array, np.float32)
    except UserError:
      raise
    except (OSError, TypeError, ValueError) as e:
      cause = (str(e).splitlines() or [type(e).__name__])[0]
      raise DamageError(
          f'{self.where} cannot be read: {cause}. The file is damaged or was'
          ' cut off; copy it again.'
      ) from e
    if shape != self.shape:
      raise DamageError(
          f'{self.where} has the shape {shape}; its header says {self.shape}.'
      )
    finite.check_tensor(self.where, array, 'Give a checkpoint without them.')
    return array

  def transposed(self) -> 'Tensor':
    return Tensor(self.where, self.shape[::-1], lambda: self.load().T)

  def columns(self, count: int) -> 'Tensor':
    """The first entries along the last axis."""
    shape = *self.shape[:-1], count
    return Tensor(self.where, shape, lambda: self.load()[..., :count])

  def reshaped(self, *shape: int) -> 'Tensor':
    return Tensor(self.where, shape, lambda: self.load().reshape(shape))

  def entry(self, axis: int, i: int) -> 'Tensor':
    """Entry i along an axis, which goes: a layer out of a stack of them."""
    load_at = self.load_at or (lambda axis, i: self.load().take(i, axis))
    shape = self.shape[:axis] + self.shape[axis + 1 :]
    return Tensor(f'{self.where}[{i}]', shape, lambda: load_at(axis, i))


def unstack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
  """One tensor a layer out of those that `scan_layers` has stacked."""
  layers: dict[str, Tensor] = {}
  for name, tensor in tensors.items():
    names = layer_names(name, tensor.shape)
    for i, part in enumerate(names):
      layers[part] = tensor if part == name else tensor.entry(0, i)
  return layers


def check_layers(where: str, count: int) -> None:
  """Raises DamageError for more layers than any model has."""
  if count > _MOST_LAYERS:
    raise DamageError(
        f'{where} has {count:,} layers; expected at most {_MOST_LAYERS:,}. Copy'
        ' the checkpoint again.'
    )


def layer_names(
    name: str, shape: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
  """Names and shapes of the layers of an array; of itself if it is no stack."""
  tower, stacked, rest = name.partition('/layers/')
  if not stacked or not shape:
    return {name: shape}
  check_layers(name, shape[0])
  return {f'{tower}/layers_{i}/{rest}': shape[1:] for i in range(shape[0])}
