"""What is installed with an extra is all that its commands need.

All other packages are hidden, unless DUALENC_ENVIRONMENTS names a folder of
virtual environments, one an extra by its name, and `base`: then they run there.
"""

import os
import pathlib
import subprocess
import sys

import pytest
import tiny_run

ENVIRONMENTS = os.environ.get('DUALENC_ENVIRONMENTS')
ONLY = pathlib.Path(__file__).parent / 'helpers' / 'only_extras.py'


def run(extras: str, *argv: str) -> subprocess.CompletedProcess:
  """`dualenc ARGV` with what an extra brings, '' for none, alone."""
  if ENVIRONMENTS:
    python = pathlib.Path(ENVIRONMENTS, extras or 'base', 'bin/python')
    start = [str(python), *(() if argv[0] == '-c' else ('-m', 'dualenc_jax'))]
  else:
    start = [sys.executable, str(ONLY), extras]
  return subprocess.run(
      [*start, *argv],
      capture_output=True,
      text=True,
      timeout=300,
  )


def succeed(extras: str, *argv: str) -> str:
  """What it prints, on both streams."""
  done = run(extras, *argv)
  assert done.returncode == 0, f'{argv[0]}: {done.stderr}'
  return done.stdout + done.stderr


@pytest.fixture(scope='module')
def trained(tmp_path_factory) -> pathlib.Path:
  """A model that only the base has made: no TensorFlow, no PyTorch."""
  folder = tmp_path_factory.mktemp('extras')
  flags = tiny_run.flags(
      folder, f'--gin.CACHE_DIR={folder / "tokens"}', '--gin.EVAL_EVERY=1'
  )
  for split in ('train', 'validation', 'test'):
    succeed('', 'data', 'prepare', *flags, f'--split={split}')
  for split in ('train', 'test'):  # The cache alone is enough.
    (folder / f'{split}.jsonl').unlink()
  model = f'--model_dir={folder / "model"}'
  for argv in (['train', *flags], ['evaluate'], ['encode']):
    succeed('', *argv, model)
  return folder / 'model'


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
  done = run('', 'train', *flags, f'--model_dir={tmp_path / "model"}')
  assert done.returncode == 2
  assert 'dualenc-jax[data]' in done.stderr
  assert 'Traceback' not in done.stderr


@pytest.mark.slow
def test_the_base_alone(trained, tmp_path):
  hits = run('', 'search', f'--model_dir={trained}', 'find array byte')
  # The query, and of each hit two lines.
  assert len(hits.stdout.splitlines()) == 11
  for source, form in (
      ('', 'jax_export'), ('', 'safetensors'), ('', 't5x'), ('index', 'faiss')
  ):
    to = f'--to={form}', f'--out={tmp_path / form}'
    succeed('', 'convert', str(trained / source), *to)
  succeed('', 'report', str(trained))
  assert 'dualenc-jax[plots]' in (trained / 'report.html').read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    'extra, argv',
    [
        ('data', ['convert', 'MODEL/index', '--to=vectors', '--out=OUT']),
        ('plots', ['analyze', '--model_dir=MODEL', '--output_dir=OUT']),
        ('convert', ['convert', 'MODEL', '--to=hf', '--verify', '--out=OUT']),
    ],
)
def test_an_extra_alone_is_enough_and_is_needed(trained, tmp_path, extra, argv):
  places = {'MODEL': str(trained), 'OUT': str(tmp_path / 'out')}
  for name, place in places.items():
    argv = [argument.replace(name, place) for argument in argv]
  done = run('', *argv)
  assert done.returncode == 2 and 'Traceback' not in done.stderr
  assert f'dualenc-jax[{extra}]' in done.stderr
  succeed(extra, *argv)


@pytest.mark.slow
def test_mteb_alone():
  code = 'import dualenc_jax.mteb_encoder'
  assert "'dualenc-jax[mteb]'" in run('', '-c', code).stderr
  succeed('mteb', '-c', code)
