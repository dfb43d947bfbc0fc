"""Huge pages for glibc's heap, which only a fresh process can ask for.

XLA on a CPU allocates the temporaries of a step by malloc and touches them for
the first time again and again. On pages of 4 KiB the faults take a third to a
half of a training step; on huge pages they do not count.
"""

from collections.abc import Mapping
import os
import pathlib
import sys

from dualenc_jax.parallel import accelerators

# What turns this off: DUALENC_HUGE_PAGES=0.
SWITCH = 'DUALENC_HUGE_PAGES'
TUNABLE = 'glibc.malloc.hugetlb'
_MODE = pathlib.Path('/sys/kernel/mm/transparent_hugepage/enabled')


def restart() -> None:
  """Starts this program again, with the same id, where huge pages help."""
  changed = environment(os.environ)
  if changed is not None:
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], changed)


def environment(
    current: Mapping[str, str],
    mode: pathlib.Path = _MODE,
    devices: pathlib.Path = pathlib.Path('/dev'),
) -> dict[str, str] | None:
  """The environment to start again with; None where nothing is gained.

  That is where it is turned off or set already, where the kernel gives huge
  pages to all or to none, where glibc is too old or another libc runs, and
  where JAX computes on an accelerator. The kernel's file `mode` says who gets
  huge pages.
  """
  tunables = current.get('GLIBC_TUNABLES', '')
  if current.get(SWITCH) == '0' or TUNABLE in tunables:
    return None
  try:
    on_request = '[madvise]' in mode.read_text()
  except OSError:
    return None
  # The oldest glibc that has the tunable.
  if not on_request or _glibc() < (2, 35):
    return None
  if current.get('JAX_PLATFORMS') != 'cpu' and accelerators.any_here(devices):
    return None
  both = ':'.join(filter(None, [tunables, f'{TUNABLE}=1']))
  return {**current, 'GLIBC_TUNABLES': both}


def _glibc() -> tuple[int, ...]:
  """Version of glibc; () of any other libc."""
  try:
    name, version = (os.confstr('CS_GNU_LIBC_VERSION') or '').split()
    return tuple(map(int, version.split('.'))) if name == 'glibc' else ()
  except (AttributeError, OSError, ValueError):
    return ()
