"""What a run writes while it trains."""

import json

import jax
import numpy as np

from dualenc_jax.training.reporting import Reporter


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


def test_other_hosts_report_without_writing(tmp_path, monkeypatch):
  monkeypatch.setattr(jax, 'process_index', lambda: 1)
  reporter = Reporter(tmp_path, 0, 2, 8)
  reporter.step(1, {'loss': 1.0})
  reporter.scalars('validation', 1, {'P@1': 0.5})
  reporter.close()
  assert not list(tmp_path.iterdir())
