"""What a query costs several models, as a table."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dualenc_jax.figures.table import Cell, MISSING, Row, Table
from dualenc_jax.inference.latency import Latency, WARM_UP

_KINDS = ('tower', 'with tokenizer')


def table(
    measured: Sequence[Sequence[Latency]], settings: Mapping[str, Any]
) -> Table:
  """A row for each length or set of queries, and model.

  Args:
    measured: models by set, in the same order in each, the baseline first.
    settings: what they were measured with and on, as in latency.json.
  """
  first = measured[0][0].model
  columns = [('', name) for name in ('layers', 'parameters', 'MB', 'GFLOP')]
  columns += [(k, n) for k in _KINDS for n in ('p50', 'p95', 'mean')]
  columns += [('times as fast:', kind) for kind in _KINDS]
  rows = []
  for group in measured:
    for one in group:
      tokens = f'{one.tokens_mean:.3g}'
      if one.tokens_p95 != one.tokens_mean:
        tokens += f', p95 {one.tokens_p95:.3g}'
      new = bool(rows) and one is group[0] and len(group) > 1
      cells = tuple(_cells(one, one.model == first))
      rows.append(Row((tokens, one.model), cells, ruled=new))
  return Table(
      name='latency',
      title='Latency of a query at batch 1 (ms)',
      heads=('Tokens', 'Model'),
      columns=tuple(columns),
      rows=tuple(rows),
      notes=tuple(_notes(measured[0], settings)),
  )


def _cells(one: Latency, is_first: bool) -> Iterator[Cell]:
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


def _notes(
    models: Sequence[Latency], settings: Mapping[str, Any]
) -> Iterator[str]:
  threads, devices = settings['threads'], settings['devices']
  dtypes = [one.dtype or 'unknown' for one in models]
  if len({*dtypes}) > 1:
    dtypes = [f'{d} ({one.model})' for d, one in zip(dtypes, models)]
  yield (
      f'{settings["cpu"]}, {threads} CPU thread{"s" * (threads > 1)};'
      f' {devices} device{"s" * (devices > 1)} {settings["device"]}; dtype'
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
