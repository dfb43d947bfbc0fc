"""A wheel, unpacked in another folder, has all that a clone has."""

import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

from dualenc_jax.cli import config

pytestmark = pytest.mark.nightly
ROOT = pathlib.Path(__file__).resolve().parents[1]

# Files that are those of the clone resolve as `cli/test_gin_files` shows.
RESOLVE = """
import pathlib, sys
import dualenc_jax
from dualenc_jax.cli import config, saved_run
from dualenc_jax.data.readers import PythonCode
import dualenc_jax.tasks as tasks
here = pathlib.Path(sys.argv[1])
for path in (dualenc_jax.__file__, tasks.__file__, config.gin_root()):
  assert here in pathlib.Path(path).parents, path
clone = pathlib.Path(sys.argv[2])
for file in config.shipped_files():
  own = config.gin_root() / file
  assert own.read_bytes() == (clone / file).read_bytes(), file
saved_run.build_experiment(
    ['runs/quickstart.gin'], ['MODEL_DIR = "x"'], []
)
assert next(iter(PythonCode().examples('test')))['query']
print(len(config.shipped_files()))
"""


@pytest.fixture(scope='module')
def unpacked(tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp('wheel')
  source = folder / 'source'
  source.mkdir()
  for name in ('setup.py', 'pyproject.toml', 'README.md', 'LICENSE'):
    shutil.copy(ROOT / name, source)
  for name in ('dualenc_jax', 'gin', 'tasks'):
    shutil.copytree(
        ROOT / name, source / name,
        ignore=shutil.ignore_patterns('__pycache__'),
    )
  subprocess.run(
      [
          sys.executable, *('-m', 'build', '--wheel', '--no-isolation'),
          *('--outdir', str(folder), str(source)),
      ],
      check=True, capture_output=True, timeout=300,
  )
  (wheel,) = folder.glob('*.whl')
  target = folder / 'site'
  zipfile.ZipFile(wheel).extractall(target)
  return target


def test_every_gin_file_resolves_from_the_wheel(unpacked, tmp_path):
  done = subprocess.run(
      [sys.executable, '-c', RESOLVE, str(unpacked), str(config.gin_root())],
      cwd=tmp_path,
      env={
          'PYTHONPATH': str(unpacked), 'PATH': '/usr/bin:/bin',
          'HOME': str(tmp_path), 'TF_CPP_MIN_LOG_LEVEL': '2',
      },
      capture_output=True, text=True, timeout=300,
  )
  assert done.returncode == 0, done.stderr
  assert int(done.stdout) == len(config.shipped_files())


def test_nothing_lands_beside_the_package(unpacked):
  names = {p.name for p in unpacked.iterdir()}
  assert 'dualenc_jax' in names
  assert not names & {'gin', 'tasks', 'tests', 'benchmarks'}
  assert list(unpacked.glob('dualenc_jax/data/text/vocabularies/*.model'))
  entry = next(unpacked.glob('*.dist-info/entry_points.txt')).read_text()
  assert 'dualenc = dualenc_jax.__main__:main' in entry
