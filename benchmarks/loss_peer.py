"""The loss benchmark in sentence-transformers; loss.py gives it orders.

Run with the Python of an environment that has sentence-transformers.
"""

import argparse
from collections.abc import Sequence
import gc
import os
from typing import Any

import loss_work
import numpy as np
import sentence_transformers
import sides
import torch
import train_step_peer
import workload

DEVICE = train_step_peer.DEVICE
# Matrices of scores that live at once, about: both directions, their scaled
# form, and what the backward pass makes of them.
MATRICES = 8


class Given(torch.nn.Module):
  """Returns embeddings that are there already, [m, D], by their row numbers.

  They are leaves, so that the gradient ends at them; for the Cached loss one a
  mini-batch, since a gradient of slices would cost the whole batch each time.
  """

  def __init__(self, towers: Sequence[np.ndarray], mini_batch: int):
    super().__init__()
    self._leaves, first = {}, 0
    for tower in towers:
      for part in torch.from_numpy(tower).to(DEVICE).split(mini_batch):
        self._leaves[first] = part.detach().requires_grad_()
        first += len(part)

  def forward(self, features: dict[str, torch.Tensor]) -> dict[str, Any]:
    first = int(features['input_ids'][0])
    return {'sentence_embedding': self._leaves[first]}

  def forget_gradients(self) -> None:
    for leaf in self._leaves.values():
      leaf.grad = None


class Peer:
  """Value and gradient of MultipleNegativesRankingLoss, or of its Cached form.

  Its value is the mean of both directions where ours is their sum.
  """

  def __init__(self, args: argparse.Namespace):
    self._args = args
    self._run = None
    self._resident = loss_work.resident_bytes()

  def describe(self) -> dict[str, Any]:
    return {
        'torch': torch.__version__,
        'sentence_transformers': sentence_transformers.__version__,
        'matmul_precision': torch.get_float32_matmul_precision(),
    }

  def ceiling(self) -> dict[str, float]:
    """The best rate of a large float32 product."""
    return loss_work.best_rates(*train_step_peer.square_product(torch.float32))

  def prepare(self, batch: int, limit: float | None) -> dict[str, Any]:
    """Makes the loss of B pairs and runs it once; see `loss_ours.py`."""
    args = self._args
    rows = min(args.mini_batch, batch) if args.cached else batch
    needed = 4.0 * (MATRICES * rows * batch + 6 * batch * args.dim)
    loss_work.check_fits(needed, limit, _free())
    if DEVICE == 'cuda':
      torch.cuda.reset_peak_memory_stats()
    given = Given(loss_work.embeddings(batch, args.dim), rows)
    # It looks at the first module of the model.
    loss = train_step_peer.make_loss(
        torch.nn.Sequential(given),
        rows if args.cached else None,
        args.temperature,
    )
    numbers = torch.arange(2 * batch).split(batch)
    labels = torch.arange(batch, device=DEVICE)
    found = []

    def run():
      given.forget_gradients()
      value = loss([{'input_ids': rows} for rows in numbers], labels)
      value.backward()
      found[:] = [value.detach()]
      train_step_peer.synchronize()

    seconds = workload.seconds(run)
    self._run = run
    return {'value': 2.0 * float(found[0]), 'seconds': seconds}

  def time(self, calls: int) -> dict[str, float]:
    return loss_work.timed(self._run, calls)

  def peak_bytes(self) -> int:
    """The most memory so far; sizes come in ascending order."""
    if DEVICE == 'cuda':
      return torch.cuda.max_memory_allocated()
    return loss_work.peak_resident_bytes() - self._resident

  def release(self) -> None:
    self._run = None
    gc.collect()
    if DEVICE == 'cuda':
      torch.cuda.empty_cache()


def _free() -> int:
  if DEVICE == 'cuda':
    return torch.cuda.mem_get_info()[0]
  return loss_work.free_memory()


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--cached', action='store_true')
  loss_work.add_flags(parser)
  args = parser.parse_args()
  # PyTorch counts cores of the machine, not those that it may use.
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  sides.serve(Peer(args))


if __name__ == '__main__':
  main()
