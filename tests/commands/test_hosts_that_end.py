"""Two hosts of which one dies, hangs, or has something else."""

import re
import signal
import socket
import time

import cut_network
import interrupted
import pytest
import tiny_run
import two_hosts

import dualenc_jax
from dualenc_jax.errors import RUN_AGAIN
from dualenc_jax.io import writer

pytestmark = pytest.mark.slow
# That much, in the end, a user waits for the end of the other hosts.
SECONDS = 60


def flags(folder, name):
  return [
      *tiny_run.flags(folder), '--gin.STEPS=50', '--gin.CHECKPOINT_EVERY=10',
      f'--model_dir={folder / name}',
  ]


def train_to_a_checkpoint(given, folder, **more):
  """Hosts, as of `two_hosts.start`, which have saved since their start."""
  before = interrupted.newest(folder)
  hosts = two_hosts.start('train', *given, **more)
  try:
    while interrupted.newest(folder) == before:
      if any(each.poll() is not None for each in hosts):
        ends = two_hosts.ends(hosts, SECONDS)
        pytest.fail('\n'.join(said[-3000:] for _, said in ends))
      time.sleep(0.01)
  except BaseException:
    two_hosts.ends(hosts, 0)
    raise
  return hosts


def lost(given, folder, host, number):
  """What the other host says, and exits with, after a signal to one."""
  hosts = train_to_a_checkpoint(given, folder)
  hosts[host].send_signal(number)
  try:
    other = hosts[1 - host]
    said, _ = other.communicate(timeout=SECONDS)
    return other.returncode, said, hosts[host].pid
  finally:
    for each in hosts:
      each.kill()
      each.wait()


def test_one_that_dies_or_hangs_ends_the_other_and_the_run_goes_on(tmp_path):
  given = flags(tmp_path, 'killed')
  folder = tmp_path / 'killed'
  for host, number, why in (
      (1, signal.SIGKILL, 'has ended without a word'),
      (0, signal.SIGKILL, 'has ended without a word'),
      (1, signal.SIGSTOP, 'has not answered for 40 s'),
  ):
    status, said, pid = lost(given, folder, host, number)
    assert status == RUN_AGAIN == 75
    (line,) = [x for x in said.splitlines() if x.startswith('error:')]
    assert line.startswith(f'error: Host {host} (') and why in line
    assert f', pid {pid}) ' in line and 'run the same command again' in line
    assert 'Traceback' not in said and 'stack trace' not in said
  said = two_hosts.run('train', *given)
  assert all('Resuming from step ' in each for each in said)
  two_hosts.run('train', *flags(tmp_path, 'whole'))
  interrupted.assert_bit_equal(
      interrupted.saved(folder, 50), interrupted.saved(tmp_path / 'whole', 50)
  )


def test_a_network_that_is_cut_ends_both(tmp_path):
  """Nobody tells either of them; each finds that the other is silent."""
  # No end of it comes before that of the other.
  given = [*flags(tmp_path, 'model'), '--gin.STEPS=20000']
  with cut_network.between(tmp_path) as network:
    hosts = train_to_a_checkpoint(
        given, tmp_path / 'model', environs=network.environs,
        within=network.within,
    )
    network.cut()
    ends = two_hosts.ends(hosts, SECONDS)
  for host, (status, said) in enumerate(ends):
    assert status == RUN_AGAIN, said[-3000:]
    (line,) = [x for x in said.splitlines() if x.startswith('error:')]
    other = 1 - host
    assert line.startswith(
        f'error: Host {other} ({network.names[other]}, pid {hosts[other].pid})'
        ' has not answered for 40 s: it hangs, or the network between has brok'
    )
    assert 'Traceback' not in said and 'stack trace' not in said
  newest = interrupted.newest(tmp_path / 'model')
  assert newest and interrupted.saved(tmp_path / 'model', newest)
  # On other machines the first waits for a sign of life of the one that wrote.
  for said in two_hosts.run(
      'train', *given, f'--gin.STEPS={newest + 1}', '--allow_config_change'
  ):
    assert f'Resuming from step {newest}' in said


