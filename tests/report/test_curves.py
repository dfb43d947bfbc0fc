"""Curves: what is read of metrics.jsonl, and the charts drawn of it."""

import math
import re
import sys

import numpy as np
import pytest
import report_folder
from report_folder import train

from dualenc_jax.report import curves


def read(folder):
  return curves.read(folder / 'metrics.jsonl')


def test_every_value_is_read_as_it_was_written(tmp_path):
  measured = {'step': 20, 'group': 'validation', 'P@1': 0.25}
  report_folder.curves(tmp_path, train(10, loss=2.5, norm=1), train(20, loss=1))
  report_folder.curves(tmp_path, measured, train(30, loss=None))
  found, problems = read(tmp_path)
  assert math.isnan(found['train/loss'].pop(30))
  assert found == {
      'train/loss': {10: 2.5, 20: 1.0},
      'train/norm': {10: 1.0},
      'validation/P@1': {20: 0.25},
  }
  assert problems == []


@pytest.mark.parametrize('cut', [1, 2, 10, 40])
def test_a_last_line_that_is_being_written_is_no_damage(tmp_path, cut):
  report_folder.curves(tmp_path, *(train(i, loss=i * 1.5) for i in range(9)))
  path = tmp_path / 'metrics.jsonl'
  path.write_bytes(path.read_bytes()[:-cut])
  found, problems = read(tmp_path)
  assert found == {'train/loss': {i: i * 1.5 for i in range(8 + (cut == 1))}}
  assert problems == []


@pytest.mark.parametrize(
    'line',
    [b'', b'\xff', b'[1]', b'{"step": 1}', b'{"group": "train", "step": "1"}',
     b'{"group": "train", "step": 1, "loss": "2"}', b'{"a":' * 100_000],
)
def test_a_damaged_line_is_named_and_left_out(tmp_path, line):
  path = tmp_path / 'metrics.jsonl'
  good = b'{"step": 3, "group": "train", "loss": 2}\n'
  path.write_bytes(good + line + b'\n')
  found, (problem,) = read(tmp_path)
  assert found == {'train/loss': {3: 2.0}}
  assert problem.startswith(f'{path} ') and 'line 2' in problem


def test_without_a_file_there_are_no_curves(tmp_path):
  assert read(tmp_path) == ({}, [])
  assert curves.render({}) == ''


def words(markup):
  return ' '.join(re.sub(r'<[^>]*>', ' ', markup).split())


def test_a_chart_has_extremes_and_leaves_out_what_is_not_finite():
  values = {1: 4.0, 2: math.nan, 3: 1.0, 4: math.inf, 5: 2.0}
  nothing = {1: math.nan}
  markup = curves.render({'train/loss': values, 'train/none': nothing})
  assert '2 values are not finite and left out' in words(markup)
  assert 'loss: 2 at step 5, lowest 1 at 3, highest 4 at 1' in words(markup)
  assert markup.count('<svg') == 1 and 'Learning rate' not in markup
  assert 'own metric: 1 at' in words(curves.render({'a/own_metric': {1: 1.0}}))


def points(markup):
  """Of every drawn path in a colour of the page, its points: [n, 2]."""
  paths = re.findall(r'<path d="([^"]*)"[^>]*var\(--s0\)', markup)
  return [
      np.array(re.findall(r'[ML] (\S+) (\S+)', path), float) for path in paths
  ]


def test_a_line_runs_through_its_values():
  values = 3.0 + np.cumsum(np.random.default_rng(0).normal(size=90))
  markup = curves.render({'train/loss': dict(enumerate(values.tolist()))})
  (drawn,) = points(markup)
  # The axes are linear: positions are values, scaled.
  for column, expected in zip(drawn.T, (np.arange(90.0), values)):
    slope, offset = np.polyfit(expected, column, 1)
    np.testing.assert_allclose(column, slope * expected + offset, atol=0.01)


def test_a_long_curve_is_thin_and_has_its_means_and_its_extremes():
  values = np.random.default_rng(0).uniform(1, 2, 20_000)
  values[7777] = 9.0
  markup = curves.render({'train/loss': dict(enumerate(values.tolist()))})
  raw, means = points(markup)
  assert len(raw) <= 510 and len(means) <= 510 and len(markup) < 60_000
  # The spike is drawn, its height that of the other values times eight.
  heights = np.sort(-raw[:, 1])
  assert heights[-1] - heights[0] == pytest.approx(
      8 * (heights[-2] - heights[0]), rel=0.02
  )
  assert np.ptp(means[:, 1]) < 0.05 * np.ptp(raw[:, 1])


def test_smoothed_values_are_means_around_each():
  values = np.random.default_rng(0).normal(size=101)
  expected = [values[max(i - 4, 0) : i + 5].mean() for i in range(101)]
  np.testing.assert_allclose(curves._smoothed(values, 9), expected, atol=1e-12)


def test_without_matplotlib_the_page_says_what_brings_it(monkeypatch):
  for name in [n for n in sys.modules if n.partition('.')[0] == 'matplotlib']:
    monkeypatch.delitem(sys.modules, name)
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  markup = curves.render({'train/loss': {1: 2.0}})
  assert 'pip install' in markup and '<svg' not in markup
