"""The work of the search benchmark, the same for all sides; NumPy only.

N passages and Q queries of D dims: low rank and noise, as embeddings are, rows
of norm one. They lie in two files that every side reads.
"""

import argparse
import concurrent.futures
import os
import pathlib
import threading
import time

import loss_work
import numpy as np

# Rows that are drawn at once, each block from a seed of its own.
_DRAWN = 20_000
_RANK = 96
# Bytes that are read at once.
_READ = 2**26


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that every side needs."""
  parser.add_argument('--passages', type=int, default=1_000_000, help='N')
  parser.add_argument('--queries', type=int, default=1000, help='Q')
  parser.add_argument('--dim', type=int, default=768, help='D')
  parser.add_argument('--k', type=int, default=100, help='hits a query')
  parser.add_argument(
      '--dtype',
      choices=('float32', 'float16'),
      default='float32',
      help='of the passages; all sides compute in float32',
  )
  parser.add_argument(
      '--folder', help='keeps the vectors; a temporary one by default'
  )


def queries_file(args: argparse.Namespace) -> pathlib.Path:
  return pathlib.Path(args.folder) / f'queries-{args.queries}x{args.dim}.npy'


def passages_file(args: argparse.Namespace) -> pathlib.Path:
  name = f'passages-{args.passages}x{args.dim}-{args.dtype}.npy'
  return pathlib.Path(args.folder) / name


def write_vectors(args: argparse.Namespace) -> None:
  """Draws the vectors that are not in the folder yet."""
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


def timed(run) -> dict[str, float]:
  """One run: seconds, core seconds, and bytes read from the disk."""
  before = _read_bytes()
  figures = loss_work.timed(run, 1)
  return figures | {'read_bytes': _read_bytes() - before}


def _read_bytes() -> int:
  """Bytes that this process has fetched from a disk; Linux only."""
  return _field('/proc/self/io', 'read_bytes')


class PeakMemory:
  """Watches this process from now on; Linux only."""

  def __init__(self):
    self._anonymous = 0
    threading.Thread(target=self._watch, daemon=True).start()

  def _watch(self) -> None:
    while True:
      now = 1024 * _field('/proc/self/status', 'RssAnon')
      self._anonymous = max(self._anonymous, now)
      time.sleep(0.02)

  def peaks(self) -> dict[str, int]:
    """Bytes of all resident memory, and of what is no mapped file.

    Not `ru_maxrss`, which begins with that of the process that started us.
    """
    return {
        'peak_bytes': 1024 * _field('/proc/self/status', 'VmHWM'),
        'peak_anonymous_bytes': self._anonymous,
    }


def _field(file: str, name: str) -> int:
  with open(file) as f:
    fields = dict(line.split(':', 1) for line in f)
  return int(fields[name].split()[0])
