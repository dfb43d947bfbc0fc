"""The search benchmark in faiss, or in PyTorch; search.py gives it orders.

Run with the Python of an environment that has faiss, or PyTorch.
"""

import argparse
from typing import Any

import loss_work
import numpy as np
import search_work
import sides
import workload

# Rows that are scored at once; on a GPU, so that 7,000 queries take 3.5 GB.
BLOCK = 2**17


class Peer:
  """What both have in common."""

  def __init__(self, args: argparse.Namespace):
    self._args = args
    self._memory = search_work.PeakMemory()
    self._queries = np.load(search_work.queries_file(args))
    self._found = None

  def prepare(self) -> float:
    """Opens the passages and runs once; the seconds of that."""
    self._open(search_work.passages_file(self._args))
    return workload.seconds(self._run)

  def time(self, cold: bool) -> dict[str, float]:
    del cold  # All is in memory.
    return search_work.timed(self._run)

  def hits(self, file: str) -> None:
    """Saves the last run's scores and rows."""
    scores, rows = self._found
    np.savez(file, scores=scores, rows=rows)

  def peaks(self) -> dict[str, int]:
    return self._memory.peaks()

  def _run(self) -> None:
    self._found = self._search()


class Faiss(Peer):
  """IndexFlatIP, on the CPU."""

  def describe(self) -> dict[str, Any]:
    import faiss

    return {'faiss': faiss.__version__, 'threads': faiss.omp_get_max_threads()}

  def _open(self, file):
    import faiss

    self._index = faiss.IndexFlatIP(self._args.dim)
    # At once: the index would grow by halves. It copies them.
    passages = np.load(file, mmap_mode='r')
    self._index.add(passages.astype(np.float32, copy=False))

  def _search(self):
    return self._index.search(self._queries, self._args.k)


class Torch(Peer):
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

    def product():
      (a @ a)[0, 0].item()  # Waits for it.

    return loss_work.best_rates(2.0 * side**3, product)

  def peaks(self) -> dict[str, int]:
    device = 0
    if self._device == 'cuda':
      device = self._torch.cuda.max_memory_allocated()
    return super().peaks() | {'device_peak_bytes': device}

  def _open(self, file):
    self._passages = self._torch.from_numpy(search_work.in_memory(file))

  def _search(self):
    torch = self._torch
    queries = torch.from_numpy(self._queries).to(self._device)
    size, best = len(self._passages), None
    for start in range(0, size, BLOCK):
      block = self._passages[start : start + BLOCK].to(self._device).float()
      scores, rows = (queries @ block.T).topk(min(self._args.k, len(block)), 1)
      rows += start
      if best is not None:
        scores = torch.cat([best[0], scores], 1)
        rows = torch.cat([best[1], rows], 1)
      scores, which = scores.topk(min(self._args.k, scores.shape[1]), 1)
      best = scores, rows.gather(1, which)
    return [x.cpu().numpy() for x in best]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  kinds = {'faiss': Faiss, 'torch': Torch}
  parser.add_argument('--kind', choices=kinds, required=True)
  search_work.add_flags(parser)
  args = parser.parse_args()
  sides.serve(kinds[args.kind](args))


if __name__ == '__main__':
  main()
