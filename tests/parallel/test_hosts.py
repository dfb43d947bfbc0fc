"""How hosts are named; what they do together is in tests/commands."""

import signal
import subprocess
import sys

import pytest

from dualenc_jax.cli import train
from dualenc_jax.parallel import hosts
from dualenc_jax.utils.errors import RUN_AGAIN, UserError

RUN = '--gin_file=runs/quickstart.gin'


@pytest.mark.parametrize(
    ('flags', 'said'),
    [
        (['--process_id=0'], 'only --process_id given. Expected --multihost'),
        (
            ['--multihost', '--num_processes=2', '--process_id=0'],
            'only --num_processes, --process_id given. Expected --multihost wi',
        ),
        (
            ['--multihost', '--coordinator_address=node-1'],
            'is node-1; expected a name and a port',
        ),
    ],
)
def test_hosts_half_named(flags, said):
  with pytest.raises(UserError, match=said):
    train.main([RUN, *flags])


def test_hosts_that_jax_does_not_find(monkeypatch):
  def fail(*args, **kwargs):
    raise ValueError('coordinator_address should be defined.')

  monkeypatch.setattr('jax.distributed.initialize', fail)
  with pytest.raises(UserError, match='not find the hosts: coord.* srun'):
    hosts.join(None, None, None, 5, '')


def test_alone_there_is_nothing_to_do():
  hosts.agree('configs', 'SEED = 0')
  hosts.wait_for_all()
  hosts.leave()
  assert hosts.end(2, 'has failed') == 2 and not hosts.is_joined()


@pytest.mark.parametrize(
    ('thrown', 'status'),
    [
        # As by JAX where it gives a host up; anything else is a real fault.
        ('_ZSt16__throw_bad_castv', RUN_AGAIN),
        ('_ZSt17__throw_bad_allocv', -signal.SIGABRT),
    ],
)
def test_a_function_in_place_of_an_abort(thrown, status):
  done = subprocess.run([
      sys.executable, '-c',
      'import ctypes, os, threading\n'
      'from dualenc_jax.parallel import lost_hosts\n'
      f'lost_hosts._call_at_bad_cast(lambda: os._exit({RUN_AGAIN}))\n'
      f'throw = ctypes.CDLL("libstdc++.so.6").{thrown}\n'
      'threading.Thread(target=throw).start()\n',
  ])
  assert done.returncode == status
