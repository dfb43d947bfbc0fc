"""Two hosts of which one dies, is not heard, or has something else."""

import re
import signal
import socket
import time

import interrupted
import pytest
import tiny_evaluation
import tiny_run
import two_hosts

from dualenc_jax.cli import train
from dualenc_jax.parallel import hosts as hosts_lib
from dualenc_jax.utils.errors import RUN_AGAIN

# That much, in the end, a user waits for the end of the other hosts.
SECONDS = 60


def flags(folder, name):
  return [
      *tiny_run.flags(folder), '--gin.models.T5Encoder.num_layers=0',
      '--gin.STEPS=20000', '--gin.CHECKPOINT_EVERY=10',
      f'--model_dir={folder / name}',
  ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ('lost', 'number'),
    [
        # The first, with which JAX's coordination service dies.
        pytest.param(0, signal.SIGKILL, marks=pytest.mark.nightly),
        pytest.param(1, signal.SIGSTOP, marks=pytest.mark.nightly),
    ],
)
def test_one_that_dies_or_hangs_ends_the_other(tmp_path, lost, number):
  folder = tmp_path / 'model'
  hosts = two_hosts.start(
      'train', *flags(tmp_path, 'model'), devices=1,
      environs=two_hosts.impatient(tmp_path),
  )
  try:
    while not interrupted.newest(folder):
      assert all(each.poll() is None for each in hosts), hosts[0].communicate()
      time.sleep(0.01)
    hosts[lost].send_signal(number)
    words = hosts[1 - lost].communicate(timeout=SECONDS)[0]
  finally:
    for each in hosts:
      each.kill()
      each.wait()
  assert hosts[1 - lost].returncode == RUN_AGAIN, words[-3000:]
  end = words.splitlines()[-1]
  assert re.fullmatch(
      rf'error: host {lost} \(\S+, pid {hosts[lost].pid}\) has died or does not'
      rf' answer; host {1 - lost} \(.*\) stops, too. Run the same .*', end
  ), words[-3000:]
  assert 'Traceback' not in words and 'Check failure' not in words
  assert interrupted.saved(folder, interrupted.newest(folder))


@pytest.mark.slow
def test_one_that_is_told_before_it_can_train_ends_the_other(tmp_path):
  hosts = two_hosts.start('train', *flags(tmp_path, 'model'), devices=1)
  while not (tmp_path / 'model/.writer').exists():
    assert all(each.poll() is None for each in hosts)
    time.sleep(0.002)
  hosts[1].send_signal(signal.SIGUSR1)
  (other, said), (status, words) = two_hosts.ends(hosts, SECONDS)
  assert other == status == RUN_AGAIN
  assert 'SIGUSR1: stopped; there was no step to save' in words
  assert f'error: host 1 ({socket.gethostname()}, ' in said
  assert ') was asked to stop; host 0 ' in said and 'Traceback' not in said


@pytest.mark.slow
def test_hosts_of_other_flags_or_configs_are_told_so(tmp_path):
  """What else they compare is in the next test."""
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
      (line,) = [x for x in words.splitlines() if x.startswith('error: ')]
      assert re.search(
          rf'The hosts have different {what}: host 0 \(.*has SEED = 0.*,'
          r' host 1 \(.*has SEED = 1\.', line
      ), line
  assert not (tmp_path / 'model').exists()


def test_what_hosts_of_a_run_compare(tmp_path, monkeypatch):
  asked = {}
  monkeypatch.setattr(
      hosts_lib, 'agree', lambda what, text, *_: asked.update({what: text})
  )
  monkeypatch.setattr(hosts_lib, 'is_joined', lambda: True)
  model = tiny_evaluation.copy_model(tmp_path / 'model')
  train.main([*tiny_evaluation.training_flags(), f'--model_dir={model}'])
  assert {*asked} == {'configs', 'checkpoints', 'training data'}
  assert 'BATCH_SIZE = 16' in asked['configs'].splitlines()
  # Each may see the folder by another name.
  assert 'MODEL_DIR =' not in asked['configs']
  assert asked['checkpoints'] == '[2]'
  assert 'examples: 96' in asked['training data'].splitlines()
