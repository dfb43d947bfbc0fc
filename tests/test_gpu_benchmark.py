"""Everything that a GPU has to show, at toy sizes on a CPU."""

import json
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.nightly
GPU = pathlib.Path(__file__).parents[1] / 'benchmarks/gpu.py'


def run(out, *flags):
  done = subprocess.run(
      [sys.executable, str(GPU), f'--out={out}', '--toy', *flags],
      capture_output=True, text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return [json.loads(line) for line in (out / 'gpu.jsonl').open()]


def test_parts_run_and_leave_figures(tmp_path):
  only = 'imports,train_small_dropout,search,encode,loss,precision,profile'
  found = run(tmp_path, f'--only={only},draw_two_layers')
  log = (tmp_path / 'gpu.log').read_text()
  assert [each['state'] for each in found] == 8 * ['done'], log
  imports, train, search, encode, loss, precision, profile, draw = (
      each['figures'] for each in found
  )
  assert imports['failed'] == {} and imports['imported'] > 100
  (batch,) = train['batches'].values()
  assert batch['medians']['dualenc_jax, packed']['step_seconds'] > 0
  for parts in search['hits'].values():
    assert parts['torch_resident']['same_sets'] == 1
    assert parts['top_k: order']['seconds'] > 0
  assert encode['rounds']['dualenc_jax'] and len(loss['results']) == 4
  assert precision['highest']['greatest_error'] < 1e-3
  assert profile['kinds'] and draw['compile_seconds'] > 0
  assert '| dualenc_jax, packed |' in (tmp_path / 'summary.md').read_text()


def test_a_part_without_time_is_left_out_and_says_so(tmp_path):
  (found,) = run(tmp_path, '--only=train_small', '--seconds=5')
  assert found['state'].startswith('left out')


def test_a_part_over_its_time_is_ended(tmp_path):
  found = run(tmp_path, '--only=imports,draw_kernel', '--seconds=14')
  assert found[1]['state'].startswith(('left out', 'ended'))
