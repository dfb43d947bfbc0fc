"""Threads of the process are kept on as many cores as are asked for."""

import os
import pathlib
import threading

import jax
import pytest

from dualenc_jax.commands import cores
from dualenc_jax.errors import UserError


def of_all_threads() -> list[set[int]]:
  """Cores of each thread of this process, by the kernel's own list."""
  found = []
  for status in pathlib.Path('/proc/self/task').glob('*/status'):
    (line,) = [
        line for line in status.read_text().splitlines()
        if line.startswith('Cpus_allowed_list')
    ]
    own = set()
    for part in line.split()[1].split(','):
      first, _, last = part.partition('-')
      own |= {*range(int(first), int(last or first) + 1)}
    found.append(own)
  return found


def test_those_there_are_and_those_to_come():
  allowed = os.sched_getaffinity(0)
  jax.devices()
  seen = []
  with cores.limited(1) as count:
    assert count == 1
    before = of_all_threads()
    new = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
    new.start()
    new.join()
  assert len(before) > 8
  assert len(before[0]) == 1 and before[0] < allowed | {-1}
  assert all(own == before[0] for own in before) and seen == [before[0]]
  assert all(own == allowed for own in of_all_threads())


def test_without_a_number_it_is_all_of_them():
  allowed = os.sched_getaffinity(0)
  with cores.limited(None) as count:
    assert count == len(allowed)
    assert all(own == allowed for own in of_all_threads())


def test_an_error_gives_them_back():
  allowed = os.sched_getaffinity(0)
  with pytest.raises(KeyError):
    with cores.limited(1):
      raise KeyError
  assert all(own == allowed for own in of_all_threads())


def test_more_than_there_are():
  count = len(os.sched_getaffinity(0))
  with pytest.raises(UserError, match=f'{count + 1}; .*use {count} core'):
    with cores.limited(count + 1):
      pass


def test_hyperthreads_of_a_core_are_last(tmp_path):
  for core, siblings in ((0, '0-1'), (1, '0-1'), (2, '2-3'), (3, '2-3')):
    folder = tmp_path / f'cpu{core}' / 'topology'
    folder.mkdir(parents=True)
    (folder / 'thread_siblings_list').write_text(f'{siblings}\n')
  assert cores.apart([0, 1, 2, 3], tmp_path) == [0, 2, 1, 3]
  # Where the kernel does not say, as they come.
  assert cores.apart([4, 5, 6], tmp_path) == [4, 5, 6]
