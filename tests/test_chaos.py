"""Runs that are struck at random moments lose nothing."""

import json
import pathlib
import subprocess
import sys

import pytest

CHAOS = pathlib.Path(__file__).parents[1] / 'benchmarks/chaos.py'


@pytest.mark.slow
def test_a_run_that_is_struck_ends_bit_for_bit(tmp_path):
  done = subprocess.run(
      [
          sys.executable, str(CHAOS), f'--folder={tmp_path / "runs"}',
          '--forms=8', '--kills=3', '--terms=2',
      ],
      capture_output=True,
      text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  found = json.loads(done.stdout)
  assert found['lost'] == [] and found['ends'] > 0
  # A run may have ended before it is struck.
  assert 3 <= found['kills'] + found['terms'] <= 5
