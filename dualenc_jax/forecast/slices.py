"""Absent slices of TPUs and GPUs: devices for a compiler alone.

`libtpu` compiles for any slice on a machine without one. Usable memory is from
its own messages.
"""

from collections.abc import Sequence
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from dualenc_jax.forecast import gpus
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.suggest import did_you_mean_or_known


@dataclasses.dataclass(frozen=True)
class Generation:
  """A generation of TPUs or GPUs; figures are of one of JAX's devices.

  Attributes:
    memory: bytes that a program may use.
    flops: operations of bfloat16 products a second.
    dimensions: sides of a slice; 0 for GPUs, which have a number alone.
    cores: devices of a chip.
  """

  memory: int
  flops: float
  dimensions: int
  cores: int = 1


def _gib(size: float) -> int:
  return int(size * 2**30)


GENERATIONS = {
    'v2': Generation(_gib(7.48), 23e12, 2, 2),
    'v3': Generation(_gib(15.48), 61.5e12, 2, 2),
    'v4': Generation(_gib(15.25), 137.5e12, 3, 2),
    'v5e': Generation(_gib(15.75), 197e12, 2),
    'v5p': Generation(_gib(95.74), 459e12, 3),
    'v6e': Generation(_gib(31.25), 918e12, 2),
    'tpu7x': Generation(_gib(94.75), 1153.5e12, 3, 2),
    # JAX takes three quarters of what the driver leaves.
    'h100': Generation(_gib(0.75 * 79.1), 989e12, 0),
    'h200': Generation(_gib(0.75 * 139.8), 989e12, 0),
}
_FLAT = '1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16'.split()
_NAME = re.compile('([a-z0-9]+):([0-9]+(?:x[0-9]+)*)')


@dataclasses.dataclass(frozen=True)
class Slice:
  """Chips with wires between them.

  Attributes:
    name: 'v5e:4x4' or 'h100:8'.
    generation: that of each chip.
    devices: JAX's; they compute nothing.
    compiler: 'libtpu 0.0.42.1'.
  """

  name: str
  generation: Generation
  devices: Sequence[jax.Device]
  compiler: str


@dataclasses.dataclass(frozen=True)
class SlicePartitioner(Partitioner):
  """A mesh of the devices of a slice."""

  slice: Slice | None = None

  def devices(self) -> Sequence[jax.Device]:
    return of(self).devices


def of(partitioner: Partitioner) -> Slice:
  """The slice of a `SlicePartitioner`."""
  assert isinstance(partitioner, SlicePartitioner) and partitioner.slice
  return partitioner.slice


def on_slice(partitioner: Partitioner, slice_: Slice) -> Partitioner:
  """The same axes and rules over the devices of a slice."""
  names = [field.name for field in dataclasses.fields(Partitioner)]
  return SlicePartitioner(
      **{name: getattr(partitioner, name) for name in names}, slice=slice_
  )


def find(name: str) -> Slice:
  """The slice of a name, such as 'v5e:4x4', 'v5p:2x2x2' or 'h100:8'.

  Raises:
    UserError: an unknown slice, or the compiler is not installed.
  """
  generation = _check(name)
  kind, _, given = name.partition(':')
  sizes = [int(size) for size in given.split('x')]
  if not generation.dimensions:
    compiler = gpus.check_compiler(kind)
    prepare_environment()
    with quiet():
      return Slice(name, generation, gpus.devices(kind, *sizes), compiler)
  compiler = check_compiler()
  prepare_environment()
  bounds = {}
  if math.prod(sizes) == 1:
    bounds['chips_per_host_bounds'] = (1, 1, 1)
  try:
    with quiet():
      found: Any = topologies.get_topology_desc(
          platform='tpu', topology_name=name, **bounds
      )
  except jax.errors.JaxRuntimeError as e:
    raise UserError(
        f'--topology={name}: the compiler refuses it:'
        f' {str(e).splitlines()[0]}. Expected {_sizes(generation)}.'
    ) from e
  return Slice(name, generation, tuple(found.devices), compiler)


def _check(name: str) -> Generation:
  found = _NAME.fullmatch(name)
  kind = name.partition(':')[0]
  if kind not in GENERATIONS:
    raise UserError(
        f'--topology={name}: there is no such TPU or GPU as {kind!r}; expected'
        ' a generation and its chips, such as v5e:4x4 or h100:8.'
        + did_you_mean_or_known(kind, GENERATIONS)
    )
  generation = GENERATIONS[kind]
  if not generation.dimensions:
    count = found[2] if found else ''
    fits = count.isdigit() and 0 < int(count)
    if not fits or int(count) > gpus.OF_HOST and int(count) % gpus.OF_HOST:
      raise UserError(
          f'--topology={name} has no number of GPUs; expected 1 to'
          f' {gpus.OF_HOST}, or a multiple of {gpus.OF_HOST}, such as {kind}:8.'
      )
    return generation
  if not found or found[2].count('x') != generation.dimensions - 1:
    raise UserError(
        f'--topology={name} does not give the chips of each side of the'
        f' slice; expected {_sizes(generation)}.'
    )
  if generation.dimensions == 2 and generation.cores == 1:
    if found[2] not in _FLAT:
      raise UserError(
          f'--topology={name}: there is no such slice of {kind}; expected'
          f' {_sizes(generation)}.'
      )
  return generation


def _sizes(generation: Generation) -> str:
  if generation.dimensions == 3:
    return 'three sides, such as 2x2x1, 2x2x2 or 4x4x4'
  return f'one of {", ".join(_FLAT)}'


def check_compiler() -> str:
  """Name and version of the compiler; UserError without one."""
  if importlib.util.find_spec('libtpu') is None:
    wanted = _pinned()
    raise UserError(
        "--topology compiles with the TPU's compiler, which is not installed."
        " Install it: pip install -e '.[tpu-check]' in the clone, or pip"
        f' install {wanted!r}. It needs no TPU.'
    )
  return f'libtpu {importlib.metadata.version("libtpu")}'


def _pinned() -> str:
  """The requirement of this JAX: 'libtpu==0.0.42.*'."""
  for line in importlib.metadata.requires('jax') or ():
    if line.startswith('libtpu') and 'extra == "tpu"' in line:
      return line.partition(';')[0].strip()
  return 'libtpu'


def version_note() -> str | None:
  """A warning where the compiler is not the one that JAX is built with."""
  wanted = _pinned().removeprefix('libtpu==').removesuffix('*')
  found = importlib.metadata.version('libtpu')
  if found.startswith(wanted):
    return None
  return (
      f'libtpu is {found}; this JAX is built with {wanted}*, and a slice that'
      ' is set up as README says has that: its program may differ.'
  )


@contextlib.contextmanager
def quiet():
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
