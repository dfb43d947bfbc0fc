"""Figures of codecs: quality over bytes, and over the candidates of two steps.

The first, with rows of one kind joined, is figure 4 of Thakur et al. (2022)
where these are pq of 32 to 192 times less.
"""

from collections.abc import Iterator, Mapping, Sequence
import itertools
from typing import Any

from dualenc_jax.figures.drawing import model_style, percent
from dualenc_jax.figures.figure import Figure


def figures(
    found: Sequence[Any],
    metric: str,
    curves: Mapping[str, Mapping[int, float]],
    title: str,
) -> Iterator[Figure]:
  """The figures.

  Args:
    found: `codecs.Measured`, the embeddings as they are first.
    metric: that is drawn.
    curves: the metric by l, of codecs of two steps.
    title: what they are of.
  """
  yield _over_bytes(found, metric, title)
  if curves:
    yield _over_candidates(found[0], metric, curves, title)


def _over_bytes(found: Sequence[Any], metric: str, title: str) -> Figure:
  shown = [one for one in found if one.metrics.get(metric) is not None]

  def draw(canvas):
    axis = canvas.subplots()
    kinds = itertools.groupby(sorted(shown, key=_kind), _kind)
    for number, (kind, own) in enumerate(kinds):
      points = sorted((o.bytes_per_passage, o.metrics[metric]) for o in own)
      axis.plot(
          *zip(*points), marker='o', label=kind, **model_style(number)
      )
    for one in shown:
      axis.annotate(
          one.name,
          (one.bytes_per_passage, one.metrics[metric]),
          (4, 4),
          textcoords='offset points',
          fontsize=7,
      )
    whole = shown[0].metrics[metric]
    axis.axhline(whole, color='#9a9a9a', linewidth=0.8, linestyle=':')
    axis.set_xscale('log', base=2)
    axis.xaxis.set_major_formatter(lambda x, _: f'{x:g}')
    axis.set_xlabel('bytes a passage')
    axis.set_ylabel(metric)
    percent(axis)
    canvas.legend(loc='outside right upper')

  return Figure(
      'codecs-bytes',
      f'{metric} over bytes a passage',
      f'{title}. The dotted line is that of the embeddings as they are.',
      {
          'codec': [one.name for one in shown],
          'bytes_per_passage': [one.bytes_per_passage for one in shown],
          'compression': [
              shown[0].bytes_per_passage / one.bytes_per_passage
              for one in shown
          ],
          metric: [one.metrics[metric] for one in shown],
      },
      (7.5, 4.2),
      draw,
  )


def _over_candidates(
    first: Any,
    metric: str,
    curves: Mapping[str, Mapping[int, float]],
    title: str,
) -> Figure:
  def draw(canvas):
    axis = canvas.subplots()
    for number, (name, by_l) in enumerate(curves.items()):
      axis.plot(
          *zip(*by_l.items()), marker='o', label=name, **model_style(number)
      )
    axis.axhline(
        first.metrics[metric], color='#9a9a9a', linewidth=0.8, linestyle=':'
    )
    axis.set_xscale('symlog', linthresh=10)
    axis.set_xlabel('passages that are scored again (l)')
    axis.set_ylabel(metric)
    percent(axis)
    canvas.legend(loc='outside upper left')

  rows = [
      (name, count, value)
      for name, by_l in curves.items()
      for count, value in by_l.items()
  ]
  names, counts, values = map(list, zip(*rows))
  return Figure(
      'codecs-two-steps',
      f'{metric} over the candidates of the first step',
      f'{title}. 0 is the order by Hamming distance alone; the dotted line is'
      ' that of the embeddings as they are.',
      {'codec': names, 'rescored': counts, metric: values},
      (6.0, 4.0),
      draw,
  )


def _kind(one: Any) -> str:
  """What codecs of several sizes have in common."""
  return '+'.join(part.partition(':')[0] for part in one.name.split('+'))
