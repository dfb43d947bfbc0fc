"""The cores of the machine that this process computes on."""

import collections
from collections.abc import Iterator, Sequence
import contextlib
import os
import pathlib

from dualenc_jax.utils.errors import UserError

_TOPOLOGY = pathlib.Path('/sys/devices/system/cpu')
_THREADS = pathlib.Path('/proc/self/task')


@contextlib.contextmanager
def limited(count: int | None) -> Iterator[int]:
  """Keeps all threads of this process on so many cores; yields how many.

  XLA makes as many threads as there are cores for it where JAX's backend starts
  within the block; those of a backend that runs share the cores. What is made
  later inherits them. Neither XLA nor JAX has a flag for it. None stands for
  all that this process may use.
  """
  can_choose = hasattr(os, 'sched_setaffinity') and _THREADS.is_dir()
  if count is not None and not can_choose:
    raise UserError(
        f'--threads is {count}; only Linux can restrict a process to some'
        ' cores. Leave it out to use all.'
    )
  if not can_choose:
    yield os.cpu_count() or 1
    return
  allowed = os.sched_getaffinity(0)
  if count is None:
    yield len(allowed)
    return
  if count > len(allowed):
    raise UserError(
        f'--threads is {count}; this process may use {len(allowed)} cores. Give'
        ' at most that many.'
    )
  _move(apart(sorted(allowed))[:count])
  try:
    yield count
  finally:
    _move(allowed)


def apart(
    cores: Sequence[int], topology: pathlib.Path = _TOPOLOGY
) -> list[int]:
  """The cores, as the kernel counts them, hyperthreads of one core last.

  The kernel's folder `topology` says which share a core.
  """
  seen: collections.Counter[str] = collections.Counter()

  def turn(core: int) -> int:
    file = topology / f'cpu{core}' / 'topology' / 'thread_siblings_list'
    try:
      siblings = file.read_text().strip()
    except OSError:
      siblings = f'cpu{core}'
    seen[siblings] += 1
    return seen[siblings]

  return sorted(cores, key=turn)


def _move(cores: Sequence[int] | set[int]) -> None:
  """Puts every thread of this process on these cores."""
  for thread in _THREADS.iterdir():
    # One may have ended since.
    with contextlib.suppress(ProcessLookupError):
      os.sched_setaffinity(int(thread.name), cores)
