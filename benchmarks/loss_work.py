"""The work of the loss benchmark, the same for all sides; NumPy only.

B pairs, D embedding dim. The loss is the two-way in-batch softmax, or SamToNe
on both towers; its value and its gradient with respect to the embeddings.
"""

import argparse
from collections.abc import Callable
import os
import resource
import statistics

import numpy as np
import workload

DIM = 768
TEMPERATURE = 0.05
LOSSES = ('softmax', 'samtone_both')

# Products of [B, D] by [D, B], or of that size, 2 B^2 D operations each. Where
# every score is kept, a matrix of queries by passages takes one, and one for
# the gradient of either tower. One tower by itself is symmetric: half a product
# is enough for its scores, and one for their gradient.
NEEDED = {'softmax': 3.0, 'samtone_both': 3.0 + 2 * 1.5}
# The ring computes scores again for the gradient, and tiles on the diagonal of
# a symmetric matrix whole, which is not counted; sentence-transformers takes
# each direction apart: two for the scores, four for the gradients.
EXECUTED = {
    'ring': {'softmax': 4.0, 'samtone_both': 4.0 + 2 * 2.0},
    'dense': {'softmax': 3.0, 'samtone_both': 3.0 + 2 * 3.0},
    'st': {'softmax': 6.0},
    'st_cached': {'softmax': 6.0},
}


class TooLarge(Exception):
  """This would need more memory than it may take."""


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that every side needs."""
  parser.add_argument('--loss', choices=LOSSES, default='softmax')
  parser.add_argument('--dim', type=int, default=DIM, help='D')
  parser.add_argument('--temperature', type=float, default=TEMPERATURE)
  parser.add_argument(
      '--no_mask',
      action='store_true',
      help='ours without duplicate masking, which the peers do not do',
  )
  parser.add_argument(
      '--tile', type=int, help="the ring's tile; by default its own choice"
  )
  parser.add_argument(
      '--mini_batch',
      type=int,
      default=1024,
      help="rows of scores that sentence-transformers' Cached loss has at once",
  )


def embeddings(
    batch: int, dim: int, shared: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
  """Queries and passages, float32 [B, D], rows of norm one.

  Args:
    batch: B.
    dim: D.
    shared: weight of what the two of a pair have in common. Cosines are about
      0.8 for a pair and 0.4 for others at 1, 0.7 and 0.6 at 0.4.
  """
  rng = np.random.default_rng(0)

  def normal(*shape):
    return rng.standard_normal(shape, np.float32)

  common = np.float32(shared) * normal(batch, dim) + normal(dim)

  def tower():
    rows = common + np.float32(0.7) * normal(batch, dim)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)

  return tower(), tower()


def product_flops(batch: int, dim: int) -> float:
  """Floating-point operations of one product."""
  return 2.0 * batch**2 * dim


def timed(run: Callable[[], None], calls: int) -> dict[str, float]:
  """Means of `calls` runs; see `workload.Times`."""
  times = workload.time_steps(
      argparse.Namespace(warmup=0, steps=calls), lambda _: run()
  )
  return {
      'seconds': statistics.mean(times.wall),
      'core_seconds': statistics.mean(times.cores),
      'cores_busy_elsewhere': sum(times.elsewhere) / sum(times.wall),
  }


def best_rates(flops: float, run: Callable[[], None]) -> dict[str, float]:
  """The ceiling: the highest rate of `run`, by the clock and by cores."""
  run()
  rounds = [timed(run, 1) for _ in range(10)]
  return {
      'flops_per_second': flops / min(r['seconds'] for r in rounds),
      'flops_per_core_second': flops / min(r['core_seconds'] for r in rounds),
  }


def check_fits(needed: float, limit: float | None, free: float) -> None:
  """Raises TooLarge if `needed` bytes are above the limit.

  Args:
    needed: bytes.
    limit: bytes; None for 80% of what is free.
    free: bytes.
  """
  limit = 0.8 * free if limit is None else limit
  if needed > limit:
    raise TooLarge(
        f'needs {needed / 2**30:.1f} GiB, may take {limit / 2**30:.1f} GiB'
    )


def free_memory() -> int:
  """Bytes of the machine's memory that a process can get; Linux only."""
  with open('/proc/meminfo') as f:
    fields = dict(line.split(':') for line in f)
  return 1024 * int(fields['MemAvailable'].split()[0])


def resident_bytes() -> int:
  """Bytes of this process in memory now; Linux only."""
  with open('/proc/self/statm') as f:
    return int(f.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


def peak_resident_bytes() -> int:
  """The most that `resident_bytes` has ever been."""
  return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
