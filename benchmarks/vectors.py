"""Vectors of the search benchmark, drawn as embeddings are, in two files.

N passages and Q queries of D dims: low rank and noise, rows of norm one.
"""

import argparse
import concurrent.futures
import os
import pathlib

import numpy as np

# Rows that are drawn at once, each block from a seed of its own.
_DRAWN, _RANK = 20_000, 96
# Bytes that are read at once.
_READ = 2**26


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


def queries_file(args: argparse.Namespace) -> pathlib.Path:
  return pathlib.Path(args.folder) / f'queries-{args.queries}x{args.dim}.npy'


def passages_file(args: argparse.Namespace) -> pathlib.Path:
  name = f'passages-{args.passages}x{args.dim}-{args.dtype}.npy'
  return pathlib.Path(args.folder) / name


def write(args: argparse.Namespace) -> None:
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
