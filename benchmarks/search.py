"""Times exact search beside faiss and PyTorch; see benchmarks/README.md.

Ours with the passages in memory, and streamed from their file. N passages and Q
queries of D dims are drawn as embeddings are, low rank and noise, rows of norm
one; all sides read them from the same two files.
"""

import argparse
import importlib.util
import json
import pathlib
import tempfile
from typing import Any

import harness
import numpy as np

# Modules of the sides that are peers.
PEERS = {'faiss': 'faiss', 'torch': 'torch', 'torch_resident': 'torch'}
_HEADER = (
    'side | s | core s | GFLOP/s | times the product | the same by cores'
    ' | over faiss | the same by cores | anonymous peak less vectors | all peak'
    ' | device peak | read | cores busy elsewhere | same sets'
)
# Two float32 sums of a score are no further apart, times the greatest score.
_ROUNDING = 1e-5


def main() -> None:
  parser = harness.parser(__doc__, malloc=False)
  add = parser.add_argument
  add('--passages', type=int, default=1_000_000, help='N')
  add('--queries', type=int, default=1000, help='Q')
  add('--dim', type=int, default=768, help='D')
  add('--k', type=int, default=100, help='hits a query')
  add(
      '--dtype',
      choices=('float32', 'float16'),
      default='float32',
      help='of the passages; all sides compute in float32',
  )
  add('--folder', help='keeps the vectors; a temporary one by default')
  add(
      '--sides',
      nargs='*',
      choices=('streamed', *PEERS),
      default=('streamed', 'faiss', 'torch'),
      help='beside ours in memory; torch_resident: passages on the GPU before',
  )
  add(
      '--drop_cache',
      action='store_true',
      help='also stream with the file dropped from the page cache each time',
  )
  args = parser.parse_args()
  import search_sides

  if args.side is not None:
    harness.serve(search_sides.make(args))
    return
  with tempfile.TemporaryDirectory() as folder:
    args.folder = args.folder or folder
    search_sides.write(args)
    print(json.dumps({'flags': vars(args), **compare(args)}))


def compare(args: argparse.Namespace) -> dict[str, Any]:
  """Measures all sides and prints a table; figures by side."""
  commands = _commands(args)
  rates = harness.ceiling(
      commands[name] for name in ('memory', 'torch') if name in commands
  )
  running = {name: harness.Side(each) for name, each in commands.items()}
  described = {name: side.ask('describe') for name, side in running.items()}
  first = {name: side.ask('prepare') for name, side in running.items()}
  turns = harness.in_turns(running, args.rounds, 'time')
  results = {
      name: harness.medians(turns[name]) | side.ask('peaks')
      for name, side in running.items()
  }
  _add_agreement(args, running, results)
  for side in running.values():
    side.close()
  flops = 2.0 * args.queries * args.passages * args.dim
  for name, figures in results.items():
    figures['gigaflops'] = flops / figures['seconds'] / 1e9
    for key, rate in (
        ('seconds', 'flops_per_second'),
        ('core_seconds', 'flops_per_core_second'),
    ):
      figures[f'{key}_over_product'] = figures[key] * rates[rate] / flops
      if 'faiss' in turns:
        figures[f'{key}_over_faiss'] = harness.ratio(
            turns['faiss'], turns[name], key
        )
  result = {
      'ceiling': rates,
      'described': described,
      'first_seconds': first,
      'turns': turns,
      'results': results,
  }
  if not args.json:
    size = args.passages * args.dim * np.dtype(args.dtype).itemsize
    print(json.dumps({'ceiling': rates, **described}))
    print(harness.table(_HEADER, [
        _row(name, figures, 0 if name.startswith('streamed') else size)
        for name, figures in results.items()
    ]))
  return result


def _commands(args: argparse.Namespace) -> dict[str, list[str]]:
  """Command of each side; of this Python's peers those that are installed."""
  names = ['memory', *args.sides, *['streamed_cold'] * args.drop_cache]
  return {
      name: [
          *harness.command(name, args.peer_python if name in PEERS else None),
          f'--folder={args.folder}',
      ]
      for name in names
      if name not in PEERS
      or args.peer_python
      or importlib.util.find_spec(PEERS[name])
  }


def _add_agreement(
    args: argparse.Namespace,
    running: dict[str, harness.Side],
    results: dict[str, harness.Figures],
) -> None:
  """Adds `same_sets`, the share of queries with our hits in memory.

  Raises:
    ValueError: hits differ that are not about as good as the last.
  """
  hits = {}
  for name, side in running.items():
    file = pathlib.Path(args.folder) / f'{name}.npz'
    side.ask('hits', str(file))
    with np.load(file) as found:
      hits[name] = found['scores'], found['rows']
    file.unlink()
  (scores, rows), *_ = hits.values()
  limits = scores[:, -1:] + _ROUNDING * np.abs(scores).max()
  for name, (_, theirs) in hits.items():
    missing = np.array([~np.isin(a, b) for a, b in zip(rows, theirs)])
    if (missing & (scores > limits)).any():
      raise ValueError(f'{name} lacks hits that are better than the last')
    results[name]['same_sets'] = float(1 - missing.any(axis=1).mean())


def _row(name: str, f: harness.Figures, held: int) -> str:
  """A line of the table; `held` bytes of vectors are the side's own."""
  over = [
      f'{f[f"{key}_over_{what}"]:.2f}' if f'{key}_over_{what}' in f else ''
      for what in ('product', 'faiss')
      for key in ('seconds', 'core_seconds')
  ]
  memory = [
      f['peak_anonymous_bytes'] - held,
      f['peak_bytes'],
      f.get('device_peak_bytes'),
      f['read_bytes'],
  ]
  return ' | '.join([
      name,
      f'{f["seconds"]:.2f}',
      f'{f["core_seconds"]:.1f}',
      f'{f["gigaflops"]:.0f}',
      *over,
      *map(harness.mib, memory),
      f'{f["cores_busy_elsewhere"]:.1f}',
      f'{f["same_sets"]:.4f}',
  ])


if __name__ == '__main__':
  main()
