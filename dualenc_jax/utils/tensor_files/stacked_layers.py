"""Names of the layers that `scan_layers` stacks in one array."""

from collections.abc import Mapping

from dualenc_jax.utils.tensor_files.tensors import DamageError, Tensor

# No model has as many layers, or tensors, and names for each take their time.
MOST, _MOST_TENSORS = 1_000, 100_000


def unstack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
  """One tensor a layer out of those that `scan_layers` has stacked."""
  layers: dict[str, Tensor] = {}
  for name, tensor in tensors.items():
    names = layer_names(name, tensor.shape)
    check_count(len(layers) + len(names), tensor.where)
    for i, part in enumerate(names):
      layers[part] = tensor if part == name else tensor.entry(0, i)
  return layers


def check_count(count: int, where: str) -> None:
  """Raises DamageError for more tensors than any model has."""
  if count > _MOST_TENSORS:
    raise DamageError(
        f'{where}, with those before, is of more than {_MOST_TENSORS:,}'
        ' tensors; expected some dozens a layer. Copy the checkpoint again.'
    )


def layer_names(
    name: str, shape: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
  """Names and shapes of the layers of an array; of itself if it is no stack."""
  tower, stacked, rest = name.partition('/layers/')
  if not stacked or not shape:
    return {name: shape}
  if shape[0] > MOST:
    raise DamageError(
        f'{name} has the shape {shape}; expected an axis of at most'
        f' {MOST:,} layers first. Copy the checkpoint again.'
    )
  return {f'{tower}/layers_{i}/{rest}': shape[1:] for i in range(shape[0])}
