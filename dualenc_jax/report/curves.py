"""The section of training curves: which there are, and how each is drawn."""

from collections.abc import Mapping
import dataclasses
import re

from dualenc_jax.report import axis, chart
from dualenc_jax.report.axis import precise
from dualenc_jax.report.markup import folded, Html, section, tag
from dualenc_jax.report.series import Series


@dataclasses.dataclass(frozen=True)
class Panel:
  """A chart that every report has if there are numbers for it.

  Attributes:
    title: above the chart.
    tags: its curves.
    note: what the numbers are, after the title.
    floor: a value that the axis starts at or below.
    noisy: whether means are needed to see where it goes.
    spiky: whether a few values may be so high that, on a linear axis, they
      would flatten all others.
  """

  title: str
  tags: tuple[str, ...]
  note: str = ''
  floor: float | None = None
  noisy: bool = False
  spiky: bool = False


PANELS = (
    Panel('Loss', ('train/loss',), 'of each training batch', noisy=True),
    Panel(
        'Validation',
        (
            'validation/P_1',
            'validation/MRR',
            'validation/nDCG_10',
            'validation/Recall_10',
            'validation/Recall_100',
        ),
        floor=0.0,
    ),
    Panel(
        'In-batch accuracy',
        ('train/accuracy',),
        'positive above every negative passage of the batch',
        floor=0.0,
        noisy=True,
    ),
    Panel(
        'Mean cosines',
        (
            'train/positive_similarity',
            'train/query_passage_similarity',
            'train/query_query_similarity',
            'train/passage_passage_similarity',
        ),
        'of a batch',
        noisy=True,
    ),
    Panel('Gradient norm', ('train/gradient_norm',), noisy=True, spiky=True),
    Panel('Learning rate', ('train/learning_rate',), floor=0.0),
    Panel(
        'Examples per second',
        ('train/examples_per_second',),
        floor=0.0,
        noisy=True,
    ),
)
# Curves this long get a line of means on top of the values.
_SMOOTHED = 100
_NAMES = {
    'positive_similarity': 'query and its passage',
    'query_passage_similarity': 'query and other passage',
    'query_query_similarity': 'two queries',
    'passage_passage_similarity': 'two passages',
}


def render(curves: Mapping[str, Series]) -> Html:
  """The section; nothing of it if there are no curves."""
  if not curves:
    return Html('')
  shown = {t for panel in PANELS for t in panel.tags}
  more = [
      Panel(title(t), (t,), t.rpartition('/')[0])
      for t in curves
      if t not in shown
  ]
  charts = [c for panel in PANELS if (c := _figure(panel, curves))]
  others = [c for panel in more if (c := _figure(panel, curves))]
  parts = [tag('div', *charts, class_='charts')]
  if max(map(len, curves.values())) >= _SMOOTHED:
    note = 'Thin lines are single values, bold ones means over a 50th of them.'
    parts.insert(0, tag('p', note, class_='note'))
  if others:
    parts.append(
        folded(
            f'{len(others)} more curve{"s" * (len(others) > 1)}',
            tag('div', *others, class_='charts'),
        )
    )
  return section('curves', 'Training', *parts)


def title(name: str) -> str:
  """'P@1' of 'validation/P_1': tags cannot have what metrics' names have."""
  name = name.rpartition('/')[2]
  return re.sub(r'_(\d+)$', r'@\1', name).replace('_', ' ')


def _figure(panel: Panel, curves: Mapping[str, Series]) -> Html:
  """A chart with its title and what to know of it; nothing without numbers."""
  lines, lost = {}, 0
  for name in panel.tags:
    if name not in curves:
      continue
    series = curves[name].finite()
    lost += len(curves[name]) - len(series)
    if len(series):
      short = name.rpartition('/')[2]
      lines[_NAMES.get(short, title(name))] = series
  if not lines:
    return Html('')
  notes = [panel.note] if panel.note else []
  longest = max(map(len, lines.values()))
  window = longest // 50 if panel.noisy and longest >= _SMOOTHED else 1
  if lost:
    notes.append(f'{lost:,} not finite, left out')
  return tag(
      'figure',
      tag('figcaption', tag('b', panel.title), *_small(notes)),
      chart.draw(lines, _axis(lines, panel), window),
      _legend(lines) if len(lines) > 1 else _extremes(*lines.values()),
      class_='chart',
  )


def _small(notes: list[str]) -> list[str]:
  return [' ', tag('small', '; '.join(notes))] if notes else []


def _axis(lines: Mapping[str, Series], panel: Panel) -> axis.Axis:
  low = min(float(s.values.min()) for s in lines.values())
  high = max(float(s.values.max()) for s in lines.values())
  if panel.spiky and low > 0 and high / low > 50:
    return axis.logarithmic(low, high)
  if panel.floor is not None:
    low = min(low, panel.floor)
  return axis.linear(low, high)


def _legend(lines: Mapping[str, Series]) -> Html:
  items = [
      tag('li', name, ' ', tag('b', precise(s.values[-1])), class_=f's{i}')
      for i, (name, s) in enumerate(lines.items())
  ]
  return tag('ul', *items, class_='legend')


def _extremes(series: Series) -> Html:
  words = [tag('span', 'last ', tag('b', precise(series.values[-1])))]
  if series.values.min() == series.values.max():
    return tag('p', *words, class_='legend')
  for word, i in (
      ('lowest', series.values.argmin()),
      ('highest', series.values.argmax()),
  ):
    value, step = series.values[i], series.steps[i]
    words.append(
        tag('span', f'{word} {precise(value)} at step {step:,}')
    )
  return tag('p', *words, class_='legend')
