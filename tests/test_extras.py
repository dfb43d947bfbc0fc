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
      [*start, *argv], capture_output=True, text=True, timeout=300
  )


def succeed(extras: str, *argv: str) -> str:
  """What it prints, on both streams."""
  done = run(extras, *argv)
  assert done.returncode == 0, f'{argv[0]}: {done.stderr}'
  return done.stdout + done.stderr


# All in one process, as its imports take longest; then what wants an extra.
BASE = """
import sys
from dualenc_jax.cli import main as cli
model, out, flags = sys.argv[1], sys.argv[2], sys.argv[3:]
given = '--model_dir=' + model
for argv in (
    *(['data', 'prepare', *flags, '--split=' + s] for s in ('train', 'test')),
    ['train', *flags, given],
    ['evaluate', given],
    ['encode', given],
    ['search', given, 'find array byte'],
    *(
        ['convert', model, '--to=' + form, '--output_dir=' + out + form]
        for form in ('jax_export', 'sentence_transformers', 't5x')
    ),
    ['report', given],
):
  assert cli.main(argv) == 0, argv
for argv in (
    ['convert', model + '/index', '--to=faiss', '--output_dir=' + out + 'f'],
    ['convert', model + '/index', '--to=vectors', '--output_dir=' + out + 'v'],
    ['analyze', given, '--output_dir=' + out + 'a'],
):
  assert cli.main(argv) == 2, argv
print(sorted({'tensorflow', 'torch', 'matplotlib'} & {*sys.modules}))
"""


@pytest.fixture(scope='module')
def base(tmp_path_factory) -> tuple[pathlib.Path, str]:
  """A model that only the base has made, and what was said meanwhile."""
  folder = tmp_path_factory.mktemp('extras')
  flags = tiny_run.flags(folder, f'--gin.CACHE_DIR={folder / "tokens"}')
  return folder / 'model', succeed(
      '', '-c', BASE, str(folder / 'model'), f'{folder}/out_', *flags
  )


def test_a_task_of_seqio_says_how_to_get_it(tmp_path):
  flags = [
      '--gin_file=runs/finetune.gin', '--gin_file=tasks/seqio.gin',
      *tiny_run.small_flags(), f'--gin.CACHE_DIR={tmp_path / "tokens"}',
      '--gin.VOCABULARY=python_code_8k', '--gin.VOCAB_SIZE=8064',
      '--gin.TASK_NAME=user_pairs', '--gin.TASK_MODULE=some_module',
  ]
  done = run('', 'train', *flags, f'--model_dir={tmp_path / "model"}')
  assert done.returncode == 2
  assert 'dualenc-jax[data]' in done.stderr
  assert 'Traceback' not in done.stderr


@pytest.mark.nightly
def test_the_base_alone_is_enough_and_says_what_an_extra_is_for(base):
  model, said = base
  for extra in ('data', 'faiss', 'plots', 'convert'):
    assert f'dualenc-jax[{extra}]' in said
  assert 'Traceback' not in said and '\n[]\n' in said
  assert 'dualenc-jax[plots]' in (model / 'report.html').read_text()


@pytest.mark.nightly
@pytest.mark.parametrize(
    'extra, argv',
    [
        ('data', ['convert', 'MODEL/index', '--to=vectors']),
        ('faiss', ['convert', 'MODEL/index', '--to=faiss']),
        ('plots', ['analyze', '--model_dir=MODEL']),
        ('convert', ['convert', 'MODEL', '--to=sentence_transformers']),
    ],
)
def test_an_extra_alone_is_enough(base, tmp_path, extra, argv):
  argv = [argument.replace('MODEL', str(base[0])) for argument in argv]
  succeed(extra, *argv, f'--output_dir={tmp_path / "out"}')


@pytest.mark.nightly
def test_mteb_alone():
  code = 'import dualenc_jax.mteb_encoder'
  assert "'dualenc-jax[mteb]'" in run('', '-c', code).stderr
  succeed('mteb', '-c', code)
