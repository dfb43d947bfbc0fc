"""The sides of the loss benchmark: ours, and sentence-transformers'."""

import argparse
import gc
import os
from typing import Any

import harness
from loss_work import check_fits, embeddings
import numpy as np

# Matrices of scores that live at once in sentence-transformers, about: both
# directions, their scaled form, and those of the backward pass.
_MATRICES = 8


def make(args: argparse.Namespace) -> 'Ours | Peer':
  """The side that --side names."""
  return (Peer if args.side.startswith('st') else Ours)(args)


class Ours:
  """Value and gradient of a loss of the library in one implementation."""

  def __init__(self, args: argparse.Namespace):
    # Sides share a GPU.
    os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
    import jax
    import train_step

    from dualenc_jax import losses
    from dualenc_jax.commands import runtime

    if jax.default_backend() == 'cpu':
      runtime.keep_freed_memory()  # As every command does.
    self._args, self._device = args, jax.devices()[0]
    self._jax, self._train_step = jax, train_step
    loss = losses.InBatchSoftmax()
    if args.loss == 'samtone_both':
      loss = losses.SamToNe(both_towers=True)
    similarity = losses.Similarity(
        temperature=args.temperature,
        mask_duplicates=not args.no_mask,
        implementation=args.side,
        tile=args.tile,
    )

    def value(vectors, ids):
      batch = losses.Embeddings(*vectors, query_ids=ids, passage_ids=ids)
      # With its metrics, as in a train step.
      return losses.evaluate(loss, similarity, {}, batch)

    self._gradient = jax.jit(jax.value_and_grad(value, has_aux=True))
    self._run = None

  def describe(self) -> dict[str, Any]:
    return {
        'device': self._device.device_kind,
        'platform': self._device.platform,
        'jax': self._jax.__version__,
    }

  def ceiling(self) -> dict[str, float]:
    """The best rate of a large float32 product, at the loss's precision."""
    square = self._train_step.square_product('float32', precision='highest')
    return harness.best_rates(*square)

  def prepare(self, batch: int, limit: float | None) -> harness.Figures:
    """Compiles for B pairs and runs once.

    `limit` is in bytes; None for 80% of what is free.

    Returns:
      compile_seconds, plan_bytes and temporary_bytes as XLA plans them, the
      loss's value and the run's seconds.
    """
    import workload

    if self._args.side == 'dense':
      # At the least scores, their exponentials and their gradient.
      check_fits(12.0 * batch**2, limit, self._free())
    vectors = [
        self._jax.device_put(x) for x in embeddings(batch, self._args.dim)
    ]
    ids = None
    if not self._args.no_mask:
      numbers = np.arange(2 * batch, dtype=np.uint32).reshape(-1, 2)
      ids = self._jax.numpy.asarray(numbers)
    lowered = self._gradient.lower(vectors, ids)
    compiled: list[Any] = []
    compile_seconds = harness.seconds(
        lambda: compiled.append(lowered.compile())
    )
    plan = compiled[0].memory_analysis()
    total = workload.planned_bytes(plan)
    check_fits(total, limit, self._free())
    found: list[Any] = []

    def run():
      found[:] = [self._jax.block_until_ready(compiled[0](vectors, ids))]

    seconds = harness.seconds(run)
    self._run = run
    return {
        'compile_seconds': compile_seconds,
        'plan_bytes': total,
        'temporary_bytes': plan.temp_size_in_bytes,
        'value': float(found[0][0][0]),
        'seconds': seconds,
    }

  def time(self, calls: int) -> harness.Figures:
    return harness.timed(self._run, calls)

  def peak_bytes(self) -> int | None:
    """The most of the device's memory so far; sizes come in ascending order.

    None on a CPU: compiling takes more of the process's than a small loss.
    """
    return (self._device.memory_stats() or {}).get('peak_bytes_in_use')

  def release(self) -> None:
    self._run = None

  def _free(self) -> int:
    stats = self._device.memory_stats() or {}
    if 'bytes_limit' in stats:
      return stats['bytes_limit'] - stats['bytes_in_use']
    return harness.free_memory()


class Peer:
  """Value and gradient of MultipleNegativesRankingLoss, or of its Cached form.

  Its value is the mean of both directions where ours is their sum. Runs in a
  Python with sentence-transformers.
  """

  def __init__(self, args: argparse.Namespace):
    import torch
    import train_step_peer

    # PyTorch counts cores of the machine, not those that it may use.
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    self._args, self._torch, self._peer = args, torch, train_step_peer
    self._cached = args.side == 'st_cached'
    self._on_gpu = train_step_peer.DEVICE == 'cuda'
    self._run = None
    self._resident = harness.resident_bytes()

  def describe(self) -> dict[str, Any]:
    import sentence_transformers

    return {
        'torch': self._torch.__version__,
        'sentence_transformers': sentence_transformers.__version__,
        'matmul_precision': self._torch.get_float32_matmul_precision(),
    }

  def ceiling(self) -> dict[str, float]:
    """The best rate of a large float32 product."""
    square = self._peer.square_product(self._torch.float32)
    return harness.best_rates(*square)

  def prepare(self, batch: int, limit: float | None) -> harness.Figures:
    """Makes the loss of B pairs and runs it once; see `Ours`."""
    args, torch = self._args, self._torch
    rows = min(args.mini_batch, batch) if self._cached else batch
    needed = 4.0 * (_MATRICES * rows * batch + 6 * batch * args.dim)
    check_fits(needed, limit, self._free())
    if self._on_gpu:
      torch.cuda.reset_peak_memory_stats()
    given = self._peer.Given(embeddings(batch, args.dim), rows)
    # The library looks at the first module of the model.
    model = torch.nn.Sequential(given)
    mini = rows if self._cached else None
    loss = self._peer.make_loss(model, mini, args.temperature)
    numbers = torch.arange(2 * batch).split(batch)
    labels = torch.arange(batch, device=self._peer.DEVICE)
    found: list[Any] = []

    def run():
      given.forget_gradients()
      value = loss([{'input_ids': rows} for rows in numbers], labels)
      value.backward()
      found[:] = [value.detach()]
      self._peer.synchronize()

    seconds = harness.seconds(run)
    self._run = run
    return {'value': 2.0 * float(found[0]), 'seconds': seconds}

  def time(self, calls: int) -> harness.Figures:
    return harness.timed(self._run, calls)

  def peak_bytes(self) -> int:
    """The most memory so far; sizes come in ascending order."""
    if self._on_gpu:
      return self._torch.cuda.max_memory_allocated()
    return harness.peak_resident_bytes() - self._resident

  def release(self) -> None:
    self._run = None
    gc.collect()
    if self._on_gpu:
      self._torch.cuda.empty_cache()

  def _free(self) -> int:
    if self._on_gpu:
      return self._torch.cuda.mem_get_info()[0]
    return harness.free_memory()
