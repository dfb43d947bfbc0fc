"""The accelerators that the machine has and JAX computes on."""

from collections.abc import MutableMapping
import importlib.metadata
import importlib.util
import pathlib
import sys

# Device files and folders of GPUs and TPUs.
_FILES = ('nvidia*', 'kfd', 'accel*', 'vfio/[0-9]*')
_PCI = 'bus/pci/devices/*/vendor'
_GOOGLE = '0x1ae0'
_OF_GPUS = 'xla_cuda', 'xla_rocm'
# Who sets one of these knows what JAX is to use.
_CHOSEN = {'JAX_PLATFORMS', 'JAX_FORCE_TPU_INIT'}


def any_here(devices: pathlib.Path = pathlib.Path('/dev')) -> bool:
  """Whether there are device files of a GPU or a TPU."""
  return any(any(devices.glob(pattern)) for pattern in _FILES)


def leave_out_absent_tpus(
    environment: MutableMapping[str, str],
    devices: pathlib.Path = pathlib.Path('/dev'),
    system: pathlib.Path = pathlib.Path('/sys'),
) -> None:
  """Keeps JAX from starting the TPU runtime where it is for its compiler only.

  With `libtpu` installed (extra tpu-check) and no TPU, JAX would start it all
  the same, and it writes lines of errors that concern nobody. JAX reads the
  environment of its process when it is imported; where it is already, its
  config is changed, too.
  """
  if _CHOSEN & environment.keys():
    return
  if importlib.util.find_spec('libtpu') is None or any_here(devices):
    return
  if any(path.read_text().strip() == _GOOGLE for path in system.glob(_PCI)):
    return
  # Of another accelerator; those of GPUs come to nothing without one.
  plugins = importlib.metadata.entry_points(group='jax_plugins')
  if any(not plugin.name.startswith(_OF_GPUS) for plugin in plugins):
    return
  environment['JAX_PLATFORMS'] = 'cpu'
  jax = sys.modules.get('jax')
  if jax is not None and jax.config.jax_platforms is None:
    jax.config.update('jax_platforms', 'cpu')


def backend_in_scope() -> str:
  """'cpu', 'gpu' or 'tpu': of the mesh in scope, else of this process."""
  import jax  # Which the package does not import.

  device = jax.sharding.get_abstract_mesh().abstract_device
  return device.platform if device else jax.default_backend()
