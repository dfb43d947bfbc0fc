"""How much memory a device has."""

import os
import pathlib

import jax


def device_memory() -> int | None:
  """Bytes that JAX may use of a device, None if the backend does not tell.

  Simulated CPU devices share the machine's memory, or what its control group
  allows, evenly.
  """
  device = jax.local_devices()[0]
  if device.platform == 'cpu':
    return machine_memory() // jax.local_device_count()
  return (device.memory_stats() or {}).get('bytes_limit')


def machine_memory(
    cgroups: pathlib.Path = pathlib.Path('/sys/fs/cgroup'),
    own: pathlib.Path = pathlib.Path('/proc/self/cgroup'),
) -> int:
  """Bytes of physical memory, or the lowest limit of this process's groups.

  Args:
    cgroups: where control groups are mounted, of version 1 or 2.
    own: lists the groups of this process, 'number:controllers:path' a line.
  """
  limits = [os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')]
  lines = own.read_text().splitlines() if own.exists() else []
  for _, controllers, group in (line.split(':', 2) for line in lines):
    if controllers == '':
      root, name = cgroups, 'memory.max'
    elif 'memory' in controllers.split(','):
      root, name = cgroups / 'memory', 'memory.limit_in_bytes'
    else:
      continue
    folder = root / group.lstrip('/')
    # A container may see its own group as the root of the mount.
    for file in [f / name for f in (folder, *folder.parents)]:
      if file.is_relative_to(root) and file.exists():
        text = file.read_text().strip()
        limits += [] if text == 'max' else [int(text)]
  return min(limits)
