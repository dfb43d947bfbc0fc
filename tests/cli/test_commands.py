"""The commands, end to end, on a tiny run."""

import json
import subprocess
import sys

import event_files
import numpy as np
import pytest
import tiny_run

from dualenc_jax.cli import check, evaluate, main as cli, search, train


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A model_dir after 30 steps on pairs that share words."""
  folder = tmp_path_factory.mktemp('run')
  flags = tiny_run.flags(
      folder, '--gin.STEPS=30', '--gin.EVAL_EVERY=15',
      '--gin.LEARNING_RATE=1e-2', '--gin.DROPOUT_RATE=0.0',
      '--gin.NUM_NEGATIVES=2',
  )
  train.main([*flags, f'--model_dir={folder / "model"}'])
  return folder / 'model'


def test_training_lowers_the_loss_and_logs_every_step(trained):
  scalars = {}
  for step, tag, value in event_files.read(trained)[0]:
    scalars.setdefault(tag, []).append((step, value))
  steps, losses = zip(*scalars['train/loss'])
  assert steps == tuple(range(1, 31))
  assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
  for name in (
      'accuracy', 'positive_similarity', 'query_passage_similarity',
      'query_query_similarity', 'passage_passage_similarity', 'masked_fraction',
      'gradient_norm', 'learning_rate', 'examples_per_second',
  ):
    assert len(scalars[f'train/{name}']) == 30, name
  rates = [rate for _, rate in scalars['train/learning_rate']]
  np.testing.assert_allclose(rates, 1e-2 * (1 - np.arange(30) / 30), rtol=1e-5)
  assert [step for step, _ in scalars['validation/MRR']] == [0, 15, 30]


def test_the_passage_with_the_words_of_a_query_is_found(trained, capsys):
  evaluate.main([f'--model_dir={trained}', '--split=test'])
  folder = trained / 'evaluation' / 'pairs-test'
  metrics = json.loads((folder / 'metrics.json').read_text())['metrics']
  printed = capsys.readouterr().out
  assert f'{metrics["MRR"]:.4f}' in printed
  # Of 24 passages, at random it would be 0.16.
  assert metrics['MRR'] > 0.3
  row = json.loads((trained.parent / 'train.jsonl').read_text().split('\n')[0])
  search.main([row['query'], f'--model_dir={trained}', '--k=3'])
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == row['query'] and len(lines) == 7
  scores = [float(line.split()[0]) for line in lines[1::2]]
  assert scores == sorted(scores, reverse=True)
  assert 'train.jsonl:' in lines[1]


def test_check_says_all_and_trains_nothing(tmp_path, capsys):
  folder = tmp_path / 'model'
  check.main([*tiny_run.flags(tmp_path), f'--model_dir={folder}'])
  out = capsys.readouterr().out
  assert not folder.exists()
  assert 'training.Experiment.batch_size = %BATCH_SIZE' in out
  assert 'models.T5Encoder.num_layers = 1' in out
  assert 'splits train, validation, test' in out
  assert 'token_embedder/embedding [8064, 128]' in out
  assert 'Compiled memory a device' in out
  # Parameters of the tiny model by hand: table, a layer, norm, bias, D.
  layer = 4 * 128 * 128 + 3 * 128 * 256 + 2 * 128
  count = 8064 * 128 + layer + 128 + 4 * 32 + 128 * 128
  assert f'Parameters: {count:,} in' in out


def test_the_program_explains_itself_and_its_errors(capsys):
  assert cli.main(['--help']) == 0
  out = capsys.readouterr().out
  assert all(command in out for command in cli.COMMANDS)
  assert cli.main(['trian']) == 2
  assert "Did you mean 'train'" in capsys.readouterr().err


@pytest.mark.parametrize('command', cli.COMMANDS)
def test_every_command_explains_itself(command, capsys):
  with pytest.raises(SystemExit) as end:
    cli.main([*command.split(), '--help'])
  assert end.value.code == 0
  assert f'usage: dualenc {command}' in capsys.readouterr().out
  assert cli.main([*command.split(), '--no_such_flag']) == 2
  told = capsys.readouterr().err
  assert told.startswith('error: ') and told.count('\n') == 1
  assert f'dualenc {command} --help' in told


def said_by(code):
  """What Python prints that runs a program in a process of its own."""
  return subprocess.run(
      [sys.executable, '-c', code], check=True, timeout=120, text=True,
      stdout=subprocess.PIPE,
  ).stdout


def test_the_package_is_a_program_whose_help_imports_nothing_heavy():
  code = (
      'import runpy, sys\n'
      "sys.argv = ['dualenc', '--help']\n"
      'try:\n'
      "  runpy.run_module('dualenc_jax', run_name='__main__')\n"
      'except SystemExit as end:\n'
      '  assert not end.code\n'
      "heavy = {'jax', 'tensorflow', 'numpy', 'gin'} & sys.modules.keys()\n"
      'assert not heavy, heavy\n'
  )
  assert 'usage: dualenc' in said_by(code)


@pytest.mark.slow
@pytest.mark.parametrize('command', cli.COMMANDS)
def test_the_help_of_a_command_imports_nothing_heavy(
    command, capsys, monkeypatch
):
  """It is that of the command where JAX is imported."""
  monkeypatch.setenv('COLUMNS', '80')
  code = (
      'import sys\n'
      'from dualenc_jax.cli import main as cli\n'
      f'sys.argv = {["dualenc", *command.split(), "--help"]}\n'
      'try:\n'
      '  cli.main()\n'
      'finally:\n'
      # Stand-ins have no files.
      '  for name in ("jax", "flax", "orbax", "optax", "torch"):\n'
      '    assert not hasattr(sys.modules.get(name), "__file__"), name\n'
  )
  with pytest.raises(SystemExit):
    cli.main([*command.split(), '--help'])
  assert said_by(code) == capsys.readouterr().out
