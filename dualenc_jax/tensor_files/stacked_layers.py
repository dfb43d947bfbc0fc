"""Layers that `scan_layers` has stacked in one array, by a name each."""

from collections.abc import Mapping

from dualenc_jax.tensor_files.tensors import Tensor


def unstack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
  """One tensor a layer out of those that `scan_layers` has stacked."""
  layers = {}
  for name, tensor in tensors.items():
    for i, part in enumerate(layer_names(name, tensor.shape)):
      stacked = part != name
      layers[part] = tensor.entry(0, i) if stacked else tensor
  return layers


def layer_names(
    name: str, shape: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
  """Name and shape of an array's layers, if it has all of them stacked."""
  tower, stacked, rest = name.partition('/layers/')
  if not stacked:
    return {name: shape}
  return {f'{tower}/layers_{i}/{rest}': shape[1:] for i in range(shape[0])}
