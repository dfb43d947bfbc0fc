"""No TPU runtime is started where only its compiler is wanted."""

import importlib.util
import os
import subprocess
import sys

import pytest

from dualenc_jax.parallel import accelerators


@pytest.fixture
def machine(tmp_path, monkeypatch):
  """A folder of a machine without accelerators, but with libtpu."""
  found = importlib.util.find_spec
  monkeypatch.setattr(
      importlib.util, 'find_spec', lambda name: name == 'libtpu' or found(name)
  )
  (tmp_path / 'dev').mkdir()
  return tmp_path


def platforms(machine, **environment):
  accelerators.disable_absent_tpus(environment, machine / 'dev')
  return environment.get('JAX_PLATFORMS')


@pytest.mark.parametrize(
    'file', [None, 'dev/nvidia0', 'dev/accel0', 'dev/vfio/7']
)
def test_an_absent_tpu_is_left_out(machine, file):
  if file:
    (machine / file).parent.mkdir(exist_ok=True)
    (machine / file).touch()
  assert platforms(machine) == (None if file else 'cpu')


def test_who_chooses_is_left_alone(machine):
  assert platforms(machine, JAX_PLATFORMS='tpu') == 'tpu'


def test_nothing_is_said_of_tpus_before_or_after_jax_is_imported():
  """As benchmarks and commands start."""
  has_libtpu = importlib.util.find_spec('libtpu') is not None
  if not has_libtpu or accelerators.has_accelerator():
    pytest.skip('of a machine with libtpu and without accelerators')
  environment = {k: v for k, v in os.environ.items() if k != 'JAX_PLATFORMS'}
  # Else one that another process holds would be silent.
  environment['ALLOW_MULTIPLE_LIBTPU_LOAD'] = 'true'
  for first, second in (('jax', 'dualenc_jax'), ('dualenc_jax', 'jax')):
    done = subprocess.run(
        [sys.executable, '-c', f'import {first}, {second}; jax.devices()'],
        capture_output=True, text=True, env=environment, timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, '')
