"""Times exact search beside faiss and PyTorch; see benchmarks/README.md.

Ours with the passages in memory, and streamed from their file. Every side is a
process of its own, and they take turns in every round.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
import search_work
import sides

HERE = pathlib.Path(__file__).parent
_HEADER = (
    'side | s | core s | GFLOP/s | times the product | the same by cores'
    ' | over faiss | the same by cores | anonymous peak less vectors | all peak'
    ' | device peak | read | cores busy elsewhere | same sets'
)
SIDES = ('streamed', 'faiss', 'torch')
# Two float32 sums of a score are no further apart, times the greatest score.
_ROUNDING = 1e-5


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
      '--sides',
      nargs='*',
      choices=SIDES,
      default=SIDES,
      help='beside ours in memory',
  )
  parser.add_argument(
      '--drop_cache',
      action='store_true',
      help='also stream with the file dropped from the page cache each time',
  )
  parser.add_argument(
      '--peer_python',
      metavar='FILE',
      default=sys.executable,
      help='Python that has faiss or PyTorch; this one by default',
  )
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--json', action='store_true', help='print JSON only')
  search_work.add_flags(parser)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    args.folder = args.folder or folder
    search_work.write_vectors(args)
    result = compare(args)
  print(json.dumps({'flags': vars(args), **result}))


def compare(args: argparse.Namespace) -> dict[str, Any]:
  """Measures all sides and prints a table.

  Returns:
    ceiling: best rates of a large product, of whichever library is faster.
    reading_seconds: to copy all passages to the GPU; None on a CPU.
    described: what runs there, by side.
    results: figures by side.
  """
  running, described, ceiling = sides.start(_commands(args))
  reading = None
  if described['memory']['platform'] != 'cpu':
    reading = running['memory'].ask('reading_seconds')
  first = {name: side.ask('prepare') for name, side in running.items()}
  turns = {name: [] for name in running}
  for _ in range(args.rounds):
    for name, side in running.items():
      turns[name].append(side.ask('time', name == 'streamed_cold'))
  results = {}
  for name, side in running.items():
    results[name] = {
        'first_seconds': first[name],
        'turns': turns[name],
        **sides.medians(turns[name]),
        **side.ask('peaks'),
    }
  _add_agreement(args, running, results)
  for side in running.values():
    side.close()
  _add_shares(args, results, ceiling)
  result = {
      'ceiling': ceiling,
      'reading_seconds': reading,
      'described': described,
      'results': results,
  }
  if not args.json:
    _show(args, result)
  return result


def _commands(args: argparse.Namespace) -> dict[str, list[str]]:
  """What runs each side; peers that are not there are left out."""
  names = ['memory', *args.sides]
  names += ['streamed_cold'] if args.drop_cache else []
  shared = sides.flags(
      args, ('passages', 'queries', 'dim', 'k', 'dtype', 'folder')
  )
  ours = [sys.executable, str(HERE / 'search_ours.py'), *shared]
  peer = [args.peer_python, str(HERE / 'search_peer.py'), *shared]
  commands = {
      'memory': ours,
      'streamed': [*ours, '--streamed'],
      'streamed_cold': [*ours, '--streamed'],
      'faiss': [*peer, '--kind=faiss'],
      'torch': [*peer, '--kind=torch'],
  }
  return {
      name: command
      for name, command in commands.items()
      if name in names
      and (name not in ('faiss', 'torch') or _has(args.peer_python, name))
  }


def _has(python: str, module: str) -> bool:
  code = f'import importlib.util as u; assert u.find_spec("{module}")'
  command = [python, '-c', code]
  return not subprocess.run(command, stderr=subprocess.DEVNULL).returncode


def _add_agreement(
    args: argparse.Namespace,
    running: dict[str, sides.Side],
    results: dict[str, dict[str, Any]],
) -> None:
  """Adds `same_sets`, the share of queries with our hits in memory.

  Raises:
    ValueError: hits differ that are not about as good as the last.
  """
  hits = {}
  for name, side in running.items():
    file = str(pathlib.Path(args.folder) / f'{name}.npz')
    side.ask('hits', file)
    with np.load(file) as found:
      hits[name] = found['scores'], found['rows']
    pathlib.Path(file).unlink()
  (scores, rows), *_ = hits.values()
  limits = scores[:, -1:] + _ROUNDING * np.abs(scores).max()
  for name, (_, theirs) in hits.items():
    missing = np.array([~np.isin(a, b) for a, b in zip(rows, theirs)])
    if (missing & (scores > limits)).any():
      raise ValueError(f'{name} lacks hits that are better than the last')
    results[name]['same_sets'] = float(1 - missing.any(axis=1).mean())


def _add_shares(
    args: argparse.Namespace,
    results: dict[str, dict[str, Any]],
    ceiling: dict[str, float],
) -> None:
  """Adds what the figures mean beside the ceiling, faiss and the vectors."""
  flops = 2.0 * args.queries * args.passages * args.dim
  faiss = results.get('faiss')
  for figures in results.values():
    seconds, cores = figures['seconds'], figures['core_seconds']
    figures |= {
        'flops_per_second': flops / seconds,
        'times_the_product': seconds * ceiling['flops_per_second'] / flops,
        'times_the_product_by_cores': cores
        * ceiling['flops_per_core_second']
        / flops,
    }
    if faiss:
      # Of the same round, where the machine was about as busy.
      pairs = list(zip(figures['turns'], faiss['turns']))
      for key in ('seconds', 'core_seconds'):
        figures[f'{key}_over_faiss'] = statistics.median(
            turn[key] / other[key] for turn, other in pairs
        )


def _show(args: argparse.Namespace, result: dict[str, Any]) -> None:
  """Prints the report for people."""
  rates = {k: f'{rate / 1e9:.0f}' for k, rate in result['ceiling'].items()}
  vectors = args.passages * args.dim * np.dtype(args.dtype).itemsize
  flops = 2.0 * args.queries * args.passages * args.dim
  print(
      f'{json.dumps(result["described"])}\n'
      f'top-{args.k} of {args.queries} queries over {args.passages} x'
      f' {args.dim} {args.dtype}, {vectors / 2**20:.0f} MiB\n'
      f'ceiling {rates["flops_per_second"]} GFLOP/s,'
      f' {rates["flops_per_core_second"]} a core; the product takes'
      f' {flops / result["ceiling"]["flops_per_second"]:.2f} s'
  )
  if result['reading_seconds']:
    print(f'copying the passages takes {result["reading_seconds"]:.2f} s')
  rows = [
      _row(name, figures, 0 if name.startswith('streamed') else vectors)
      for name, figures in result['results'].items()
  ]
  print('\n' + sides.table(_HEADER, rows))


def _row(name: str, figures: dict[str, Any], held: int) -> str:
  """A line of the table; `held` bytes of vectors are the side's own."""
  f = figures
  over = [
      f'{f[key]:.2f}' if key in f else ''
      for key in ('seconds_over_faiss', 'core_seconds_over_faiss')
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
      f'{f["flops_per_second"] / 1e9:.0f}',
      f'{f["times_the_product"]:.2f}',
      f'{f["times_the_product_by_cores"]:.2f}',
      *over,
      *map(sides.mib, memory),
      f'{f["cores_busy_elsewhere"]:.1f}',
      f'{f["same_sets"]:.4f}',
  ])


if __name__ == '__main__':
  main()
