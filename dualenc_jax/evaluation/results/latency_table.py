"""A table of the cost of a query in several models."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.evaluation.results import comparison, systems
from dualenc_jax.retrieval.encoding.latency import Latency, WARM_UP
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.table import Cell, MISSING, Row, Table

_KINDS = ('tower', 'with tokenizer')


@dataclasses.dataclass(frozen=True)
class Quality:
  """How good models are by a metric, 0 to 1.

  `p` is of the paired randomization test against the first, which has none.
  """

  metric: str
  values: Mapping[str, float]
  p: Mapping[str, float]


def quality(
    names: Sequence[str], results: Sequence[str], metric: str
) -> Quality:
  """Of folders of results of `dualenc evaluate` on one set, one a model."""
  if len(results) != len(names):
    raise UserError(
        f'--results is given {len(results)} times for {len(names)} models;'
        ' expected it once for each model, in order.'
    )
  if len(names) < 2:
    raise UserError('--results compares models: expected two or more.')
  read = systems.read([pathlib.Path(path) for path in results], names)
  found = comparison.compare(
      read[0], read[1:], comparison.Options(metrics=[metric])
  ).differences
  if len({d.evaluated for d in found}) > 1:
    raise UserError(
        f'--results: {results[0]} has results of several sets. Give the folder'
        ' of one of them.'
    )
  values = {d.model: d.value for d in found}
  return Quality(
      metric,
      {names[0]: found[0].baseline_value, **values},
      {d.model: d.randomization for d in found},
  )


def table(
    measured: Sequence[Sequence[Latency]], settings: Mapping[str, Any],
    quality: Quality | None = None,
) -> Table:
  """A row for each length or set of queries, and model.

  `measured` are models by set, in one order, the baseline first; `settings` as
  in latency.json.
  """
  columns = [('', name) for name in ('layers', 'parameters', 'MB', 'GFLOP')]
  columns += [(k, n) for k in _KINDS for n in ('p50', 'p95', 'mean')]
  columns += [('times as fast:', kind) for kind in _KINDS]
  if quality is not None:
    columns += [(quality.metric, name) for name in ('%', 'p')]
  rows: list[Row] = []
  for group in measured:
    for number, one in enumerate(group):
      tokens = f'{one.tokens_mean:.3g}'
      if one.tokens_p95 != one.tokens_mean:
        tokens += f', p95 {one.tokens_p95:.3g}'
      new = bool(rows) and not number and len(group) > 1
      cells = tuple(_cells(one, not number, quality))
      rows.append(Row((tokens, one.model), cells, ruled=new))
  return Table(
      name='latency',
      title='Latency of a query at batch 1 (ms)',
      heads=('Tokens', 'Model'),
      columns=tuple(columns),
      rows=tuple(rows),
      notes=tuple(_notes(measured[0], settings)),
  )


def _cells(
    one: Latency, is_first: bool, quality: Quality | None
) -> Iterator[Cell]:
  sizes = one.layers, one.parameters, one.megabytes, one.gflop
  for value, form in zip(sizes, ('d', ',d', '.1f', '.3g')):
    yield Cell(MISSING if value is None else format(value, form))
  both = one.tower, one.with_tokenizer
  for times in both:
    for value in (times.p50, times.p95, times.mean):
      yield Cell(f'{value:.2f}', exact=repr(value))
  for times in both:
    low, high = times.speedup_low, times.speedup_high
    text = f'{times.speedup:.2f} ({low:.2f} to {high:.2f})'
    yield Cell('1' if is_first else text, exact=repr(times.speedup))
  if quality is not None:
    value, p = quality.values[one.model], quality.p.get(one.model)
    yield Cell(f'{100 * value:.2f}', exact=repr(value))
    yield Cell(MISSING) if p is None else Cell(f'{p:.4f}', exact=repr(p))


def _notes(
    models: Sequence[Latency], settings: Mapping[str, Any]
) -> Iterator[str]:
  threads, devices = settings['threads'], settings['devices']
  dtypes = [one.dtype or 'unknown' for one in models]
  if len({*dtypes}) > 1:
    dtypes = [f'{d} ({one.model})' for d, one in zip(dtypes, models)]
  yield (
      f'{settings["cpu"]}, {threads} CPU thread{"s" * (threads > 1)};'
      f' {devices} device{"s" * (devices != 1)} {settings["device"]}; dtype'
      f' {", ".join(dict.fromkeys(dtypes))}; jax {settings["versions"]["jax"]}.'
  )
  yield (
      f'{settings["count"]:,} calls a row, of one query each, models in turns,'
      f' after {WARM_UP} or more to warm up; a call ends with the'
      ' embedding on the host.'
  )
  yield (
      'Tokens include prefix and EOS; MB is float32; times as fast as'
      f' {models[0].model}: ratio of the p50, with its 95% bootstrap interval.'
  )
