"""Our side of the loss benchmark; loss.py starts it and gives it orders."""

import argparse
import os
from typing import Any

import jax
import jax.numpy as jnp
import loss_work
import numpy as np
import sides
import train_step
import workload

from dualenc_jax import losses
from dualenc_jax.commands import runtime


class Ours:
  """Value and gradient of a loss of the library in one implementation."""

  def __init__(self, args: argparse.Namespace):
    cls = losses.InBatchSoftmax
    options = {}
    if args.loss == 'samtone_both':
      cls, options = losses.SamToNe, {'both_towers': True}
    self._args = args
    self._loss = cls(**options)
    self._similarity = losses.Similarity(
        temperature=args.temperature,
        mask_duplicates=not args.no_mask,
        implementation=args.implementation,
        tile=args.tile,
    )
    self._run = None

  def describe(self) -> dict[str, Any]:
    device = jax.devices()[0]
    return {
        'device': device.device_kind,
        'platform': device.platform,
        'jax': jax.__version__,
    }

  def ceiling(self) -> dict[str, float]:
    """The best rate of a large float32 product, at the loss's precision."""
    product = train_step.square_product('float32', precision='highest')
    return loss_work.best_rates(*product)

  def prepare(self, batch: int, limit: float | None) -> dict[str, Any]:
    """Compiles for B pairs and runs once.

    Args:
      batch: B.
      limit: bytes that it may need; None for 80% of what is free.

    Returns:
      compile_seconds, plan_bytes and temporary_bytes as XLA plans them, the
      loss's value and the run's seconds.
    """
    if self._args.implementation == 'dense':
      # At the least scores, their exponentials and their gradient.
      loss_work.check_fits(12.0 * batch**2, limit, _free())
    vectors = [
        jax.device_put(x)
        for x in loss_work.embeddings(batch, self._args.dim)
    ]
    ids = None
    if not self._args.no_mask:
      ids = jnp.asarray(np.arange(2 * batch, dtype=np.uint32).reshape(-1, 2))

    def value(vectors, ids):
      batch = losses.Embeddings(*vectors, query_ids=ids, passage_ids=ids)
      # With its metrics, as in a train step.
      return losses.evaluate(self._loss, self._similarity, {}, batch)

    lowered = jax.jit(jax.value_and_grad(value, has_aux=True)).lower(
        vectors, ids
    )
    compiled = []
    compile_seconds = workload.seconds(
        lambda: compiled.append(lowered.compile())
    )
    plan = compiled[0].memory_analysis()
    total = workload.planned_bytes(plan)
    loss_work.check_fits(total, limit, _free())
    found = []

    def run():
      found[:] = [jax.block_until_ready(compiled[0](vectors, ids))]

    seconds = workload.seconds(run)
    self._run = run
    return {
        'compile_seconds': compile_seconds,
        'plan_bytes': total,
        'temporary_bytes': plan.temp_size_in_bytes,
        'value': float(found[0][0][0]),
        'seconds': seconds,
    }

  def time(self, calls: int) -> dict[str, float]:
    return loss_work.timed(self._run, calls)

  def peak_bytes(self) -> int | None:
    """The most of the device's memory so far; sizes come in ascending order.

    None on a CPU: compiling takes more of the process's than a small loss.
    """
    return (jax.devices()[0].memory_stats() or {}).get('peak_bytes_in_use')

  def release(self) -> None:
    self._run = None


def _free() -> int:
  stats = jax.devices()[0].memory_stats()
  if stats and 'bytes_limit' in stats:
    return stats['bytes_limit'] - stats['bytes_in_use']
  return loss_work.free_memory()


def main() -> None:
  # The other sides need the device's memory, too.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--implementation', default='ring')
  loss_work.add_flags(parser)
  args = parser.parse_args()
  if jax.default_backend() == 'cpu':
    runtime.keep_freed_memory()  # As every command does.
  sides.serve(Ours(args))


if __name__ == '__main__':
  main()
