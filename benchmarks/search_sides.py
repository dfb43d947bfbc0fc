"""The sides of the search benchmark: ours, faiss and PyTorch."""

import argparse
import gc
import os
from typing import Any

import harness
import numpy as np
from vectors import forget, in_memory, passages_file, queries_file

# Rows that PyTorch scores at once; on a GPU, so that 7,000 queries take 3.5 GB.
_BLOCK = 2**17


def make(args: argparse.Namespace) -> 'Searcher':
  """The side that --side names."""
  return {'faiss': Faiss, 'torch': Torch}.get(args.side, Ours)(args)


class Searcher:
  """A side: it opens the passages, searches, and keeps the last hits."""

  def __init__(self, args: argparse.Namespace):
    self._args = args
    self._memory = harness.PeakMemory()
    self._queries = np.load(queries_file(args))
    self._found: Any = None

  def prepare(self) -> float:
    """Opens the passages and runs once; the seconds of that."""
    self._open()
    return harness.seconds(self._run)

  def time(self, cold: bool) -> harness.Figures:
    """One run: seconds, core seconds, and bytes read from the disk.

    If `cold`, nothing of the passages' file is in memory before.
    """
    del cold  # A peer has all in memory.
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
    self._found = self._search()

  def _open(self) -> None:
    raise NotImplementedError

  def _search(self) -> Any:
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
    # Sides share a GPU.
    os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
    import jax

    from dualenc_jax.commands import runtime

    if jax.default_backend() == 'cpu':
      runtime.keep_freed_memory()  # As every command does.
    super().__init__(args)
    self._jax, self._device = jax, jax.devices()[0]
    self._streamed = args.side != 'memory'
    self._searcher: Any = None

  def describe(self) -> dict[str, Any]:
    return {
        'device': self._device.device_kind,
        'platform': self._device.platform,
        'jax': self._jax.__version__,
    }

  def ceiling(self) -> dict[str, float]:
    """The best rate of a large float32 product."""
    import train_step  # What it brings with it counts as memory.

    square = train_step.square_product('float32', precision='highest')
    return harness.best_rates(*square)

  def reading_seconds(self) -> float:
    """The time to copy all passages to one device, after a first copy."""
    from dualenc_jax.search.exact_search import BLOCK_ROWS

    passages = np.load(passages_file(self._args), mmap_mode='r')

    def read():
      for start in range(0, len(passages), BLOCK_ROWS):
        block = passages[start : start + BLOCK_ROWS]
        self._jax.block_until_ready(self._jax.device_put(block, self._device))

    read()
    return harness.seconds(read)

  def prepare(self) -> float:
    seconds = super().prepare()
    self._close()
    return seconds

  def time(self, cold: bool) -> harness.Figures:
    if cold:
      forget(passages_file(self._args))
    if self._streamed:
      self._open()
    figures = super().time(cold)
    self._close()
    return figures

  def peaks(self) -> dict[str, int]:
    stats = self._device.memory_stats() or {}
    device = stats.get('peak_bytes_in_use', 0)
    return super().peaks() | {'device_peak_bytes': device}

  def _close(self) -> None:
    """Lets go of a mapped file, which cannot leave the page cache else."""
    if self._streamed:
      self._searcher = None
      gc.collect()

  def _open(self) -> None:
    from dualenc_jax.index.index import RowStore
    from dualenc_jax.search.exact_search import ExactSearch

    file = passages_file(self._args)
    if self._streamed:
      passages = RowStore([np.load(file, mmap_mode='r')])
    else:
      passages = in_memory(file)
    self._searcher = ExactSearch(passages, Ids(len(passages)))

  def _search(self) -> Any:
    found = self._searcher.top_k(self._queries, self._args.k)
    return found.scores, found.indices


class Faiss(Searcher):
  """IndexFlatIP, on the CPU."""

  def describe(self) -> dict[str, Any]:
    import faiss

    return {'faiss': faiss.__version__, 'threads': faiss.omp_get_max_threads()}

  def _open(self) -> None:
    import faiss

    self._index = faiss.IndexFlatIP(self._args.dim)
    # At once: the index would grow by halves. It copies them.
    passages = np.load(passages_file(self._args), mmap_mode='r')
    self._index.add(passages.astype(np.float32, copy=False))

  def _search(self) -> Any:
    return self._index.search(self._queries, self._args.k)


class Torch(Searcher):
  """Product and topk, block by block."""

  def __init__(self, args: argparse.Namespace):
    super().__init__(args)
    import torch

    self._torch = torch
    self._device = 'cuda' if torch.cuda.is_available() else 'cpu'

  def describe(self) -> dict[str, Any]:
    return {'torch': self._torch.__version__, 'device': self._device}

  def ceiling(self) -> dict[str, float]:
    """The best rate of a large float32 product."""
    side = 2048 if self._device == 'cpu' else 8192
    a = self._torch.randn(side, side, device=self._device)
    # Reading a number waits for the product.
    return harness.best_rates(2.0 * side**3, lambda: (a @ a)[0, 0].item())

  def peaks(self) -> dict[str, int]:
    device = 0
    if self._device == 'cuda':
      device = self._torch.cuda.max_memory_allocated()
    return super().peaks() | {'device_peak_bytes': device}

  def _open(self) -> None:
    rows = in_memory(passages_file(self._args))
    self._passages = self._torch.from_numpy(rows)

  def _search(self) -> Any:
    torch = self._torch
    queries = torch.from_numpy(self._queries).to(self._device)
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
