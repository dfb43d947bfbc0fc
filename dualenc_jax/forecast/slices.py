"""Slices of TPUs and GPUs that are not there: devices for a compiler alone.

`libtpu` compiles for any slice on a machine without one. Usable memory is from
its own messages.
"""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
from typing import Any

import jax
from jax.experimental import topologies

from dualenc_jax.forecast import gpus
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.utils.errors import did_you_mean_or_known, UserError


def _gib(size: float) -> int:
  return int(size * 2**30)


# Bytes that a program may use of one of JAX's devices.
_MEMORY = {
    'v2': _gib(7.48),
    'v3': _gib(15.48),
    'v4': _gib(15.25),
    'v5e': _gib(15.75),
    'v5p': _gib(95.74),
    'v6e': _gib(31.25),
    'tpu7x': _gib(94.75),
    # JAX takes three quarters of what the driver leaves.
    'h100': _gib(0.75 * 79.1),
    'h200': _gib(0.75 * 139.8),
}
_GPUS = 'h100', 'h200'


@dataclasses.dataclass(frozen=True)
class Slice:
  """Chips with wires between them.

  Attributes:
    name: 'v5e:4x4' or 'h100:8'.
    memory: bytes that a program may use of a device.
    devices: JAX's; they compute nothing.
    compiler: 'libtpu 0.0.42.1'.
  """

  name: str
  memory: int
  devices: Sequence[jax.Device]
  compiler: str


@dataclasses.dataclass(frozen=True)
class SlicePartitioner(Partitioner):
  """A mesh of the devices of a slice."""

  slice: Slice | None = None

  def devices(self) -> Sequence[jax.Device]:
    assert self.slice is not None
    return self.slice.devices


def on_slice(partitioner: Partitioner, slice_: Slice) -> Partitioner:
  """Returns the same axes and rules over the devices of a slice."""
  names = [field.name for field in dataclasses.fields(Partitioner)]
  return SlicePartitioner(
      **{name: getattr(partitioner, name) for name in names}, slice=slice_
  )


def find_slice(name: str) -> Slice:
  """Returns the slice of a name, such as 'v5e:4x4', 'v5p:2x2x2' or 'h100:8'.

  Raises:
    UserError: an unknown slice, or the compiler is not installed.
  """
  kind, _, sides = name.partition(':')
  if kind not in _MEMORY:
    raise UserError(
        f'--topology={name}: there is no such TPU or GPU as {kind!r};'
        ' expected a generation and its chips, such as v5e:4x4, v5p:2x2x2 or'
        ' h100:8.'
        + did_you_mean_or_known(kind, _MEMORY)
    )
  memory = _MEMORY[kind]
  if kind in _GPUS:
    compiler = gpus.check_compiler(kind)
    prepare_environment()
    with quiet():
      return Slice(name, memory, gpus.make_devices(kind, sides), compiler)
  compiler = check_compiler()
  prepare_environment()
  bounds = {}
  if set(sides) <= {'1', 'x'}:
    bounds['chips_per_host_bounds'] = (1, 1, 1)
  try:
    with quiet():
      topology: Any = topologies.get_topology_desc(
          platform='tpu', topology_name=name, **bounds
      )
  except jax.errors.JaxRuntimeError as e:
    raise UserError(
        f'--topology={name}: the compiler refuses it:'
        f' {str(e).splitlines()[0]}. Expected the chips of each side of a'
        ' slice, such as v5e:4x4 or v5p:2x2x2.'
    ) from e
  return Slice(name, memory, tuple(topology.devices), compiler)


def check_compiler() -> str:
  """Returns name and version of the compiler; raises UserError without one."""
  if importlib.util.find_spec('libtpu') is None:
    raise UserError(
        "--topology compiles with the TPU's compiler, which is not installed."
        " Install it, which needs no TPU: pip install -e '.[tpu-check]' in the"
        ' clone.'
    )
  return f'libtpu {importlib.metadata.version("libtpu")}'


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """Hides the compiler's standard error, which no flag does."""
  kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  os.dup2(nothing, 2)
  try:
    yield
  finally:
    os.dup2(kept, 2)
    for each in (kept, nothing):
      os.close(each)


def prepare_environment() -> None:
  """Keeps the compiler from looking for TPUs, from logs and from locks."""
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  os.environ.setdefault('TPU_LOG_DIR', 'disabled')
  # It only compiles, so that others may do so at the same time.
  os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', 'true')
  jax.config.update('jax_platforms', 'cpu')
