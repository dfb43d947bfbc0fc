"""Our side of the search benchmark; search.py starts it and gives it orders."""

import argparse
import gc
import os
from typing import Any

import jax
import loss_work
import numpy as np
import search_work
import sides
import workload

from dualenc_jax.commands import runtime
from dualenc_jax.index.index import RowStore
from dualenc_jax.search.exact_search import BLOCK_ROWS, ExactSearch


class Ids:
  """The rows' numbers as strings, made when they are asked for."""

  def __init__(self, count: int):
    self._count = count

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, row: int) -> str:
    return str(row)


class Ours:
  """Exact search over passages in memory, or streamed from their file."""

  def __init__(self, args: argparse.Namespace):
    self._args = args
    self._memory = search_work.PeakMemory()
    self._queries = np.load(search_work.queries_file(args))
    self._search = None
    self._hits = None

  def describe(self) -> dict[str, Any]:
    device = jax.devices()[0]
    return {
        'device': device.device_kind,
        'platform': device.platform,
        'jax': jax.__version__,
    }

  def ceiling(self) -> dict[str, float]:
    """The best rate of a large float32 product."""
    import train_step  # What it brings with it counts as memory.

    product = train_step.square_product('float32', precision='highest')
    return loss_work.best_rates(*product)

  def reading_seconds(self) -> float:
    """The time to copy all passages to one device, after a first copy."""
    file = search_work.passages_file(self._args)
    passages = np.load(file, mmap_mode='r')
    device = jax.devices()[0]

    def read():
      for start in range(0, len(passages), BLOCK_ROWS):
        block = passages[start : start + BLOCK_ROWS]
        jax.block_until_ready(jax.device_put(block, device))

    read()
    return workload.seconds(read)

  def prepare(self) -> float:
    """Opens the passages and runs once; the seconds of that."""
    self._open()
    seconds = workload.seconds(self._run)
    if self._args.streamed:
      self._close()
    return seconds

  def time(self, cold: bool) -> dict[str, float]:
    """Runs once, if `cold` with nothing of the passages' file in memory."""
    if cold:
      search_work.forget(search_work.passages_file(self._args))
    if self._args.streamed:
      self._open()
    figures = search_work.timed(self._run)
    if self._args.streamed:
      self._close()
    return figures

  def _close(self) -> None:
    """Lets go of the passages: what is mapped cannot leave the page cache."""
    self._search = None
    gc.collect()

  def hits(self, file: str) -> None:
    """Saves the last run's scores and rows."""
    np.savez(file, scores=self._hits.scores, rows=self._hits.indices)

  def peaks(self) -> dict[str, int]:
    stats = jax.devices()[0].memory_stats() or {}
    device = stats.get('peak_bytes_in_use', 0)
    return self._memory.peaks() | {'device_peak_bytes': device}

  def _open(self) -> None:
    file = search_work.passages_file(self._args)
    if self._args.streamed:
      passages = RowStore([np.load(file, mmap_mode='r')])
    else:
      passages = search_work.in_memory(file)
    self._search = ExactSearch(passages, Ids(len(passages)))

  def _run(self) -> None:
    self._hits = self._search.top_k(self._queries, self._args.k)


def main() -> None:
  # Sides share a GPU.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--streamed', action='store_true')
  search_work.add_flags(parser)
  args = parser.parse_args()
  if jax.default_backend() == 'cpu':
    runtime.keep_freed_memory()  # As every command does.
  sides.serve(Ours(args))


if __name__ == '__main__':
  main()
