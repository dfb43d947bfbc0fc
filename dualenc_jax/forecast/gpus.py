"""GPUs that are not there, for XLA's compiler in JAX's CUDA plug-in.

Without a GPU the compiler can neither try kernels nor call cuBLAS and cuDNN:
products are its own, so that memory may differ from that of a real GPU.
"""

from collections.abc import Sequence
import importlib.metadata
from typing import Any

import jax
from jax.experimental import topologies

from dualenc_jax.utils.errors import UserError

# GPUs of a machine.
_PER_HOST = 8
# SXM5 boards: name, bytes of memory, bytes a second of it.
_HOPPERS = {
    'h100': ('NVIDIA H100 80GB HBM3', 84_978_434_048, 3_352_320_000_000),
    'h200': ('NVIDIA H200', 150_754_820_096, 4_916_736_000_000),
}
# CUDA's properties of a device of compute capability 9.0, for XLA's compiler.
_TARGET = """
gpu_device_info {{
  cuda_compute_capability {{ major: 9 }}
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  l2_cache_size: 52428800
  device_memory_size: {memory}
  memory_bandwidth: {bandwidth}
}}
platform_name: "CUDA"
runtime_version {{ major: 12 minor: 9 }}
dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "{name}"
"""
_PLUGINS = 'jax-cuda12-pjrt', 'jax-cuda13-pjrt'


def check_compiler(kind: str) -> str:
  """Returns name and version of the compiler; raises UserError without one."""
  for plugin in _PLUGINS:
    try:
      return f'{plugin} {importlib.metadata.version(plugin)}'
    except importlib.metadata.PackageNotFoundError:
      continue
  raise UserError(
      f"--topology={kind}:... compiles with JAX's CUDA plug-in, which is not"
      " installed. Install it: pip install -e '.[gpu]' in the clone. It needs"
      ' no GPU.'
  )


def make_devices(kind: str, number: str) -> Sequence[jax.Device]:
  """Returns 'h100' or 'h200' devices that compute nothing.

  Raises:
    UserError: the number is none, or not one of whole machines of 8.
  """
  count = int(number) if number.isdecimal() and number.isascii() else 0
  if not count or count > _PER_HOST and count % _PER_HOST:
    raise UserError(
        f'--topology={kind}:{number} has no number of GPUs; expected 1 to'
        f' {_PER_HOST}, or a multiple of it, such as {kind}:8.'
    )
  name, memory, bandwidth = _HOPPERS[kind]
  hosts, of_host = max(count // _PER_HOST, 1), min(count, _PER_HOST)
  slice_: Any = topologies.get_topology_desc(
      platform='cuda',
      topology=f'1x{hosts}x{of_host}',
      target_config=_TARGET.format(
          name=name, memory=memory, bandwidth=bandwidth
      ),
  )
  return tuple(slice_.devices)
