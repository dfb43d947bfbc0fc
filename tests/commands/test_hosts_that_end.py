"""Two hosts of which one dies, hangs, or has something else."""

import signal
import socket
import time

import interrupted
import pytest
import tiny_run
import two_hosts

from dualenc_jax.errors import RUN_AGAIN

pytestmark = pytest.mark.slow
# That much, in the end, a user waits for the end of the other hosts.
SECONDS = 60


def flags(folder, name):
  return [
      *tiny_run.flags(folder), '--gin.STEPS=50', '--gin.CHECKPOINT_EVERY=10',
      f'--model_dir={folder / name}',
  ]


def lost(given, folder, host, number):
  """What the other host says, and exits with, after a signal to one.

  It is sent once this start of the run has saved a checkpoint.
  """
  before = interrupted.newest(folder)
  hosts = two_hosts.start('train', *given)
  try:
    while interrupted.newest(folder) == before:
      assert all(each.poll() is None for each in hosts), [
          each.communicate() for each in hosts
      ]
      time.sleep(0.01)
    hosts[host].send_signal(number)
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
      interrupted.saved(folder, 50),
      interrupted.saved(tmp_path / 'whole', 50),
  )


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
  assert ') was told to stop. Host 0 ' in said and 'Traceback' not in said


def test_hosts_that_differ_are_told_so_before_the_first_step(tmp_path):
  given = flags(tmp_path, 'model')
  for status, said in two_hosts.ends(
      two_hosts.start(
          'train', *given, each=(['--gin.SEED=1'], ['--gin.SEED=2'])
      )
  ):
    assert status == 2
    (line,) = [x for x in said.splitlines() if x.startswith('error:')]
    assert 'error: The hosts have different versions or flags: host 0 (' in line
    assert 'has SEED = 1, host 1 (' in line and 'has SEED = 2. Exp' in line
  # The same words mean other files where the hosts stand.
  folders = tmp_path / 'a', tmp_path / 'b'
  for seed, folder in enumerate(folders):
    folder.mkdir()
    tiny_run.write_pairs(folder / 'own.jsonl', 96 + seed, seed)
  for status, said in two_hosts.ends(
      two_hosts.start(
          'train', *given, '--gin.TRAIN_FILE=own.jsonl', folders=folders
      )
  ):
    assert status == 2
    (line,) = [x for x in said.splitlines() if x.startswith('error:')]
    assert 'error: The hosts have different training data: host 0 (' in line
    assert 'examples: 96' in line and 'examples: 97' in line
  assert not (tmp_path / 'model' / 'checkpoints').exists()
