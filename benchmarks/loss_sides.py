"""The sides of the loss benchmark: ours, and sentence-transformers'."""

import argparse
import gc
from typing import Any

import harness
import numpy as np

# Matrices of scores that live at once in sentence-transformers, about: both
# directions, their scaled form, and those of the backward pass.
_MATRICES = 8


class TooLarge(Exception):
  """This would need more memory than it may take."""


def make(args: argparse.Namespace) -> 'Ours | Peer':
  """The side that --side names."""
  return (Peer if args.side.startswith('st') else Ours)(args)


def embeddings(batch: int, dim: int) -> list[np.ndarray]:
  """Queries and passages, float32 [B, D], rows of norm one.

  Cosines are about 0.8 for a pair and 0.4 for others.
  """
  rng = np.random.default_rng(0)

  def normal(*shape):
    return rng.standard_normal(shape, np.float32)

  common = normal(batch, dim) + normal(dim)
  towers = [common + np.float32(0.7) * normal(batch, dim) for _ in range(2)]
  return [
      rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in towers
  ]


def _check_fits(needed: float, limit: float | None, free: float) -> None:
  """Raises TooLarge if `needed` bytes exceed `limit`, or 80% of `free`."""
  limit = 0.8 * free if limit is None else limit
  if needed > limit:
    raise TooLarge(
        f'needs {needed / 2**30:.1f} GiB, may take {limit / 2**30:.1f} GiB'
    )


class Ours:
  """Value and gradient of a loss of the library in one implementation."""

  def __init__(self, args: argparse.Namespace):
    import jax
    import ours

    from dualenc_jax import losses

    self._args, self._jax, self._ours = args, jax, ours
    self.describe, self.ceiling = ours.describe, ours.ceiling
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

  def prepare(self, batch: int, limit: float | None) -> harness.Figures:
    """Compiles for B pairs and runs once.

    `limit` is in bytes; None for 80% of what is free.

    Returns:
      compile_seconds, compiled_bytes, the loss's value and the run's seconds.
    """
    if self._args.side == 'dense':
      # At the least scores, their exponentials and their gradient.
      _check_fits(12.0 * batch**2, limit, self._free())
    towers = embeddings(batch, self._args.dim)
    vectors = [self._jax.device_put(tower) for tower in towers]
    ids = None
    if not self._args.no_mask:
      numbers = np.arange(2 * batch, dtype=np.uint32).reshape(-1, 2)
      ids = self._jax.numpy.asarray(numbers)
    program, planned = self._ours.compiled(self._gradient, vectors, ids)
    _check_fits(planned['compiled_bytes'], limit, self._free())
    found: list[Any] = []

    def run():
      found[:] = [self._jax.block_until_ready(program(vectors, ids))]

    seconds = harness.seconds(run)
    self._run = run
    return {**planned, 'value': float(found[0][0][0]), 'seconds': seconds}

  def time(self, calls: int) -> harness.Figures:
    return harness.timed(self._run, calls)

  def peak_bytes(self) -> int:
    """The most of the device's memory so far; sizes come in ascending order.

    0 on a CPU: compiling takes more of the process's than a small loss.
    """
    return self._ours.device_peak_bytes()

  def release(self) -> None:
    self._run = None

  def _free(self) -> int:
    stats = self._jax.devices()[0].memory_stats() or {}
    if 'bytes_limit' in stats:
      return stats['bytes_limit'] - stats['bytes_in_use']
    return harness.free_memory()


class Peer:
  """Value and gradient of MultipleNegativesRankingLoss, or of its Cached form.

  Its value is the mean of both directions where ours is their sum. Runs in a
  Python with sentence-transformers.
  """

  def __init__(self, args: argparse.Namespace):
    import peer
    import torch

    self._args, self._torch, self._peer = args, torch, peer
    self.describe, self.ceiling = peer.describe, peer.ceiling
    self._cached = args.side == 'st_cached'
    self._on_gpu = peer.DEVICE == 'cuda'
    self._run = None
    self._resident = harness.resident_bytes()

  def prepare(self, batch: int, limit: float | None) -> harness.Figures:
    """Makes the loss of B pairs and runs it once; see `Ours`."""
    args, torch = self._args, self._torch
    rows = min(args.mini_batch, batch) if self._cached else batch
    needed = 4.0 * (_MATRICES * rows * batch + 6 * batch * args.dim)
    _check_fits(needed, limit, self._free())
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
      return self._peer.device_peak_bytes()
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
