"""Charts: read off the drawing as a person would, against the numbers."""

from html.parser import HTMLParser
import re

import numpy as np
import pytest

from dualenc_jax.report import axis, chart, curves
from dualenc_jax.report.series import Series


class Drawing(HTMLParser):
  """The lines, texts and paths of an SVG."""

  def __init__(self, markup):
    super().__init__()
    self.elements = []
    self.texts = []
    self.feed(markup)

  def handle_starttag(self, tag, attrs):
    self.elements.append((tag, dict(attrs)))

  def handle_data(self, data):
    self.texts.append((*self.elements[-1], data))

  def ticks(self, of_y):
    """Label and position along its axis of every tick."""
    return [
        (number(text), float(at['y' if of_y else 'x']))
        for tag, at, text in self.texts
        if at.get('class') == 'tick' and text != 'step'
        and ('dominant-baseline' in at) == of_y
    ]

  def path(self, kind):
    (data,) = (a['d'] for t, a in self.elements if a.get('class') == kind)
    return np.array(
        [[float(c) for c in p.split(',')] for p in data[1:].split()]
    )

  def titles(self):
    return [text for tag, _, text in self.texts if tag == 'title']


def number(label):
  size = {'k': 1e3, 'M': 1e6, 'G': 1e9}.get(label[-1], 1.0)
  return float(label.rstrip('kMG')) * size


def scale(ticks):
  """The straight line from positions to values through the ticks."""
  values, places = np.array(ticks).T
  slope, offset = np.polyfit(places, values, 1)
  # They lie on it: no tick is labelled with another's number.
  np.testing.assert_allclose(
      slope * places + offset, values, atol=np.ptp(values) * 2e-3
  )
  return lambda place: slope * place + offset


def test_a_line_runs_through_the_values_that_the_ticks_say():
  rng = np.random.default_rng(0)
  values = 3.0 + np.cumsum(rng.normal(size=90))
  series = Series.of(dict(zip(range(1000, 10000, 100), values.tolist())))
  y = axis.linear(values.min(), values.max())
  drawing = Drawing(chart.draw({'loss': series}, y))
  points = drawing.path('line')
  to_step, to_value = scale(drawing.ticks(False)), scale(drawing.ticks(True))
  # A tenth of a unit of the drawing is what positions are rounded to.
  one = abs(to_value(1.0) - to_value(0.0))
  np.testing.assert_allclose(to_value(points[:, 1]), values, atol=0.3 * one)
  one = to_step(1.0) - to_step(0.0)
  np.testing.assert_allclose(
      to_step(points[:, 0]), series.steps, atol=0.3 * one
  )
  assert points.min() >= 0
  assert points.max(0)[0] <= chart.WIDTH and points.max(0)[1] <= chart.HEIGHT


def test_every_value_of_a_short_curve_can_be_read_with_its_step():
  loss = Series.of({10: 2.5, 20: 1.25, 30: 0.123456})
  other = Series.of({10: 0.5, 30: 0.75})
  lines = {'loss': loss, 'other <one>': other}
  drawing = Drawing(chart.draw(lines, axis.linear(0, 2.5)))
  assert drawing.titles() == [
      'step 10: loss 2.5, other <one> 0.5',
      'step 20: loss 1.25',
      'step 30: loss 0.1235, other <one> 0.75',
  ]


def test_a_long_curve_is_thin_has_its_means_and_readouts_of_true_values():
  steps = range(1, 20001)
  values = np.random.default_rng(0).uniform(1, 2, 20000)
  values[7777] = 9.0
  series = Series.of(dict(zip(steps, values.tolist())))
  y = axis.linear(0, 9)
  markup = chart.draw({'loss': series}, y, window=400)
  drawing = Drawing(markup)
  assert len(drawing.path('raw')) <= 500 and len(drawing.path('line')) <= 500
  # The spike is in it; the line of means stays near one and a half.
  to_value = scale(drawing.ticks(True))
  assert to_value(drawing.path('raw')[:, 1].min()) == pytest.approx(9, abs=0.02)
  means = to_value(drawing.path('line')[:, 1])
  np.testing.assert_allclose(means, 1.5, atol=0.1)
  titles = drawing.titles()
  assert 40 <= len(titles) <= 60
  for title in titles:
    step, value = re.fullmatch(r'step ([\d,]+): loss (\S+)', title).groups()
    true = values[int(step.replace(',', '')) - 1]
    assert float(value) == pytest.approx(true, rel=1e-3)
  assert titles[-1].startswith('step 20,000:')
  assert len(markup) < 50_000


@pytest.mark.parametrize(
    'low, high',
    [(0, 1), (1.49, 12.47), (-3.2, -2.9), (0, 1e-3), (5, 5), (0, 0), (0, 83e5)],
)
def test_a_linear_axis_has_round_ticks_around_the_values(low, high):
  made = axis.linear(low, high)
  assert made.low < made.high
  assert made.low <= low + 1e-12 and high <= made.high + 1e-12
  assert made.ticks[0] == pytest.approx(made.low)
  assert made.ticks[-1] == pytest.approx(made.high)
  assert 3 <= len(made.ticks) <= 8
  steps = np.diff(made.ticks)
  np.testing.assert_allclose(steps, steps[0])
  assert float(f'{steps[0]:.2g}') == pytest.approx(steps[0])
  for tick in made.ticks:
    assert number(axis.short(tick)) == pytest.approx(tick, abs=1e-12)


def test_a_logarithmic_axis_has_powers_of_ten_at_equal_distances():
  made = axis.logarithmic(0.3, 254.0)
  assert made.ticks == (0.1, 1.0, 10.0, 100.0, 1000.0)
  places = [made.position(tick) for tick in made.ticks]
  np.testing.assert_allclose(places, [0, 0.25, 0.5, 0.75, 1], atol=1e-12)
  assert len(axis.logarithmic(1e-9, 1e9).ticks) <= 6
  assert axis.logarithmic(1.0, 1.0).position(1.0) == 0.0


@pytest.mark.parametrize(
    'value, label',
    [
        (0.1 + 0.2, '0.3'),
        (20000, '20k'),
        (2_500_000, '2.5M'),
        (5e-4, '5e-4'),
        (7.5e-5, '7.5e-5'),
        (-1.5, '-1.5'),
        (1e-17, '0'),
    ],
)
def test_labels_are_short(value, label):
  assert axis.short(value) == label


def test_the_section_names_extremes_and_what_is_not_finite():
  values = {1: 4.0, 2: float('nan'), 3: 1.0, 4: float('inf'), 5: 2.0}
  markup = curves.render({'train/loss': Series.of(values)})
  text = re.sub(r'<[^>]*>', ' ', markup)
  words = ' '.join(text.split())
  assert '2 not finite, left out' in words
  assert 'last 2 ' in words
  assert 'lowest 1 at step 3' in words and 'highest 4 at step 1' in words
  assert 'nan' not in words and 'inf ' not in words


def test_curves_without_any_number_are_left_out():
  nothing = Series.of({1: float('nan')})
  some = Series.of({1: 1.0})
  markup = curves.render({'train/loss': nothing, 'train/own_metric': some})
  assert 'own metric' in markup and 'Loss' not in markup
  assert curves.render({}) == ''
