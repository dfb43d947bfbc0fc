"""What a run writes while it trains."""

import json
import sys
import types

import event_files
import jax
import numpy as np
import pytest

from dualenc_jax.training.reporting import Reporter, TRACKERS
from dualenc_jax.utils.errors import UserError


def lines(folder):
  def refuse(constant):
    raise AssertionError(f'{constant} is no JSON')

  return [
      json.loads(line, parse_constant=refuse)
      for line in (folder / 'metrics.jsonl').read_text().splitlines()
  ]


def test_lines_are_json_and_those_after_a_resumed_step_go(tmp_path):
  reporter = Reporter(tmp_path, 0, 4, 8)
  for step in (1, 2, 3):
    reporter.step(step, {'loss': np.float32(1 / step), 'odd': np.inf})
    reporter.scalars('validation', step, {'P@1': 0.5})
  reporter.close()
  assert [(x['step'], x['group']) for x in lines(tmp_path)] == [
      (s, group) for s in (1, 2, 3) for group in ('train', 'validation')
  ]
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 2, "gro')  # The process was killed here.
  Reporter(tmp_path, 2, 4, 8).close()
  found = lines(tmp_path)
  assert [x['step'] for x in found] == [1, 1, 2, 2]
  assert np.float32(found[2]['loss']) == np.float32(1 / 2)
  assert found[2]['odd'] is None and found[2]['examples_per_second'] > 0
  assert found[1] == {'step': 1, 'group': 'validation', 'P@1': 0.5}


@pytest.mark.parametrize('name', TRACKERS)
def test_a_tracker_gets_the_same_scalars(tmp_path, monkeypatch, name):
  """Their functions as wandb 0.31 and trackio 0.43 have them."""
  calls = []
  module = types.ModuleType(name)
  module.init = lambda **given: calls.append(given)
  module.log = lambda values, step: calls.append((values, step))
  module.finish = lambda: calls.append('finished')
  with pytest.raises(UserError, match=f"TRACKER is '{name}'.*pip install"):
    Reporter(tmp_path / 'run', 0, 4, 8, tracker=name)
  monkeypatch.setitem(sys.modules, name, module)
  reporter = Reporter(tmp_path / 'run', 0, 4, 8, tracker=name, run_id='x1')
  reporter.scalars('validation', 3, {'P@1': np.float32(0.5)})
  reporter.close()
  started, logged, end = calls
  assert started['name'] == 'run' and started['resume'] == 'allow'
  assert started.get('id') == ('x1' if name == 'wandb' else None)
  assert logged == ({'validation/P@1': 0.5}, 3) and end == 'finished'


def test_a_flipped_bit_of_the_log_stops_no_run(tmp_path, caplog):
  reporter = Reporter(tmp_path, 0, 4, 8)
  for step in (1, 2, 3):
    reporter.step(step, {'loss': 1.0})
  reporter.close()
  path = tmp_path / 'metrics.jsonl'
  first, second, third = path.read_bytes().splitlines(keepends=True)
  damaged = bytearray(second)
  damaged[1] ^= 0x80
  path.write_bytes(first + damaged + third)
  Reporter(tmp_path, 3, 4, 8).close()
  assert path.read_bytes() == first + third
  assert f'{path}: damaged lines, 1 in all, are left out' in caplog.text
  path.write_bytes(damaged + b'[1]}\n{}\n' + third)
  Reporter(tmp_path, 3, 4, 8).close()
  assert path.read_bytes() == third
  assert f'{path}: damaged lines, 3 in all, are left out' in caplog.text


def test_what_is_flushed_is_on_disk_while_the_run_goes_on(tmp_path):
  reporter = Reporter(tmp_path, 5, 400, 8)
  wanted = []
  for step in range(6, 300):
    reporter.scalars('train', step, {'loss': 1 / step, 'P@1': float(step)})
    wanted += [
        (step, 'train/loss', np.float32(1 / step)), (step, 'train/P_1', step)
    ]
  reporter.flush()
  assert event_files.read(tmp_path) == (wanted, [6])
  assert len(lines(tmp_path)) == 294
  reporter.close()
  assert event_files.read(tmp_path) == (wanted, [6])


def test_other_hosts_report_without_writing(tmp_path, monkeypatch):
  monkeypatch.setattr(jax, 'process_index', lambda: 1)
  reporter = Reporter(tmp_path, 0, 2, 8)
  reporter.step(1, {'loss': 1.0})
  reporter.scalars('validation', 1, {'P@1': 0.5})
  reporter.flush()
  reporter.close()
  assert not list(tmp_path.iterdir())
