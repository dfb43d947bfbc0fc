"""Which hosts flags, variables and clusters tell; nothing is joined."""

import pytest

from dualenc_jax.commands import train
from dualenc_jax.errors import UserError
from dualenc_jax.parallel import cluster

NAMES = 'coordinator_address', 'num_processes', 'process_id'
NONE = dict.fromkeys(NAMES)
GIVEN = dict(zip(NAMES, ('10.0.0.1:8476', 4, 3)))
JAX = {
    'JAX_COORDINATOR_ADDRESS': '10.0.0.2:99',
    'JAX_NUM_PROCESSES': '2',
    'JAX_PROCESS_ID': '0',
}
SLURM = {
    'SLURM_JOB_ID': '4097',
    'SLURM_STEP_NODELIST': 'node[07-09],other',
    'SLURM_NTASKS': '3',
    'SLURM_PROCID': '2',
    'SLURM_LOCALID': '0',
}


def test_flags_come_before_variables_and_these_before_slurm(monkeypatch):
  for name, value in SLURM.items():
    monkeypatch.setenv(name, value)
  found = cluster.find(GIVEN, JAX | SLURM, 5)
  assert found == cluster.Cluster('10.0.0.1:8476', 4, 3)
  found = cluster.find(NONE, JAX | SLURM, 5)
  assert found == cluster.Cluster('10.0.0.2:99', 2, 0)
  # The first node; a port of the job's number, above 65535 - 4096.
  found = cluster.find(NONE, SLURM, 5)
  assert found == cluster.Cluster('node07:61441', 3, 2, [0])


@pytest.mark.parametrize(
    ('flags', 'variables', 'said'),
    [
        (
            {}, {'JAX_PROCESS_ID': None},
            'JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES are given without'
            ' JAX_PROCESS_ID. Expected all three',
        ),
        ({}, {'JAX_NUM_PROCESSES': 'two'}, 'JAX_NUM_PROCESSES is .two.; ex'),
        ({}, {'JAX_COORDINATOR_ADDRESS': 'a:70000'}, 'ADDRESS is .a:70000.; e'),
    ],
)
def test_what_is_half_there_is_named(flags, variables, said):
  with pytest.raises(UserError, match=said):
    cluster.find(NONE | flags, {**JAX, **variables} if variables else {}, 5)


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (
            {'SLURM_PROCID': None, 'SLURM_STEP_NODELIST': None},
            'SLURM_JOB_ID is set and SLURM_STEP_NODELIST, SLURM_PROCID not: .*'
            ' srun.*--coordinator_address=HOST:PORT',
        ),
        (dict.fromkeys(SLURM), 'the hosts are unknown. Expected'),
    ],
)
def test_what_slurm_has_not_set_is_named(monkeypatch, change, said):
  environ = {k: v for k, v in (SLURM | change).items() if v is not None}
  for name, value in environ.items():
    monkeypatch.setenv(name, value)
  with pytest.raises(UserError, match=said):
    cluster.find(NONE, environ, 5)


def test_commands_take_the_flags():
  with pytest.raises(UserError, match='--process_id is given without --multih'):
    train.main(['--gin_file=runs/quickstart.gin', '--process_id=0'])
