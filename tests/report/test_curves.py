"""Curves: what is read of metrics.jsonl, and the charts drawn of it."""

import math
import re

import numpy as np
import pytest
import report_folder
from report_folder import train

from dualenc_jax.evaluation.report import curves
from dualenc_jax.utils.errors import UserError


def read(folder):
  return curves.read(folder / 'metrics.jsonl')


def test_every_value_is_read_as_it_was_written(tmp_path):
  measured = {'step': 20, 'group': 'validation', 'P@1': 0.25}
  report_folder.curves(tmp_path, train(10, loss=2.5, norm=1), train(20, loss=1))
  report_folder.curves(tmp_path, measured, train(30, loss=None))
  found = read(tmp_path)
  assert math.isnan(found['train/loss'].pop(30))
  assert found == {
      'train/loss': {10: 2.5, 20: 1.0}, 'train/norm': {10: 1.0},
      'validation/P@1': {20: 0.25},
  }


def test_a_last_line_that_is_being_written_is_no_damage(tmp_path):
  report_folder.curves(tmp_path, *(train(i, loss=i * 1.5) for i in range(9)))
  path = tmp_path / 'metrics.jsonl'
  path.write_bytes(path.read_bytes()[:-10])
  expected = {'train/loss': {i: i * 1.5 for i in range(8)}}
  assert read(tmp_path) == expected


@pytest.mark.parametrize('line', [b'\xff', b'[1]', b'{"a":' * 100_000])
def test_a_damaged_line_is_named(tmp_path, line):
  path = tmp_path / 'metrics.jsonl'
  good = b'{"step": 3, "group": "train", "loss": 2}\n'
  path.write_bytes(good + line + b'\n')
  with pytest.raises(UserError, match=f'{path}, line 2'):
    read(tmp_path)


def charts(values, metric='train/loss', **more):
  return curves.charts({'': {metric: values, **more}})


def test_a_chart_has_extremes_and_leaves_out_what_is_not_finite():
  values = {1: 4.0, 2: math.nan, 3: 1.0, 4: math.inf, 5: 2.0}
  (chart,) = charts(values, **{'train/none': {1: math.nan}})
  assert (chart.title, chart.lost) == ('Loss', 2)
  (line,) = chart.lines
  assert (line.label, line.colour) == ('loss', 0)
  assert line.ends == [(2, 5), (1, 3), (4, 1)]
  assert charts({1: 1.0}, 'a/own_metric')[0].lines[0].label == 'own metric'


def points(values):
  """Of every drawn path in a colour of the page, its points: [n, 2]."""
  (chart,) = charts(dict(enumerate(values.tolist())))
  assert len(chart.drawing) < 60_000
  paths = re.findall(r'<path d="([^"]*)"[^>]*var\(--s0\)', chart.drawing)
  return [
      np.array(re.findall(r'[ML] (\S+) (\S+)', path), float) for path in paths
  ]


def test_a_line_runs_through_its_values():
  values = 3.0 + np.cumsum(np.random.default_rng(0).normal(size=90))
  (drawn,) = points(values)
  # The axes are linear: positions are values, scaled.
  for column, expected in zip(drawn.T, (np.arange(90.0), values)):
    slope, offset = np.polyfit(expected, column, 1)
    np.testing.assert_allclose(column, slope * expected + offset, atol=0.01)


def test_a_long_curve_is_drawn_by_means_of_neighbours():
  values = np.random.default_rng(0).uniform(1, 2, 20_000)
  values[:800] = 9.0
  (drawn,) = points(values)
  assert len(drawn) <= 250
  # Ten means of 80 values are nine, all others nearly 1.5.
  heights = -drawn[:, 1]
  low = heights < heights.mean()
  assert 0 < len(low) - low.sum() <= 10
  assert np.ptp(heights[low]) < 0.05 * np.ptp(heights)
