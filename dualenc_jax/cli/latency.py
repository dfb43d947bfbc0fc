"""Measures what a query costs at serving time, for models side by side.

  taskset -c 0 dualenc latency teacher light2 light1
  dualenc latency teacher light2 --queries=queries.txt

Queries come one at a time (batch 1), with and without the tokenizer, to the
models in turns. By default they have exactly 8, 16, 32 and 64 tokens; --queries
takes your own. "Times as fast" is the first model's median over a model's.
With --output_dir it writes latency.json, .md and .tex.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import os
import pathlib
import shlex
from typing import Any

import jax

from dualenc_jax.cli import flags, queries as queries_lib, runtime
from dualenc_jax.data.text.tokenizer import queries_of_length
from dualenc_jax.retrieval.encoding import latency
from dualenc_jax.retrieval.encoding.latency import Latency, WARM_UP
from dualenc_jax.retrieval.encoding.towers import LoadedModel
from dualenc_jax.retriever import Retriever
from dualenc_jax.utils import files, machine, table as table_lib
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.table import Cell, MISSING, Row, Table

_ANOTHER = 'another --output_dir'
_LENGTHS = (8, 16, 32, 64)


def main(argv: Sequence[str] | None = None) -> None:
  args = make_parser().parse_args(argv)
  names = args.names or [path.absolute().name for path in args.models]
  if len(names) != len(args.models) or len({*names}) < len(names):
    raise UserError(
        f"The names of {len(args.models)} models are {','.join(names)};"
        ' expected different ones. Give --names=a,b.'
    )
  if args.queries and args.lengths:
    raise UserError('Give either --queries or --lengths.')
  queries = _read(args.queries, args.count) if args.queries else None
  if args.output_dir:
    files.make_folder(args.output_dir, _ANOTHER)
  runtime.start()
  models = {
      name: _load(path, args.prompt)
      for name, path in zip(names, args.models)
  }
  measured = [
      latency.measure(models, texts, args.count)
      for texts in _texts(models, queries, args.lengths, args.count)
  ]
  settings = {
      'device': jax.devices()[0].device_kind,
      'devices': jax.device_count(),
      'cpu': machine.cpu(),
      'threads': _cores(),
      'batch': 1,
      'count': args.count,
      'queries': args.queries and str(args.queries),
      'models': dict(zip(names, map(str, args.models))),
      'prompt': args.prompt,
      'command': shlex.join(['dualenc', 'latency', *(argv or ())]),
      'versions': machine.versions(),
  }
  table = _make_table(measured, settings)
  print(table_lib.text(table))
  if args.output_dir:
    value = {
        'settings': settings,
        'measured': [dataclasses.asdict(m) for m in sum(measured, [])],
    }
    files.write_json(args.output_dir / 'latency.json', value)
    table_lib.write(args.output_dir, 'latency', [table])
    print(f'Written to {args.output_dir}.')


def make_parser() -> flags.Parser:
  parser = flags.Parser('latency', __doc__)
  add = parser.add_argument
  add('models', nargs='+', type=flags.path, metavar='MODEL',
      help='a model_dir, a saved retriever, or a checkpoint that `dualenc'
      ' convert` reads; the first is the baseline')
  add('--names', type=flags.listed, metavar='NAME[,NAME]',
      help='names of the models (default their folders)')
  add('--queries', type=flags.path, metavar='FILE',
      help='queries to measure with: one per line, or JSONL or TSV with ids')
  add('--lengths', type=_lengths, metavar='N[,N]',
      help='tokens of the made queries, prefix and EOS included (default'
      ' 8,16,32,64, as far as all models take them)')
  flags.add_prompts(parser, of_passages=False)
  add('--count', type=flags.whole(), default=200,
      help='timed calls per model and length (default %(default)s)')
  add('--output_dir', type=flags.path, metavar='DIR',
      help='folder of the results (default none: print only)')
  return parser


def _load(path: pathlib.Path, prompt: str | None) -> LoadedModel:
  """Loads a model, with a prompt of that name before queries."""
  towers = Retriever.from_dir(path).towers
  tokenizer = towers.tokenizer.prompted(prompt, model=path)
  return dataclasses.replace(towers, tokenizer=tokenizer)


def _cores() -> int | None:
  """The number of cores that this process may use, and so XLA's threads."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count()


def _lengths(text: str) -> list[int]:
  """The type of --lengths: different ones, of a token and EOS at least."""
  return list(dict.fromkeys(map(flags.whole(2), flags.listed(text))))


def _read(path: pathlib.Path, count: int) -> list[str]:
  """At most `count` queries of a file, evenly spread over it."""
  found = [text for _, text in queries_lib.read(path)]
  kept = min(count, len(found))
  return [found[i * len(found) // kept] for i in range(kept)]


def _texts(
    models: Mapping[str, LoadedModel], queries: list[str] | None,
    lengths: Sequence[int] | None, count: int,
) -> Iterator[dict[str, list[str]]]:
  """The queries of each model: of a file, or of each length."""
  if queries is not None:
    yield dict.fromkeys(models, queries)
    return
  limits = {name: m.tokenizer.query_length for name, m in models.items()}
  least = min(limits, key=lambda name: limits[name])
  most = limits[least]
  if lengths and max(lengths) > most:
    raise UserError(
        f'--lengths has {max(lengths)}; {least} cuts queries to {most} tokens.'
        f' Give lengths up to {most}.'
    )
  usual = [*(n for n in _LENGTHS if n < most), min(most, _LENGTHS[-1])]
  for length in lengths or dict.fromkeys(usual):
    yield {
        name: queries_of_length(model.tokenizer, length, count)
        for name, model in models.items()
    }


def _make_table(
    measured: Sequence[Sequence[Latency]], settings: Mapping[str, Any]
) -> Table:
  """A row for each length or set of queries, and model.

  `measured` are models by set, in one order, the baseline first; `settings` as
  in latency.json.
  """
  kinds = ('tower', 'with tokenizer')
  columns = [('', name) for name in ('layers', 'parameters', 'MB', 'GFLOP')]
  columns += [(kind, n) for kind in kinds for n in ('p50', 'p95', 'mean')]
  columns += [('times as fast:', kind) for kind in kinds]
  rows: list[Row] = []
  for group in measured:
    for number, one in enumerate(group):
      tokens = f'{one.tokens_mean:.3g}'
      if one.tokens_p95 != one.tokens_mean:
        tokens += f', p95 {one.tokens_p95:.3g}'
      new = bool(rows) and not number and len(group) > 1
      cells = tuple(_cells(one, number == 0))
      rows.append(Row((tokens, one.model), cells, ruled=new))
  models, threads, devices = (
      measured[0], settings['threads'], settings['devices']
  )
  dtypes = [f'{one.dtype or "unknown"} ({one.model})' for one in models]
  return Table(
      name='latency',
      title='Latency of a query at batch 1 (ms)',
      heads=('Tokens', 'Model'),
      columns=tuple(columns),
      rows=tuple(rows),
      notes=(
          f'{settings["cpu"]}, CPU threads: {threads}; {settings["device"]},'
          f' devices: {devices}; dtype: {", ".join(dtypes)}; jax'
          f' {settings["versions"]["jax"]}.',
          f'{settings["count"]:,} calls a row, of one query each, models in'
          f' turns, after {WARM_UP} or more to warm up; a call ends with the'
          ' embedding on the host.',
          'Tokens include prefix and EOS; MB is float32; times as fast as'
          f' {models[0].model}: ratio of the p50.',
      ),
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
    text = '1' if is_first else f'{times.speedup:.2f}'
    yield Cell(text, exact=repr(times.speedup))
