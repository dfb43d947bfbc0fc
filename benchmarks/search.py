"""Times exact search beside faiss and PyTorch; see benchmarks/README.md.

Ours with the passages in memory, and streamed from their file. N passages and Q
queries of D dims are drawn as embeddings are, low rank and noise, rows of norm
one; all sides read them from the same two files.
"""

import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import harness
import numpy as np
import vectors

PEERS = ('faiss', 'torch')
_HEADER = (
    'side | s | core s | GFLOP/s | times the product | the same by cores'
    ' | over faiss | the same by cores | anonymous peak less vectors | all peak'
    ' | device peak | read | cores busy elsewhere | same sets'
)
# Two float32 sums of a score are no further apart, times the greatest score.
_ROUNDING = 1e-5


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  add(
      '--sides',
      nargs='*',
      choices=('streamed', *PEERS),
      default=('streamed', *PEERS),
      help='beside ours in memory',
  )
  add(
      '--drop_cache',
      action='store_true',
      help='also stream with the file dropped from the page cache each time',
  )
  add('--side', help=argparse.SUPPRESS)
  vectors.add_flags(parser)
  harness.add_flags(parser, malloc=False)
  args = parser.parse_args()
  if args.side is not None:
    import search_sides

    harness.serve(search_sides.make(args))
    return
  with tempfile.TemporaryDirectory() as folder:
    args.folder = args.folder or folder
    vectors.write(args)
    result = compare(args)
  print(json.dumps({'flags': vars(args), **result}))


def compare(args: argparse.Namespace) -> dict[str, Any]:
  """Measures all sides and prints a table.

  Returns:
    ceiling: best rates of a large product, of whichever library is faster.
    reading_seconds: to copy all passages to the GPU; None on a CPU.
    described: descriptions by side.
    results: figures by side.
  """
  commands = _commands(args)
  measuring = [name for name in ('memory', 'torch') if name in commands]
  running, described, ceiling = harness.start(commands, measuring)
  reading = None
  if described['memory']['platform'] != 'cpu':
    reading = running['memory'].ask('reading_seconds')
  first = {name: side.ask('prepare') for name, side in running.items()}
  turns: dict[str, list[harness.Figures]] = {name: [] for name in running}
  for _ in range(args.rounds):
    for name, side in running.items():
      turns[name].append(side.ask('time', name == 'streamed_cold'))
  results = {
      name: {
          'first_seconds': first[name],
          'turns': turns[name],
          **harness.medians(turns[name]),
          **side.ask('peaks'),
      }
      for name, side in running.items()
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
  """Command of each side; peers that are not installed are left out."""
  peer = args.peer_python or sys.executable
  names = ['memory', *args.sides]
  names += ['streamed_cold'] if args.drop_cache else []
  shared = harness.flags(
      args, ('passages', 'queries', 'dim', 'k', 'dtype', 'folder')
  )
  return {
      name: [
          peer if name in PEERS else sys.executable,
          __file__,
          *shared,
          f'--side={name}',
      ]
      for name in names
      if name not in PEERS or _has(peer, name)
  }


def _has(python: str, module: str) -> bool:
  if python == sys.executable:
    return importlib.util.find_spec(module) is not None
  code = f'import importlib.util as u; assert u.find_spec("{module}")'
  command = [python, '-c', code]
  return not subprocess.run(command, stderr=subprocess.DEVNULL).returncode


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
    results: dict[str, harness.Figures],
    ceiling: dict[str, float],
) -> None:
  """Adds the figures beside the ceiling and faiss."""
  flops = 2.0 * args.queries * args.passages * args.dim
  rate, core_rate = (
      ceiling[key] for key in ('flops_per_second', 'flops_per_core_second')
  )
  faiss = results.get('faiss')
  for figures in results.values():
    figures |= {
        'flops_per_second': flops / figures['seconds'],
        'times_the_product': figures['seconds'] * rate / flops,
        'times_the_product_by_cores': (
            figures['core_seconds'] * core_rate / flops
        ),
    }
    if faiss:
      for key in ('seconds', 'core_seconds'):
        figures[f'{key}_over_faiss'] = harness.ratio(
            faiss['turns'], figures['turns'], key
        )


def _show(args: argparse.Namespace, result: dict[str, Any]) -> None:
  """Prints the report for people."""
  rates = {k: f'{rate / 1e9:.0f}' for k, rate in result['ceiling'].items()}
  size = args.passages * args.dim * np.dtype(args.dtype).itemsize
  flops = 2.0 * args.queries * args.passages * args.dim
  print(
      f'{json.dumps(result["described"])}\n'
      f'top-{args.k} of {args.queries} queries over {args.passages} x'
      f' {args.dim} {args.dtype}, {size / 2**20:.0f} MiB\n'
      f'ceiling {rates["flops_per_second"]} GFLOP/s,'
      f' {rates["flops_per_core_second"]} a core; the product takes'
      f' {flops / result["ceiling"]["flops_per_second"]:.2f} s'
  )
  if result['reading_seconds']:
    print(f'copying the passages takes {result["reading_seconds"]:.2f} s')
  rows = [
      _row(name, figures, 0 if name.startswith('streamed') else size)
      for name, figures in result['results'].items()
  ]
  print('\n' + harness.table(_HEADER, rows))


def _row(name: str, f: harness.Figures, held: int) -> str:
  """A line of the table; `held` bytes of vectors are the side's own."""
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
      *map(harness.mib, memory),
      f'{f["cores_busy_elsewhere"]:.1f}',
      f'{f["same_sets"]:.4f}',
  ])


if __name__ == '__main__':
  main()
