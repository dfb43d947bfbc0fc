"""Times exact search beside faiss and PyTorch; see benchmarks/README.md.

Ours with the passages in memory, and streamed from their file. N passages and Q
queries of D dims are drawn as embeddings are, low rank and noise, rows of norm
one; all sides read them from the same two files.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import harness
import numpy as np

PEERS = ('faiss', 'torch')
_HEADER = (
    'side | s | core s | GFLOP/s | times the product | the same by cores'
    ' | over faiss | the same by cores | anonymous peak less vectors | all peak'
    ' | device peak | read | cores busy elsewhere | same sets'
)
# Two float32 sums of a score are no further apart, times the greatest score.
_ROUNDING = 1e-5
# Rows that are drawn at once, each block from a seed of its own.
_DRAWN, _RANK = 20_000, 96
# Bytes that are read at once.
_READ = 2**26


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
  add_flags(parser)
  harness.add_flags(parser, malloc=False)
  args = parser.parse_args()
  if args.side is not None:
    import search_sides

    harness.serve(search_sides.make(args))
    return
  with tempfile.TemporaryDirectory() as folder:
    args.folder = args.folder or folder
    write_vectors(args)
    result = compare(args)
  print(json.dumps({'flags': vars(args), **result}))


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that describe the vectors."""
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


def queries_file(args: argparse.Namespace) -> pathlib.Path:
  return pathlib.Path(args.folder) / f'queries-{args.queries}x{args.dim}.npy'


def passages_file(args: argparse.Namespace) -> pathlib.Path:
  name = f'passages-{args.passages}x{args.dim}-{args.dtype}.npy'
  return pathlib.Path(args.folder) / name


def write_vectors(args: argparse.Namespace) -> None:
  """Draws the vectors that the folder lacks."""
  pathlib.Path(args.folder).mkdir(parents=True, exist_ok=True)
  _write(queries_file(args), args.queries, args.dim, 'float32', 2)
  _write(passages_file(args), args.passages, args.dim, args.dtype, 1)


def _write(
    file: pathlib.Path, rows: int, dim: int, dtype: str, seed: int
) -> None:
  if file.exists():
    return
  # Queries and passages have the same spectrum.
  spectrum = np.arange(1, _RANK + 1)[:, None] ** -0.5
  weights = np.random.default_rng(0).standard_normal((_RANK, dim)) * spectrum
  weights = (1.5 * weights).astype(np.float32)
  part = file.with_suffix('.part')
  out = np.lib.format.open_memmap(part, 'w+', dtype, (rows, dim))

  def draw(start: int) -> None:
    rng = np.random.default_rng([seed, start])
    count = min(_DRAWN, rows - start)
    x = rng.standard_normal((count, _RANK), np.float32) @ weights
    x += np.float32(0.3) * rng.standard_normal((count, dim), np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    out[start : start + count] = x

  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for _ in pool.map(draw, range(0, rows, _DRAWN)):
      pass
  out.flush()
  part.rename(file)


def in_memory(file: pathlib.Path) -> np.ndarray:
  """The array of a file; rows begin at multiples of 64 bytes, for XLA."""
  mapped = np.load(file, mmap_mode='r')
  raw = np.empty(mapped.nbytes + 64, np.uint8)
  begin = -raw.ctypes.data % 64
  raw = raw[begin : begin + mapped.nbytes]
  with open(file, 'rb') as f:
    f.seek(mapped.offset)
    for start in range(0, len(raw), _READ):
      f.readinto(raw[start : start + _READ])
  return raw.view(mapped.dtype).reshape(mapped.shape)


def forget(file: pathlib.Path) -> None:
  """Drops a file from the page cache; no process may have it mapped."""
  descriptor = os.open(file, os.O_RDONLY)
  os.fsync(descriptor)
  os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
  os.close(descriptor)


if __name__ == '__main__':
  main()
