"""The comparison of codecs on a result: sizes, quality, time, figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import importlib.util
import itertools
import logging
import pathlib
import shutil
import time
from typing import Any

import numpy as np

from dualenc_jax import compression
from dualenc_jax.compression import Codec, Coded, Spec
from dualenc_jax.errors import UserError
from dualenc_jax.evaluation import evaluation
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.metrics import DEPTH
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.figures import figure as figure_lib, table as table_lib
from dualenc_jax.figures.drawing import model_style, percent
from dualenc_jax.figures.figure import Figure
from dualenc_jax.figures.table import Cell, MISSING, Row, Table
from dualenc_jax.results.folder import values_by_query, write_result
from dualenc_jax.results.significance import paired
from dualenc_jax.search.two_steps import search_of, TwoSteps

FOLDER = 'codecs'
_PREFERRED = 'nDCG@10', 'MRR', 'P@1'
_DEEP = 'Recall@1000', 'Recall@100', 'top-100'
# Passages that are encoded together.
_BLOCK = 2**14
_DOTTED = {'color': '#9a9a9a', 'linewidth': 0.8, 'linestyle': ':'}
# By codec of two steps a metric by l, the candidates that are scored again.
_Curves = Mapping[str, Mapping[int, float | None]]
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Measured:
  """A codec on a retrieval set.

  `bytes_once` are of the codec; p of the paired randomization test against the
  embeddings as they are, None for these; milliseconds a query's, of all at
  once; seconds of training and encoding.
  """

  name: str
  bytes_per_passage: float
  bytes_once: int
  metrics: Mapping[str, float]
  p: float | None
  milliseconds: float
  seconds: float


def check(specs: Sequence[Spec], dim: int, count: int) -> None:
  """Raises UserError for a codec of D, N that `evaluate` would fail with."""
  needed = min(DEPTH, count)
  for spec in specs:
    spec.check(dim, count)
    if spec.rescored is not None and spec.rescored < needed:
      raise UserError(
          f'The codec {spec.name} scores only {spec.rescored} hits per query'
          f' again, but metrics need {needed}. Use binary:{needed} or more.'
      )


def evaluate(
    specs: Sequence[Spec], first: Evaluation, queries: np.ndarray,
    passages: Any, ranked: RetrievalSet, folder: pathlib.Path,
    facts: Mapping[str, Any], k: int, depth: int,
    training_queries: Callable[[], np.ndarray],
) -> Table:
  """Evaluates codecs, and writes a result folder for each, table and figures.

  Args:
    specs: of the codecs.
    first: of the embeddings as they are.
    queries: float32 [Q, D].
    passages: [N, D], in memory or on disk.
    ranked: what they are of.
    folder: of all of them; made anew.
    facts: what the numbers depend on.
    k: hits a query in the run files.
    depth: hits a query that metrics are of.
    training_queries: float32 [n, D], for codecs that learn from queries.
  """
  remove(folder)
  _, values = values_by_query(ranked, first)
  metric = next((m for m in _PREFERRED if m in values), next(iter(values)))
  size = passages.shape[1] * passages.dtype.itemsize
  whole = _Measured(
      compression.FLOATS[str(passages.dtype)], size, 0, first.metrics, None,
      _milliseconds(passages, queries, ranked, depth), 0.0,
  )
  found, curves = [whole], {}
  learning = any(spec.needs_queries for spec in specs)
  more = training_queries() if learning else None
  # Documents of several passages, and queries that are passages, are ranked
  # deeper.
  plain = ranked.documents is None and ranked.self_hits is None
  for spec in specs:
    start = time.perf_counter()
    _LOG.info('Codec %s.', spec.name)
    codec = spec.fit(passages, more)
    coded = encoded(codec, passages)
    seconds = time.perf_counter() - start
    deep = min(depth, codec.rescored or depth)
    result = evaluation.rank(queries, coded, ranked, deep)
    _, own = values_by_query(ranked, result)
    p = paired(values[metric], own[metric]).p
    milliseconds = _milliseconds(coded, queries, ranked, deep, plain)
    size = coded.codes.nbytes / len(coded)
    found.append(_Measured(
        spec.name, size, codec.bytes_once, result.metrics, p, milliseconds,
        seconds,
    ))
    if codec.rescored is not None:
      curves[spec.name] = over_candidates(coded, queries, ranked, metric)
    how = {'codec': spec.name, 'bytes_per_passage': codec.bytes_per_passage}
    output = folder / spec.name.replace(':', '-')
    write_result(output, ranked, result, k, {**facts, **how})
  table = _table(found, metric, ranked, facts)
  table_lib.write(folder, 'codecs', [table])
  figure_lib.write_csv(folder / 'codecs.csv', _columns(found))
  if importlib.util.find_spec('matplotlib'):
    figure_lib.save(_over_bytes(found, metric, table.title), folder)
    if curves:
      figure = _over_candidates(whole, metric, curves, table.title)
      figure_lib.save(figure, folder)
  return table


def remove(folder: pathlib.Path) -> None:
  """Removes what `evaluate` wrote, if anything."""
  if (folder / 'codecs.csv').exists() or (folder / 'codecs.md').exists():
    shutil.rmtree(folder)


def encoded(codec: Codec, vectors: Any) -> Coded:
  """Vectors [N, D], an array or a store of rows, as codes in memory."""
  width = codec.quantiser.width
  codes = np.empty((len(vectors), width), codec.code_dtype)
  for start in range(0, len(vectors), _BLOCK):
    block = np.asarray(vectors[start : start + _BLOCK], np.float32)
    codes[start : start + len(block)] = codec.encode(block)
  return Coded(codec, codes)


def over_candidates(
    coded: Coded, queries: np.ndarray, ranked: RetrievalSet, metric: str
) -> dict[int, float | None]:
  """A metric by l, the candidates of the first step that are scored again.

  0 is the order of the first step alone. Hits beyond l stand in that order.
  """
  search = TwoSteps(coded, ranked.corpus.ids)
  wanted = (0, 10, 20, 50, 100, 200, 500, 1000)
  several = [count for count in wanted if count <= len(coded)]
  found = search.by_candidates(queries, several, min(1000, len(coded)))
  return {
      count: evaluation.score(ranking, ranked).metrics.get(metric)
      for count, ranking in zip(several, found)
  }


def _milliseconds(
    passages: Any, queries: np.ndarray, ranked: RetrievalSet, depth: int,
    compiled: bool = False,
) -> float:
  """A query's, of all at once, without what is compiled if they are not yet."""
  search = search_of(passages, ranked.corpus.ids)
  times = []
  for _ in range(1 if compiled else 2):
    start = time.perf_counter()
    search.top_k(queries, min(depth, len(passages)))
    times.append(time.perf_counter() - start)
  return 1000 * min(times) / len(queries)


