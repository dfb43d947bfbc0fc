"""How hosts are named; what they do together is in tests/commands."""

import pytest

from dualenc_jax.cli import train
from dualenc_jax.parallel import hosts
from dualenc_jax.utils.errors import UserError

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
