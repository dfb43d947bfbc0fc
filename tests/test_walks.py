"""A batch and a query pass no more files than docs/architecture.md says."""

import pathlib
import re
import subprocess
import sys

import pytest
import tiny_run

pytestmark = pytest.mark.nightly
ROOT = pathlib.Path(__file__).parents[1]
BATCH = (
    'data/cache.py:prepare', 'data/batches.py:__call__',
    'parallel/partitioning.py:to_device', 'training/step.py:train_step',
)
QUERY = ('evaluation/results/evaluate.py:evaluate',)


def walked(starts, *argv) -> list[int]:
  script = ROOT / 'tests/helpers/walk.py'
  done = subprocess.run(
      [sys.executable, str(script), ','.join(starts), *argv],
      capture_output=True, text=True, timeout=300,
  )
  assert not done.returncode, done.stderr
  return list(map(int, re.findall(r'\d+', done.stdout.splitlines()[-1])))


def test_walks_have_the_lengths_of_the_page(tmp_path):
  page = (ROOT / 'docs/architecture.md').read_text()
  said = re.findall(r'\(at most (\d+) files, (\d+) hops\)', page)
  assert len(said) == 2
  cache = f'--gin.CACHE_DIR={tmp_path / "cache"}'
  run = [*tiny_run.flags(tmp_path, '--gin.STEPS=1'), cache]
  model = f'--model_dir={tmp_path / "model"}'
  batch = walked(BATCH, 'train', *run, model)
  query = walked(QUERY, 'evaluate', model, '--no_baselines')
  for found, limits in zip((batch, query), said):
    assert [*map(int.__le__, found, map(int, limits))] == [True] * 2, found