def _smaller(found: Sequence[_Measured]) -> list[float]:
  first = found[0].bytes_per_passage
  return [first / one.bytes_per_passage for one in found]


def _columns(found: Sequence[_Measured]) -> dict[str, list[Any]]:
  metrics = dict.fromkeys(name for one in found for name in one.metrics)
  return {
      'codec': [one.name for one in found],
      'bytes_per_passage': [one.bytes_per_passage for one in found],
      'bytes_once': [one.bytes_once for one in found],
      'compression': _smaller(found),
      **{m: [one.metrics.get(m, '') for one in found] for m in metrics},
      'p': ['' if one.p is None else one.p for one in found],
      'ms_a_query': [one.milliseconds for one in found],
      'seconds_to_make': [one.seconds for one in found],
  }


def _table(
    found: Sequence[_Measured], metric: str, ranked: RetrievalSet,
    facts: Mapping[str, Any],
) -> Table:
  metrics = [metric, *[m for m in _DEEP if m in found[0].metrics][:1]]
  columns = ['bytes', 'times smaller', 'MB', *metrics, 'p', 'ms', 's to make']
  passages = len(ranked.corpus)
  rows = []
  for one, smaller in zip(found, _smaller(found)):
    size = one.bytes_per_passage * passages + one.bytes_once
    values = [one.metrics.get(name) for name in metrics]
    cells = (
        Cell(f'{one.bytes_per_passage:g}'),
        Cell(f'{smaller:.3g}'),
        Cell(f'{size / 1e6:.3g}', exact=repr(size)),
        *map(_share, values),
        Cell(MISSING if one.p is None else f'{one.p:.4f}'),
        Cell(f'{one.milliseconds:.3g}'),
        Cell(f'{one.seconds:.1f}' if one.seconds else MISSING),
    )
    rows.append(Row((one.name,), cells))
  return Table(
      name='codecs',
      title=f'Codecs on {facts["label"]} {facts["split"]}, {passages:,}'
      ' passages',
      heads=('Codec',),
      columns=tuple(('', column) for column in columns),
      rows=tuple(rows),
      notes=(
          'Bytes are of a passage on disk; MB of all and of the codec. p: of'
          f' {metric} against {found[0].name}, paired randomization test. ms: a'
          f' query, all {len(ranked.query_ids):,} at once.',
      ),
  )


def _share(value: float | None) -> Cell:
  if value is None:
    return Cell(MISSING)
  return Cell(f'{100 * value:.2f}', exact=repr(value))


def _over_bytes(found: Sequence[_Measured], metric: str, title: str) -> Figure:
  """Quality over bytes, with rows of one kind joined.

  Figure 4 of Thakur et al. (2022) where these are pq of 32 to 192 times less.
  """
  shown = [one for one in found if one.metrics.get(metric) is not None]
  sizes = [one.bytes_per_passage for one in shown]
  values = [one.metrics[metric] for one in shown]

  def draw(canvas: Any) -> None:
    axis = canvas.subplots()
    kinds = itertools.groupby(sorted(shown, key=_kind), _kind)
    curves = {
        kind: sorted((o.bytes_per_passage, o.metrics[metric]) for o in own)
        for kind, own in kinds
    }
    _plot(axis, curves.items())
    for one, *place in zip(shown, sizes, values):
      axis.annotate(
          one.name, place, (4, 4), textcoords='offset points', fontsize=7
      )
    axis.axhline(values[0], **_DOTTED)
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
          'bytes_per_passage': sizes,
          'compression': _smaller(shown),
          metric: values,
      },
      (7.5, 4.2),
      draw,
  )


def _over_candidates(
    whole: _Measured, metric: str, curves: _Curves, title: str
) -> Figure:
  def draw(canvas: Any) -> None:
    axis = canvas.subplots()
    _plot(axis, ((name, by_l.items()) for name, by_l in curves.items()))
    axis.axhline(whole.metrics[metric], **_DOTTED)
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
  return Figure(
      'codecs-two-steps',
      f'{metric} over the candidates of the first step',
      f'{title}. 0 is the order by Hamming distance alone; the dotted line is'
      ' that of the embeddings as they are.',
      dict(zip(('codec', 'rescored', metric), map(list, zip(*rows)))),
      (6.0, 4.0),
      draw,
  )


def _plot(axis: Any, curves: Iterable[tuple[str, Any]]) -> None:
  """Draws points (x, y) by the name of their curve."""
  for number, (name, points) in enumerate(curves):
    axis.plot(*zip(*points), marker='o', label=name, **model_style(number))


def _kind(one: _Measured) -> str:
  """What codecs of several sizes have in common."""
  return '+'.join(part.partition(':')[0] for part in one.name.split('+'))
