"""The accelerators of the machine, and what JAX computes on."""

from collections.abc import MutableMapping
import importlib.util
import pathlib
import sys
from typing import Any

# Device files and folders of GPUs and TPUs.
_FILES = ('nvidia*', 'kfd', 'accel*', 'vfio/[0-9]*')


def has_accelerator(devices: pathlib.Path = pathlib.Path('/dev')) -> bool:
  """Returns whether there are device files of a GPU or a TPU."""
  return any(any(devices.glob(pattern)) for pattern in _FILES)


def disable_absent_tpus(
    environment: MutableMapping[str, str],
    devices: pathlib.Path = pathlib.Path('/dev'),
) -> None:
  """Keeps JAX from starting the TPU runtime on a machine without a TPU.

  With `libtpu` installed for its compiler (extra tpu-check) JAX would start the
  runtime all the same, and it writes errors. JAX reads the environment when it
  is imported; if it is imported already, its config is changed, too.
  """
  if 'JAX_PLATFORMS' in environment or has_accelerator(devices):
    return
  if importlib.util.find_spec('libtpu') is None:
    return
  environment['JAX_PLATFORMS'] = 'cpu'
  jax = sys.modules.get('jax')
  if jax is not None and jax.config.jax_platforms is None:
    jax.config.update('jax_platforms', 'cpu')


def current_backend() -> str:
  """Returns 'cpu', 'gpu' or 'tpu', of the mesh in scope or of this process."""
  import jax  # Modules that the package does not import.

  device = jax.sharding.get_abstract_mesh().abstract_device
  return device.platform if device else jax.default_backend()


def shared_mesh() -> Any:
  """Returns the mesh in scope, if several devices share its arrays."""
  import jax

  mesh = jax.sharding.get_abstract_mesh()
  # Under a `shard_map` of the caller's the arrays are those of one device.
  manual = jax.sharding.AxisType.Manual in mesh.axis_types
  return None if mesh.empty or mesh.size == 1 or manual else mesh
