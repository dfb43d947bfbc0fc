"""What a command sets up before it computes: programs, huge pages, cores."""

import logging
import os
import pathlib
import subprocess
import sys
import threading

import jax
import pytest

from dualenc_jax.commands import cli, cores, huge_pages, runtime
from dualenc_jax.errors import UserError

pytestmark = pytest.mark.devices(8)

ASKED = 'glibc.malloc.hugetlb=1'


def test_devices_of_a_cpu_keep_programs_only_where_they_are_told(
    monkeypatch, tmp_path
):
  jax.config.update('jax_compilation_cache_dir', None)
  monkeypatch.setenv('DUALENC_CACHE', str(tmp_path))
  monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR')
  runtime.use_compilation_cache()
  assert jax.config.jax_compilation_cache_dir is None
  monkeypatch.setattr(jax, 'device_count', lambda: 1)
  runtime.use_compilation_cache()
  assert jax.config.jax_compilation_cache_dir == str(tmp_path / 'compiled')
  monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', str(tmp_path / 'mine'))
  runtime.use_compilation_cache()
  assert jax.config.jax_compilation_cache_dir == str(tmp_path / 'mine')


def test_what_orbax_raises_is_not_logged_with_tracebacks(capsys):
  runtime.start_logging()
  log = logging.getLogger('absl')
  try:
    raise ValueError('no space')
  except ValueError:
    log.exception('a thread failed')
  log.warning('something else')
  said = capsys.readouterr().err
  assert 'something else' in said and 'Traceback' not in said


@pytest.fixture
def mode(tmp_path, monkeypatch):
  """Kernel's file on a machine where huge pages are to be had."""
  monkeypatch.setattr(huge_pages, '_glibc', lambda: (2, 36))
  path = tmp_path / 'enabled'
  path.write_text('always [madvise] never\n')
  return path


def test_the_tunable_joins_those_of_the_user(mode, tmp_path):
  environment = {'GLIBC_TUNABLES': 'glibc.malloc.check=1', 'A': 'b'}
  changed = huge_pages.environment(environment, mode, tmp_path)
  assert changed == {
      'GLIBC_TUNABLES': f'glibc.malloc.check=1:{ASKED}', 'A': 'b'
  }


@pytest.mark.parametrize(
    ('environment', 'text', 'version'),
    [
        # The environment turns it off.
        ({'DUALENC_HUGE_PAGES': '0'}, '[madvise]', (2, 36)),
        ({'GLIBC_TUNABLES': ASKED}, '[madvise]', (2, 36)),
        ({'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=0'}, '[madvise]', (2, 36)),
        # Kernels that do not give them on request.
        ({}, '[always] madvise never', (2, 36)),
        ({}, None, (2, 36)),
        # Libraries without the tunable.
        ({}, '[madvise]', ()),
        ({}, '[madvise]', (2, 34)),
    ],
)
def test_where_nothing_is_gained(
    environment, text, version, mode, tmp_path, monkeypatch
):
  monkeypatch.setattr(huge_pages, '_glibc', lambda: version)
  mode.unlink() if text is None else mode.write_text(text)
  assert huge_pages.environment(environment, mode, tmp_path) is None


def test_machines_with_an_accelerator(mode, tmp_path):
  (tmp_path / 'nvidia0').touch()
  assert huge_pages.environment({}, mode, tmp_path) is None
  on_cpu = {'JAX_PLATFORMS': 'cpu'}
  assert huge_pages.environment(on_cpu, mode, tmp_path) is not None


def test_a_restart_keeps_the_command(monkeypatch):
  started = []
  monkeypatch.setattr(huge_pages, 'environment', lambda _: {'A': 'b'})
  monkeypatch.setattr(os, 'execve', lambda *args: started.append(args))
  huge_pages.restart()
  ((program, argv, environment),) = started
  assert program == sys.executable and environment == {'A': 'b'}
  assert argv == [sys.executable, *sys.orig_argv[1:]]


@pytest.mark.slow
def test_the_command_itself_starts_again_once(tmp_path):
  known = {'GLIBC_TUNABLES', huge_pages.SWITCH}
  environment = {k: v for k, v in os.environ.items() if k not in known}
  done = subprocess.run(
      [sys.executable, '-m', 'dualenc_jax', 'search', '--model_dir=no_model'],
      capture_output=True,
      text=True,
      env=environment,
      cwd=tmp_path,
      timeout=300,
  )
  gained = huge_pages.environment(environment) is not None
  assert done.stderr.count(ASKED) == gained
  # What came after the start is what the command says.
  assert done.returncode == 2
  assert 'no_model' in done.stderr


def test_programs_that_call_a_command_are_left_alone(monkeypatch):
  monkeypatch.setattr(huge_pages, 'restart', lambda: pytest.fail('restarted'))
  assert cli.main(['search', '--model_dir=no_model', 'query']) == 2


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
