"""Two hosts of which one dies, is not heard, or has something else."""

import re
import signal
import socket
import time

import cut_network
import interrupted
import pytest
import tiny_evaluation
import tiny_run
import two_hosts

from dualenc_jax.commands import train
from dualenc_jax.errors import RUN_AGAIN
from dualenc_jax.parallel import joining

# That much, in the end, a user waits for the end of the other hosts.
SECONDS = 60


def flags(folder, name):
  return [
      *tiny_run.flags(folder), '--gin.models.T5Encoder.num_layers=0',
      '--gin.STEPS=20000', '--gin.CHECKPOINT_EVERY=10',
      f'--model_dir={folder / name}',
  ]


def train_to_a_checkpoint(given, folder, **more):
  """Hosts, as of `two_hosts.start`, which have saved."""
  hosts = two_hosts.start('train', *given, devices=1, **more)
  try:
    while not interrupted.newest(folder):
      if any(each.poll() is not None for each in hosts):
        ends = two_hosts.ends(hosts, SECONDS)
        pytest.fail('\n'.join(said[-3000:] for _, said in ends))
      time.sleep(0.01)
  except BaseException:
    two_hosts.ends(hosts, 0)
    raise
  return hosts


def check_last_words(status, said, start):
  assert status == RUN_AGAIN == 75, said[-3000:]
  (line,) = [x for x in said.splitlines() if x.startswith('error:')]
  assert line.startswith(f'error: {start}'), line
  assert 'run the same command again' in line
  assert 'Traceback' not in said and 'stack trace' not in said


@pytest.mark.slow
def test_one_that_dies_ends_the_other(tmp_path):
  """The first, which the coordinator of JAX dies with."""
  folder = tmp_path / 'model'
  hosts = train_to_a_checkpoint(flags(tmp_path, 'model'), folder)
  hosts[0].send_signal(signal.SIGKILL)
  _, (status, said) = two_hosts.ends(hosts, SECONDS)
  name = f'Host 0 ({socket.gethostname()}, pid {hosts[0].pid})'
  check_last_words(status, said, f'{name} has ended without a word')
  assert interrupted.saved(folder, interrupted.newest(folder))


@pytest.mark.slow
def test_a_network_that_is_cut_ends_both(tmp_path):
  """Nobody tells either of them; each finds that the other is silent."""
  # Forty seconds as they are; a step of these runs takes far less than eight.
  (tmp_path / 'sitecustomize.py').write_text(
      'from dualenc_jax.parallel import meeting\nmeeting.SILENCE = 8.0\n'
  )
  path = {'PYTHONPATH': f'{tmp_path}:{two_hosts.ROOT}'}
  with cut_network.between(tmp_path) as network:
    hosts = train_to_a_checkpoint(
        flags(tmp_path, 'model'), tmp_path / 'model', within=network.within,
        environs=[{**each, **path} for each in network.environs],
    )
    network.cut()
    ends = two_hosts.ends(hosts, SECONDS)
  for other, (status, said) in zip((1, 0), ends):
    check_last_words(
        status, said,
        f'Host {other} ({network.names[other]}, pid {hosts[other].pid})'
        ' has not answered for 8 s: it hangs, or the network between has brok',
    )
  newest = interrupted.newest(tmp_path / 'model')
  assert newest and interrupted.saved(tmp_path / 'model', newest)


@pytest.mark.slow
def test_one_that_is_told_before_it_can_train_ends_the_other(tmp_path):
  hosts = two_hosts.start('train', *flags(tmp_path, 'model'), devices=1)
  while not (tmp_path / 'model/.writer.json').exists():
    assert all(each.poll() is None for each in hosts)
    time.sleep(0.002)
  hosts[1].send_signal(signal.SIGUSR1)
  (other, said), (status, words) = two_hosts.ends(hosts, SECONDS)
  assert other == status == RUN_AGAIN
  assert 'SIGUSR1: stopped; there was no step to save' in words
  assert f'Host 1 ({socket.gethostname()}, ' in said
  assert ') was asked to stop. Host 0 ' in said and 'Traceback' not in said


@pytest.mark.slow
def test_hosts_of_other_flags_or_configs_are_told_so(tmp_path):
  """What else they compare is in the next test; words are test_meeting.py's."""
  folders = tmp_path / 'a', tmp_path / 'b'
  for seed, folder in enumerate(folders):
    folder.mkdir()
    (folder / 'own.gin').write_text(f'SEED = {seed}\n')
  given = 'train', *flags(tmp_path, 'model')
  for argv, what, more in (
      (
          given, 'versions or flags',
          {'each': (['--gin.SEED=0'], ['--gin.SEED=1'])},
      ),
      ([*given, '--gin_file=own.gin'], 'configs', {'folders': folders}),
  ):
    hosts = two_hosts.start(*argv, devices=1, **more)
    for status, words in two_hosts.ends(hosts, SECONDS):
      assert status == 2, words
      (line,) = [x for x in words.splitlines() if x.startswith('error: The ')]
      assert re.match(
          rf'error: The hosts have different {what}: host 0 \(.*has SEED = 0.*,'
          r' host 1 \(.*has SEED = 1\.', line
      ), line
  assert not (tmp_path / 'model').exists()


def test_what_hosts_of_a_run_compare(tmp_path, monkeypatch):
  asked = {}
  monkeypatch.setattr(
      joining, 'agree', lambda what, text, *_: asked.update({what: text})
  )
  monkeypatch.setattr(joining, 'is_joined', lambda: True)
  model = tiny_evaluation.copy_model(tmp_path / 'model')
  train.main([*tiny_evaluation.training_flags(), f'--model_dir={model}'])
  assert {*asked} == {'configs', 'checkpoints', 'training data'}
  assert 'BATCH_SIZE = 16' in asked['configs'].splitlines()
  # Each may see the folder by another name.
  assert 'MODEL_DIR =' not in asked['configs']
  assert asked['checkpoints'] == '[2]'
  assert 'examples: 96' in asked['training data'].splitlines()
