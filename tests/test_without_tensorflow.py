"""Nothing needs TensorFlow or seqio but tasks of seqio's own registry."""

import pathlib
import subprocess
import sys

import pytest
import tiny_run

BLOCKED = (
    'import sys\n'
    "for name in ('tensorflow', 'seqio', 'tensorflow_datasets',"
    " 'tensorflow_text', 't5x'):\n"
    '  sys.modules[name] = None\n'
    'from dualenc_jax.commands import cli\n'
    'sys.exit(cli.main(sys.argv[1:]))\n'
)


def run(*argv: str) -> subprocess.CompletedProcess:
  return subprocess.run(
      [sys.executable, '-c', BLOCKED, *argv],
      capture_output=True,
      text=True,
      timeout=300,
  )


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
  return tmp_path_factory.mktemp('no_tensorflow')


def test_a_task_of_seqio_says_how_to_get_it(tmp_path):
  flags = [
      '--gin_file=runs/finetune.gin',
      '--gin_file=tasks/seqio.gin',
      *tiny_run.small_flags(),
      f'--gin.CACHE_DIR={tmp_path / "tokens"}',
      '--gin.VOCABULARY=python_code_8k',
      '--gin.VOCAB_SIZE=8064',
      '--gin.TASK_NAME=user_pairs',
      '--gin.TASK_MODULE=some_module',
  ]
  done = run('train', *flags, f'--model_dir={tmp_path / "model"}')
  assert done.returncode == 2
  assert 'dualenc-jax[data]' in done.stderr
  assert 'Traceback' not in done.stderr


@pytest.mark.slow
def test_training_evaluation_and_search_from_a_prepared_cache(folder):
  flags = tiny_run.flags(
      folder, f'--gin.CACHE_DIR={folder / "tokens"}', '--gin.EVAL_EVERY=1'
  )
  for split in ('train', 'validation', 'test'):
    done = run('data', 'prepare', *flags, f'--split={split}')
    assert done.returncode == 0, done.stderr
  for split in ('train', 'test'):  # The cache alone is enough.
    (folder / f'{split}.jsonl').unlink()
  model = f'--model_dir={folder / "model"}'
  for argv in (
      ['train', *flags, model],
      ['evaluate', model],
      ['encode', model],
      ['search', model, 'find array byte'],
  ):
    done = run(*argv)
    assert done.returncode == 0, f'{argv[0]}: {done.stderr}'
  assert len(done.stdout.splitlines()) == 6
