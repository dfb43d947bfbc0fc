"""The sides of the search benchmark, and its vectors in two files."""

import argparse
import concurrent.futures
import gc
import os
import pathlib
from typing import Any

import harness
import numpy as np

# Rows that PyTorch scores at once; on a GPU, so that 7,000 queries take 3.5 GB.
_BLOCK = 2**17
# Rows that are drawn at once, each block from a seed of its own.
_DRAWN, _RANK = 20_000, 96
# Bytes that are read at once.
_READ = 2**26


def make(args: argparse.Namespace) -> 'Searcher':
  """The side that --side names."""
  peers = {'faiss': Faiss, 'torch': Torch, 'torch_resident': Torch}
  return peers.get(args.side, Ours)(args)


def write(args: argparse.Namespace) -> None:
  """Draws the vectors that the folder lacks."""
  pathlib.Path(args.folder).mkdir(parents=True, exist_ok=True)
  _write(_queries_file(args), args.queries, args.dim, 'float32', 2)
  _write(_passages_file(args), args.passages, args.dim, args.dtype, 1)


def _queries_file(args: argparse.Namespace) -> pathlib.Path:
  return pathlib.Path(args.folder) / f'queries-{args.queries}x{args.dim}.npy'


def _passages_file(args: argparse.Namespace) -> pathlib.Path:
  name = f'passages-{args.passages}x{args.dim}-{args.dtype}.npy'
  return pathlib.Path(args.folder) / name


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


def _in_memory(file: pathlib.Path) -> np.ndarray:
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


def _drop_from_cache(file: pathlib.Path) -> None:
  """Drops a file from the page cache; no process may have it mapped."""
  descriptor = os.open(file, os.O_RDONLY)
  os.fsync(descriptor)
  os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
  os.close(descriptor)


class Searcher:
  """A side: it opens the passages, searches, and keeps the last hits."""

  def __init__(self, args: argparse.Namespace):
    self._args = args
    self._memory = harness.PeakMemory()
    self.queries = np.load(_queries_file(args))
    self._found: Any = None

  def prepare(self) -> float:
    """Opens the passages and runs once; the seconds of that."""
    self.open()
    return harness.seconds(self._run)

  def time(self) -> harness.Figures:
    """One run: seconds, core seconds, and bytes read from the disk."""
    before = harness.field('/proc/self/io', 'read_bytes')
    figures = harness.turn(self._run)
    read = harness.field('/proc/self/io', 'read_bytes') - before
    return figures | {'read_bytes': read}

  def hits(self, file: str) -> None:
    """Saves the last run's scores and rows."""
    scores, rows = self._found
    np.savez(file, scores=scores, rows=rows)

  def peaks(self) -> dict[str, int]:
    return self._memory.peaks()

  def _run(self) -> None:
    self._found = self.search()

  def open(self) -> None:
    raise NotImplementedError

  def search(self) -> Any:
    raise NotImplementedError


class Ids:
  """The rows' numbers as strings, made when they are asked for."""

  def __init__(self, count: int):
    self._count = count

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, row: int) -> str:
    return str(row)


class Ours(Searcher):
  """Exact search over passages in memory, or streamed from their file."""

  def __init__(self, args: argparse.Namespace):
    super().__init__(args)
    os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
    import jax

    from dualenc_jax.cli import process

    # Not by `ours`: what it brings with it counts as memory.
    if jax.default_backend() == 'cpu':
      process.keep_freed_memory()
    self._device = jax.devices()[0]
    self._streamed = args.side != 'memory'
    self.searcher: Any = None

  def describe(self) -> dict[str, Any]:
    return {'device': self._device.device_kind}

  def ceiling(self) -> dict[str, float]:
    import ours

    return ours.ceiling()

  def prepare(self) -> float:
    seconds = super().prepare()
    self._close()
    return seconds

  def time(self) -> harness.Figures:
    if self._args.side == 'streamed_cold':
      _drop_from_cache(_passages_file(self._args))
    if self._streamed:
      self.open()
    figures = super().time()
    self._close()
    return figures

  def peaks(self) -> dict[str, int]:
    stats = self._device.memory_stats() or {}
    device = stats.get('peak_bytes_in_use', 0)
    return super().peaks() | {'device_peak_bytes': device}

  def _close(self) -> None:
    """Lets go of a mapped file, which cannot leave the page cache else."""
    if self._streamed:
      self.searcher = None
      gc.collect()

  def open(self) -> None:
    from dualenc_jax.retrieval.index.index import RowStore
    from dualenc_jax.retrieval.search.exact_search import ExactSearch

    file = _passages_file(self._args)
    if self._streamed:
      passages = RowStore([np.load(file, mmap_mode='r')])
    else:
      passages = _in_memory(file)
    self.searcher = ExactSearch(passages, Ids(len(passages)))

  def search(self) -> Any:
    found = self.searcher.top_k(self.queries, self._args.k)
    return found.scores, found.indices


class Faiss(Searcher):
  """IndexFlatIP, on the CPU."""

  def describe(self) -> dict[str, Any]:
    import faiss

    return {'faiss': faiss.__version__, 'threads': faiss.omp_get_max_threads()}

  def open(self) -> None:
    import faiss

    self._index = faiss.IndexFlatIP(self._args.dim)
    # At once: the index would grow by halves. It copies them.
    passages = np.load(_passages_file(self._args), mmap_mode='r')
    self._index.add(passages.astype(np.float32, copy=False))

  def search(self) -> Any:
    return self._index.search(self.queries, self._args.k)


class Torch(Searcher):
  """Product and topk, block by block.

  The passages are in the machine's memory, or `torch_resident` on the GPU.
  """

  def __init__(self, args: argparse.Namespace):
    super().__init__(args)
    import torch

    self._torch = torch
    self._device = 'cuda' if torch.cuda.is_available() else 'cpu'

  def describe(self) -> dict[str, Any]:
    return {'torch': self._torch.__version__, 'device': self._device}

  def ceiling(self) -> dict[str, float]:
    import peer

    return peer.ceiling()

  def peaks(self) -> dict[str, int]:
    device = 0
    if self._device == 'cuda':
      device = self._torch.cuda.max_memory_allocated()
    return super().peaks() | {'device_peak_bytes': device}

  def open(self) -> None:
    rows = _in_memory(_passages_file(self._args))
    self._passages = self._torch.from_numpy(rows)
    if self._args.side == 'torch_resident':
      self._passages = self._passages.to(self._device)

  def search(self) -> Any:
    torch = self._torch
    queries = torch.from_numpy(self.queries).to(self._device)
    size, best = len(self._passages), None
    for start in range(0, size, _BLOCK):
      block = self._passages[start : start + _BLOCK].to(self._device).float()
      scores, rows = (queries @ block.T).topk(min(self._args.k, len(block)), 1)
      rows += start
      if best is not None:
        scores = torch.cat([best[0], scores], 1)
        rows = torch.cat([best[1], rows], 1)
      scores, which = scores.topk(min(self._args.k, scores.shape[1]), 1)
      best = scores, rows.gather(1, which)
    assert best is not None
    return [x.cpu().numpy() for x in best]
