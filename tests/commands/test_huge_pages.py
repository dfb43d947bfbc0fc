"""Commands that compute on a CPU start again with huge pages, once."""

import os
import subprocess
import sys

import pytest

from dualenc_jax.commands import cli, huge_pages

ASKED = 'glibc.malloc.hugetlb=1'


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
    'environment',
    [
        {'DUALENC_HUGE_PAGES': '0'},
        {'GLIBC_TUNABLES': ASKED},
        {'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=0'},
    ],
)
def test_the_environment_turns_it_off(environment, mode, tmp_path):
  assert huge_pages.environment(environment, mode, tmp_path) is None


@pytest.mark.parametrize('text', ['[always] madvise never', '', None])
def test_kernels_that_do_not_give_them_on_request(text, mode, tmp_path):
  mode.unlink() if text is None else mode.write_text(text)
  assert huge_pages.environment({}, mode, tmp_path) is None


@pytest.mark.parametrize('version', [(), (2, 34)])
def test_libraries_without_the_tunable(version, mode, tmp_path, monkeypatch):
  monkeypatch.setattr(huge_pages, '_glibc', lambda: version)
  assert huge_pages.environment({}, mode, tmp_path) is None


def test_machines_with_an_accelerator(mode, tmp_path):
  (tmp_path / 'nvidia0').touch()
  assert huge_pages.environment({}, mode, tmp_path) is None
  on_cpu = {'JAX_PLATFORMS': 'cpu'}
  assert huge_pages.environment(on_cpu, mode, tmp_path) is not None


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