def test_one_that_is_told_before_it_can_train_ends_the_other(tmp_path):
  hosts = two_hosts.start('train', *flags(tmp_path, 'model'))
  while not (tmp_path / 'model/.writer.json').exists():
    assert all(each.poll() is None for each in hosts)
    time.sleep(0.002)
  hosts[1].send_signal(signal.SIGUSR1)
  (other, said), (status, words) = two_hosts.ends(hosts, SECONDS)
  assert other == status == RUN_AGAIN
  assert 'SIGUSR1: stopped; there was no step to save' in words
  assert f'Host 1 ({socket.gethostname()}, ' in said
  assert ') was asked to stop. Host 0 ' in said and 'Traceback' not in said


def test_a_busy_folder_ends_both_before_the_plan(tmp_path):
  (tmp_path / 'model').mkdir()
  with writer.alone(tmp_path / 'model', 'trains', 'another'):
    hosts = two_hosts.start('train', *flags(tmp_path, 'model'))
    ends = two_hosts.ends(hosts, SECONDS)
  for status, said in ends:
    assert status == 2 and 'Another process trains in' in said, said
    assert 'Parameters:' not in said


def refused(argv, said, **hosts):
  """Both hosts, as of `two_hosts.start`, end with one line, which says all."""
  for status, words in two_hosts.ends(
      two_hosts.start('train', *argv, **hosts), SECONDS
  ):
    assert status == 2, words
    (line,) = [x for x in words.splitlines() if x.startswith('error: The ')]
    assert re.match(f'error: The hosts have different {said}', line), line


@pytest.fixture
def folders(tmp_path):
  """Where two hosts stand; the same words mean other files there."""
  made = tmp_path / 'a', tmp_path / 'b'
  for folder in made:
    folder.mkdir()
  return made


def test_hosts_of_other_flags_or_versions_are_told_so(tmp_path, folders):
  given = flags(tmp_path, 'model')
  refused(
      given,
      r'versions or flags: host 0 \(.*has SEED = 1, host 1 \(.*has SEED = 2\.'
      ' Expected the same on all hosts',
      each=(['--gin.SEED=1'], ['--gin.SEED=2']),
  )
  (folders[1] / 'sitecustomize.py').write_text(
      'import dualenc_jax\ndualenc_jax.__version__ = "9.8.7"\n'
  )
  environs = [dict(each) for each in two_hosts.by_jax()]
  environs[1]['PYTHONPATH'] = f'{folders[1]}:{two_hosts.ROOT}'
  refused(
      given,
      r'versions or flags: host 0 \(.*has dualenc_jax '
      f'{re.escape(dualenc_jax.__version__)}, '
      r'host 1 \(.*has dualenc_jax 9\.8\.7\. Exp',
      environs=environs,
  )
  assert not (tmp_path / 'model').exists()


def test_hosts_of_other_devices_or_configs_are_told_so(tmp_path, folders):
  given = flags(tmp_path, 'model')
  refused(
      given,
      r'devices: host 0 \(.*has 2 of kind cpu, host 1 \(.*has 4 of kind cpu\.',
      devices=(2, 4),
  )
  for seed, folder in enumerate(folders):
    (folder / 'own.gin').write_text(f'SEED = {seed}\n')
  refused(
      [*given, '--gin_file=own.gin'],
      r'configs: host 0 \(.*has SEED = 0.*, host 1 \(.*has SEED = 1',
      folders=folders,
  )
  assert not (tmp_path / 'model').exists()


def test_hosts_of_other_checkpoints_or_data_are_told_so(tmp_path, folders):
  given = flags(tmp_path, 'model')
  (folders[1] / 'here/checkpoints/10').mkdir(parents=True)
  refused(
      [*given, '--model_dir=here'],
      r'checkpoints: host 0 \(.*has \[\], host 1 \(.*has \[10\]\. MODEL_DIR'
      ' must be a folder that all hosts see',
      folders=folders,
  )
  for seed, folder in enumerate(folders):
    tiny_run.write_pairs(folder / 'own.jsonl', 96 + seed, seed)
  refused(
      [*given, '--gin.TRAIN_FILE=own.jsonl'],
      r'training data: host 0 \(.*examples: 96.*, host 1 \(.*examples: 97',
      folders=folders,
  )
  assert not (tmp_path / 'model' / 'checkpoints').exists()
