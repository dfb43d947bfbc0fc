"""Runs that are struck at random moments lose nothing."""

import json
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.nightly
CHAOS = pathlib.Path(__file__).parents[1] / 'benchmarks/chaos.py'


def test_a_run_that_is_struck_ends_bit_for_bit(tmp_path):
  done = subprocess.run(
      [
          sys.executable, str(CHAOS), f'--folder={tmp_path / "runs"}',
          '--forms=1,2x4', '--kills=1', '--terms=1', '--steps=60',
      ],
      capture_output=True,
      text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  found = [json.loads(line) for line in done.stdout.splitlines()]
  assert [each['form'] for each in found] == ['1', '2x4']
  assert [each['kills'] for each in found] == [1, 0]
  assert [each['terms'] for each in found] == [0, 1]
  for each in found:
    assert each['lost'] == [] and each['ends'] > 0
