"""Facts of this process and machine: versions of code, memory."""

from collections.abc import Iterator
import contextlib
import functools
import importlib.metadata
import os
import pathlib
import platform
import subprocess

import jax

_LIBRARIES = ('flax', 'jax', 'jaxlib', 'numpy')


def versions() -> dict[str, str]:
  """The versions of Python and of the libraries that numbers depend on."""
  return {
      'python': platform.python_version(),
      **{name: importlib.metadata.version(name) for name in _LIBRARIES},
  }


@functools.cache
def git_revision() -> str | None:
  """The commit of the package's own clone, with '-dirty' if files differ."""
  root = pathlib.Path(__file__).resolve().parents[2]
  if not (root / '.git').exists():
    return None
  command = ['git', '-C', str(root), 'describe', '--always', '--dirty']
  command += ['--abbrev=40', '--exclude=*']
  try:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True
    )
  except (OSError, subprocess.SubprocessError):
    return None
  return done.stdout.strip() or None


def cpu() -> str:
  """The maker's name of the CPU, or its architecture."""
  for name, value in _facts('/proc/cpuinfo'):
    if name == 'model name':
      return value
  return platform.machine()


def device_memory() -> int | None:
  """Bytes that JAX may use of a device, None if the backend does not say.

  Simulated CPU devices share `machine_memory` evenly.
  """
  device = jax.local_devices()[0]
  if device.platform == 'cpu':
    return machine_memory() // jax.local_device_count()
  return (device.memory_stats() or {}).get('bytes_limit')


def _facts(path: str) -> Iterator[tuple[str, str]]:
  """Names and values of a file of 'name: value'; none where it is missing."""
  with contextlib.suppress(OSError):
    for line in pathlib.Path(path).read_text().splitlines():
      name, _, value = line.partition(':')
      yield name.strip(), value.strip()


def machine_memory(
    cgroups: pathlib.Path = pathlib.Path('/sys/fs/cgroup'),
    own: pathlib.Path = pathlib.Path('/proc/self/cgroup'),
) -> int:
  """Bytes of physical memory, or the lowest limit of this process's groups.

  Control groups (version 2) are mounted at `cgroups`; `own` has that of this
  process, '0::path'.
  """
  limits = [os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')]
  lines = own.read_text().splitlines() if own.exists() else []
  for group in (line[3:] for line in lines if line.startswith('0::')):
    folder = cgroups / group.lstrip('/')
    # A container may see its own group as the root of the mount.
    for file in [f / 'memory.max' for f in (folder, *folder.parents)]:
      if file.is_relative_to(cgroups) and file.exists():
        text = file.read_text().strip()
        limits += [] if text == 'max' else [int(text)]
  return min(limits)
