"""What a command sets up before it computes: programs, huge pages, cores."""

import os
import pathlib
import subprocess
import sys
import threading
import types

import jax
import pytest

from dualenc_jax.cli import cores, huge_pages, main as cli, runtime, train
from dualenc_jax.data import readers
from dualenc_jax.utils.errors import UserError

ASKED = 'glibc.malloc.hugetlb=1'


def test_devices_of_a_cpu_keep_programs_only_where_they_are_told(
    monkeypatch, tmp_path
):
  jax.config.update('jax_compilation_cache_dir', None)
  monkeypatch.setenv('DUALENC_CACHE', str(tmp_path))
  monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR')
  for count, told, wanted in (
      (8, None, None), (1, None, 'compiled'), (8, 'mine', 'mine')
  ):
    monkeypatch.setattr(jax, 'device_count', lambda count=count: count)
    if told:
      monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', str(tmp_path / told))
    runtime.use_compilation_cache()
    found = jax.config.jax_compilation_cache_dir
    assert found == (wanted and str(tmp_path / wanted))


@pytest.mark.parametrize(
    ('environment', 'text', 'version', 'device', 'wanted'),
    [
        ({}, '[madvise]', (2, 36), None, ASKED),
        (
            {'GLIBC_TUNABLES': 'glibc.malloc.check=1'}, '[madvise]', (2, 36),
            None, f'glibc.malloc.check=1:{ASKED}',
        ),
        # Machines with an accelerator, unless the CPU is asked for.
        ({}, '[madvise]', (2, 36), 'nvidia0', None),
        ({'JAX_PLATFORMS': 'cpu'}, '[madvise]', (2, 36), 'nvidia0', ASKED),
        # The environment turns it off.
        ({'DUALENC_HUGE_PAGES': '0'}, '[madvise]', (2, 36), None, None),
        ({'GLIBC_TUNABLES': ASKED}, '[madvise]', (2, 36), None, None),
        # Kernels that do not give them on request.
        ({}, '[always] madvise never', (2, 36), None, None),
        # A library without the tunable.
        ({}, '[madvise]', (2, 34), None, None),
    ],
)
def test_huge_pages_where_something_is_gained(
    environment, text, version, device, wanted, tmp_path, monkeypatch
):
  monkeypatch.setattr(huge_pages, '_glibc', lambda: version)
  if text:
    (tmp_path / 'enabled').write_text(text + '\n')
  if device:
    (tmp_path / device).touch()
  found = huge_pages.environment(environment, tmp_path / 'enabled', tmp_path)
  assert found == (wanted and {**environment, 'GLIBC_TUNABLES': wanted})


@pytest.mark.slow
def test_the_command_itself_starts_again_once(tmp_path):
  known = {'GLIBC_TUNABLES', huge_pages.SWITCH}
  environment = {k: v for k, v in os.environ.items() if k not in known}
  # Each start of Python says with what tunables.
  (tmp_path / 'sitecustomize.py').write_text(
      'import os, sys\nprint(os.environ.get("GLIBC_TUNABLES"), file=sys.stderr)'
  )
  paths = str(tmp_path), environment.get('PYTHONPATH', '')
  environment['PYTHONPATH'] = os.pathsep.join(filter(None, paths))
  done = subprocess.run(
      [sys.executable, '-m', 'dualenc_jax', 'search', '--model_dir=no_model'],
      capture_output=True, text=True, env=environment, cwd=tmp_path,
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
  tasks = pathlib.Path('/proc/self/task').iterdir()
  return [os.sched_getaffinity(int(task.name)) for task in tasks]


def test_cores_of_threads_that_are_and_are_to_come():
  allowed, seen = os.sched_getaffinity(0), []
  jax.devices()
  with pytest.raises(KeyError):
    with cores.limited(1) as count:
      assert count == 1
      before = of_all_threads()
      new = threading.Thread(
          target=lambda: seen.append(os.sched_getaffinity(0))
      )
      new.start()
      new.join()
      # An error gives them back, too.
      raise KeyError
  assert len(before) > 2
  assert len(before[0]) == 1 and before[0] <= allowed
  assert all(own == before[0] for own in before) and seen == [before[0]]
  assert all(own == allowed for own in of_all_threads())
  with cores.limited(None) as count:
    assert count == len(allowed)
    assert all(own == allowed for own in of_all_threads())
  count += 1
  with pytest.raises(UserError, match=f'{count}; .*use {count - 1} core'):
    with cores.limited(count):
      pass


def test_hyperthreads_of_a_core_are_last(tmp_path):
  for core, siblings in ((0, '0-1'), (1, '0-1'), (2, '2-3'), (3, '2-3')):
    folder = tmp_path / f'cpu{core}' / 'topology'
    folder.mkdir(parents=True)
    (folder / 'thread_siblings_list').write_text(f'{siblings}\n')
  assert cores.apart([0, 1, 2, 3], tmp_path) == [0, 2, 1, 3]
  # Where the kernel does not say, as they come.
  assert cores.apart([4, 5, 6], tmp_path) == [4, 5, 6]


@pytest.mark.parametrize('given, more', [
    ({'train': 'a.jsonl'}, ['--split=train']),
    ({'train': 'a.jsonl', 'validation': 'b.jsonl'}, []),
])
def test_a_run_without_other_data_is_measured_on_its_own(given, more):
  run = types.SimpleNamespace(
      model_dir='m', task=readers.Pairs(**given),
      objective=types.SimpleNamespace(embedder=None),
  )
  words = ['dualenc', 'evaluate', '--model_dir=m', *more]
  assert train.next_words(run) == words


def test_a_stage_of_a_recipe_leaves_the_next_step_to_it(monkeypatch, capsys):
  runtime.next_step('one')
  monkeypatch.setenv(runtime.STAGE, '1')
  runtime.next_step('two')
  assert capsys.readouterr().out == 'one\n'
