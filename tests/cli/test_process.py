"""What the process of a command has: signals and huge pages."""

import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from dualenc_jax.cli import main as cli, process

ASKED = 'glibc.malloc.hugetlb=1'


def test_a_held_one_comes_at_the_end():
  # Background jobs of a shell ignore SIGINT.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  done = []
  try:
    with pytest.raises(KeyboardInterrupt):
      with process.signals_held():
        signal.raise_signal(signal.SIGINT)
        done.append(True)
      done.append('not reached')
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
  finally:
    signal.signal(signal.SIGINT, before)
  assert done == [True]
  with process.signals_held():
    pass


def test_an_interrupt_before_the_command_begins_is_one_line():
  done = subprocess.run(
      [sys.executable, '-c', """
import runpy, signal, sys
class Interrupting:
  def find_spec(name, *_):
    if name == 'dualenc_jax.cli.process':
      signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting)
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module('dualenc_jax', run_name='__main__')
"""],
      capture_output=True, text=True, timeout=60,
  )
  assert (done.returncode, done.stderr) == (130, '\nInterrupted.\n')


def test_an_interrupt_waits_while_the_program_starts_again(monkeypatch):
  def is_held():
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])

  held = []
  monkeypatch.setattr(process, 'with_huge_pages', dict)
  monkeypatch.setattr(os, 'execve', lambda *_: held.append(is_held()))
  process.restart_with_huge_pages()
  assert held == [True] and not is_held()


@pytest.mark.parametrize(
    ('command', 'end'),
    [('serve', 'Interrupted.\n'), ('train', 'goes on from what is saved.\n')],
)
def test_an_interrupted_command_says_what_is_true(
    monkeypatch, capsys, command, end
):
  monkeypatch.setattr(sys, 'path', [*sys.path])
  def interrupted(rest):
    raise KeyboardInterrupt

  module = types.SimpleNamespace(main=interrupted)
  monkeypatch.setattr(importlib, 'import_module', lambda name: module)
  assert cli.main([command]) == 130
  assert capsys.readouterr().err.endswith(end)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGUSR1])
def test_a_run_that_is_not_yet_loaded_may_start_again(
    monkeypatch, number, capfd
):
  """With the status of one that has saved its step, not the signal's."""
  monkeypatch.setattr(sys, 'argv', ['dualenc', 'train'])
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(sys, 'unraisablehook', None)
  monkeypatch.setenv('GLIBC_TUNABLES', f'{process.TUNABLE}=0')
  monkeypatch.setattr(
      importlib, 'import_module', lambda name: signal.raise_signal(number)
  )
  both = signal.SIGTERM, signal.SIGUSR1
  before = {each: signal.getsignal(each) for each in both}
  try:
    with pytest.raises(SystemExit) as stopped:
      cli.main()
  finally:
    for each, handler in before.items():
      signal.signal(each, handler)
  assert stopped.value.code == 75
  assert f'{number.name}: stopped' in capfd.readouterr().err


@pytest.mark.parametrize(
    'number, error',
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)],
)
def test_one_that_is_ignored_comes_again(monkeypatch, number, error):
  def ended(*_):
    raise error

  def callback(*_):
    # Threads of XLA may collect garbage, too, and have signals blocked.
    if threading.current_thread() is threading.main_thread():
      gc.callbacks.remove(callback)
      signal.raise_signal(number)

  def slow_start(timer, start=threading.Timer.start):
    # A machine so busy that the timer is faster than this thread.
    monkeypatch.undo()
    start(timer)
    time.sleep(0.2)

  monkeypatch.setattr(threading.Timer, 'start', slow_start)
  hook = sys.unraisablehook
  process.send_ignored_signals_again()
  before = signal.signal(number, ended)
  try:
    with pytest.raises(error):
      gc.callbacks.append(callback)
      for _ in range(300):  # A sleep is not broken off.
        gc.collect()
        time.sleep(0.1)
  finally:
    sys.unraisablehook = hook
    signal.signal(number, before)


@pytest.mark.parametrize(
    ('environment', 'text', 'device', 'wanted'),
    [
        ({}, '[madvise]', None, ASKED),
        (
            {'GLIBC_TUNABLES': 'glibc.malloc.check=1'}, '[madvise]', None,
            f'glibc.malloc.check=1:{ASKED}',
        ),
        # Machines with an accelerator, unless the CPU is asked for.
        ({}, '[madvise]', 'nvidia0', None),
        ({'JAX_PLATFORMS': 'cpu'}, '[madvise]', 'nvidia0', ASKED),
        # The user has chosen, or the program has been started again.
        ({'GLIBC_TUNABLES': f'{process.TUNABLE}=0'}, '[madvise]', None, None),
        ({'GLIBC_TUNABLES': ASKED}, '[madvise]', None, None),
        # Kernels that do not give them on request, or do not say.
        ({}, '[always] madvise never', None, None),
        ({}, None, None, None),
    ],
)
def test_huge_pages_where_something_is_gained(
    environment, text, device, wanted, tmp_path
):
  if text:
    (tmp_path / 'enabled').write_text(text + '\n')
  if device:
    (tmp_path / device).touch()
  found = process.with_huge_pages(environment, tmp_path / 'enabled', tmp_path)
  assert found == (wanted and {**environment, 'GLIBC_TUNABLES': wanted})


@pytest.mark.slow
def test_the_command_itself_starts_again_once(tmp_path):
  environment = {**os.environ}
  environment.pop('GLIBC_TUNABLES', None)
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
  gained = process.with_huge_pages(environment) is not None
  assert done.stderr.count(ASKED) == gained
  # What came after the start is what the command says.
  assert done.returncode == 2
  assert 'no_model' in done.stderr


def test_programs_that_call_a_command_are_left_alone(monkeypatch):
  monkeypatch.setattr(
      process, 'restart_with_huge_pages', lambda: pytest.fail('restarted')
  )
  assert cli.main(['search', '--model_dir=no_model', 'query']) == 2
