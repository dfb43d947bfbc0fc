"""Cycles of Pallas kernels, which a compiled program does not have.

The compiler can write its schedule: bundles of instructions, of a cycle each,
of a step of a kernel's grid. As that makes it ten times as slow, each kernel is
compiled for it once more, alone, in another process.
"""

from collections.abc import Iterator
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

import jax
from jax.sharding import SingleDeviceSharding
from tpu_schedule import one_line_each

from dualenc_jax.forecast import slices
from dualenc_jax.utils.errors import UserError

_TARGET = 'tpu_custom_call'
# Written by `fused_attention.py`.
_STEPS = re.compile(r'"steps":"(\d+)"')
_KERNEL = re.compile(
    rf'^ +(?:ROOT )?%[\w.\-]+ = (?P<results>.*?) custom-call\(.*'
    rf'custom_call_target="{_TARGET}", '
    r'operand_layout_constraints=\{(?P<operands>.*?\})\}, .*'
    r'op_name="(?P<place>[^"]*)".*backend_config=(?P<config>\{.*\})$',
    re.MULTILINE,
)
_SHAPE = re.compile(r'\b(pred|bf16|[fsu]\d+)\[([\d,]*)\]')
_BUNDLES = re.compile(r'total scheduled bundles: +(\d+)')
_DTYPES = {
    'pred': 'bool', 'bf16': 'bfloat16', 'f': 'float', 's': 'int', 'u': 'uint'
}


class _Kernel(NamedTuple):
  """A kernel of a program: its name; its arrays and its code as JSON."""

  name: str
  operands: str
  results: str
  config: str


class Timed(NamedTuple):
  """A program with the cycles of its kernels.

  Attributes:
    text: the program, with `estimated_cycles` of kernels too.
    kernels: their names.
    unknown: names of kernels without a number of steps.
  """

  text: str
  kernels: set[str]
  unknown: set[str]


def timed(text: str, on: slices.Slice) -> Timed:
  """Adds the cycles of its kernels to the text of a compiled program."""
  text = one_line_each(text)
  found = list(_KERNEL.finditer(text))
  wanted = {_kernel(each) for each in found if _STEPS.search(each[0])}
  bundles = _bundles(on.name, tuple(sorted(wanted))) if wanted else {}
  kernels: set[str] = set()
  unknown: set[str] = set()

  def add(each: re.Match) -> str:
    name, steps = _name(each), _STEPS.search(each[0])
    if not steps:
      unknown.add(name)
      return each[0]
    kernels.add(name)
    cycles = int(steps[1]) * bundles[_kernel(each)]
    return f'{each[0]}, kernel={{"estimated_cycles":"{cycles}"}}'

  return Timed(_KERNEL.sub(add, text), kernels, unknown)


def _name(found: re.Match) -> str:
  """'attention_forward' of '.../attention_forward/pallas_call'."""
  return found['place'].removesuffix('/pallas_call').rpartition('/')[2]


def _kernel(found: re.Match) -> _Kernel:
  # The memory of its arrays belongs to the program around it.
  config = json.loads(found['config'])['custom_call_config']
  return _Kernel(
      _name(found),
      json.dumps(_shapes(found['operands'])),
      json.dumps(_shapes(found['results'])),
      json.dumps({'custom_call_config': config}),
  )


def _shapes(types: str) -> list[tuple[str, list[int]]]:
  return [
      (
          _DTYPES.get(kind) or _DTYPES[kind[0]] + kind[1:],
          [int(dim) for dim in dims.split(',') if dim],
      )
      for kind, dims in _SHAPE.findall(types)
  ]


@functools.cache
def _bundles(
    slice_name: str, kernels: tuple[_Kernel, ...]
) -> dict[_Kernel, int]:
  with tempfile.TemporaryDirectory() as folder:
    flags = f'--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true'
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps([slice_name, folder, kernels]),
        env=os.environ | {
            'LIBTPU_INIT_ARGS': flags,
            'PYTHONPATH': os.pathsep.join(sys.path),
            # A cached program has no schedule.
            'JAX_ENABLE_COMPILATION_CACHE': 'false',
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
  numbers = [int(line) for line in done.stdout.split()]
  if done.returncode or len(numbers) != len(kernels):
    names = ', '.join(sorted({kernel.name for kernel in kernels}))
    raise UserError(
        f'The compiler does not report the size of the kernels {names}:'
        f' {done.stderr.strip()[-500:]}'
    )
  return dict(zip(kernels, numbers))


def _compile_each(
    slice_name: str, folder: pathlib.Path, kernels: list[list[str]]
) -> Iterator[int]:
  device = SingleDeviceSharding(slices.find_slice(slice_name).devices[0])

  def structs(shapes: str, **where: Any) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct(tuple(shape), dtype, **where)
        for dtype, shape in json.loads(shapes)
    ]

  for _, operands, results, config in kernels:
    call = jax.ffi.ffi_call(
        _TARGET,
        structs(results),
        custom_call_api_version=1,
        legacy_backend_config=config,
    )
    jax.jit(call).lower(*structs(operands, sharding=device)).compile()
    # The program around it has one, too, of another name.
    (file,) = folder.glob('*ffi_call*schedule-analysis_final_bundles.txt')
    yield int(_BUNDLES.findall(file.read_text())[0])
    for file in folder.iterdir():
      file.unlink()


if __name__ == '__main__':
  _slice, _folder, _kernels = json.load(sys.stdin)
  for _count in _compile_each(_slice, pathlib.Path(_folder), _kernels):
    print(_count)
