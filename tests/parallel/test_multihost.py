"""Two processes over gloo train as one does."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
import tiny_training
import two_hosts

from dualenc_jax.training import Partitioner
from dualenc_jax.training.checkpoints import Checkpoints

pytestmark = pytest.mark.slow

SECONDS = 180


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """What both hosts wrote."""
  folder = tmp_path_factory.mktemp('two_hosts')
  with socket.socket() as s:
    s.bind(('localhost', 0))
    address = f'localhost:{s.getsockname()[1]}'
  root = pathlib.Path(__file__).parents[2]
  hosts = [
      subprocess.Popen(
          [sys.executable, two_hosts.__file__, address, str(host), folder],
          env={
              **os.environ,
              'PYTHONPATH': os.pathsep.join([str(root), str(root / 'tests')]),
              'XLA_FLAGS': '--xla_force_host_platform_device_count=2',
          },
          stdout=subprocess.PIPE,
          stderr=subprocess.STDOUT,
          text=True,
      )
      for host in range(2)
  ]
  try:
    for host in hosts:
      output, _ = host.communicate(timeout=SECONDS)
      assert host.returncode == 0, output[-5000:]
  finally:
    for host in hosts:
      host.kill()
      host.wait()
  return folder


@pytest.fixture(scope='module')
def one_process():
  """Losses and the last state of a single process, one device, dense loss."""
  return two_hosts.train(
      tiny_training.OneDevice(), two_hosts.padded_batch, 'dense'
  )


@pytest.mark.parametrize(
    'model_parallel, cells', [(2, [[0], [1]]), (4, [[0], [0]])]
)
def test_two_hosts_lay_out_their_parts_of_a_batch(
    folder, model_parallel, cells
):
  losses, _ = two_hosts.train(
      tiny_training.OneDevice(), two_hosts.packed_batches(1), 'dense'
  )
  for host in range(2):
    results = json.loads((folder / f'{host}.json').read_text())
    found = results[str(model_parallel)]
    assert found['cells'] == cells[host]
    np.testing.assert_allclose(found['packed'], losses, rtol=2e-6)


@pytest.mark.parametrize(
    'model_parallel, rows',
    [
        (2, ([0, 1, 2, 3], [4, 5, 6, 7])),
        # The model axis spans the hosts: both feed every row.
        (4, (list(range(8)), list(range(8)))),
    ],
)
def test_two_hosts_train_as_one(folder, one_process, model_parallel, rows):
  losses, state = one_process
  for host in range(2):
    results = json.loads((folder / f'{host}.json').read_text())
    assert results[str(model_parallel)]['rows'] == rows[host]
    np.testing.assert_allclose(
        results[str(model_parallel)]['losses'], losses, rtol=2e-6
    )
  # Their checkpoint, restored by one process onto its own mesh.
  abstract, _, _ = tiny_training.plan(Partitioner(2))
  restored, meta = Checkpoints(folder / str(model_parallel)).restore(abstract)
  assert meta['step'] == two_hosts.STEPS
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
      jax.device_get(restored.params),
      jax.device_get(state.params),
  )
