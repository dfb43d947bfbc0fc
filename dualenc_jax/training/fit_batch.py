"""The largest global batch that fits a device, without training."""

from collections.abc import Callable
import dataclasses
import math
from typing import NamedTuple

from dualenc_jax.training import memory as memory_lib
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.utils.errors import UserError

# Share of a device's memory that a step may plan to use. The rest is for the
# next batch, the runtime's own buffers and fragmentation.
USABLE = 0.95
# The search ends when what fits and what does not are this close.
TOLERANCE = 0.02
# Pairs beyond which nothing is tried.
MAX_BATCH_SIZE = 2**24
# Most that a size tried differs from all before.
_GROWTH = 16


class Fit(NamedTuple):
  """The largest batch that fits, in pairs, and bytes a device of its step.

  `too_large` is the smallest that was seen not to fit. Without one larger ones
  may fit: the search stops at `MAX_BATCH_SIZE`, or at the last of the
  objective's `batch_sizes`.
  """

  batch_size: int
  peak: int
  too_large: int | None


def fit_batch(
    experiment: Experiment,
    memory: int,
    tell: Callable[[int, int | None], None] = lambda size, peak: None,
    peak_of: Callable[[Experiment], int] | None = None,
) -> Fit:
  """The largest global batch whose train step fits, to `TOLERANCE`.

  Memory is assumed to grow with the batch. It falls by some 20 MiB where the
  loss turns from dense to ring, which matters on a device below about a GiB.
  Every size tried is compiled, which takes as long as at the start of a run.

  The search begins at the run's own batch size. `tell` is called with each size
  compiled and its peak, None where the compiler ran out of the device's memory.
  `peak_of` gives bytes a device of a step, or raises `memory.OutOfMemory`; by
  default it is `memory.peak`.
  """
  limit = int(USABLE * memory)
  state = memory_lib.state(experiment)
  if state > limit:
    raise _does_not_fit('the state of parameters and optimizer', state, memory)

  def measure(size: int) -> float:
    try:
      peak = (peak_of or memory_lib.peak)(
          dataclasses.replace(experiment, batch_size=size)
      )
    except memory_lib.OutOfMemory:
      peak = None
    tell(size, peak)
    return math.inf if peak is None else peak

  sizes = experiment.objective.batch_sizes(experiment)
  smallest = max(sizes.step, 2)  # One pair has no negatives.
  most = max(min(sizes.stop - 1, MAX_BATCH_SIZE), smallest)
  sizes = range(smallest, most + 1, sizes.step)
  peaks = search(measure, sizes, experiment.batch_size, state, limit)
  fitting = [size for size, peak in peaks.items() if peak <= limit]
  if not fitting:
    what = f'the step of {sizes[0]:,} pairs'
    raise _does_not_fit(what, peaks[sizes[0]], memory)
  largest = max(fitting)
  too_large = min((size for size in peaks if size > largest), default=None)
  return Fit(largest, int(peaks[largest]), too_large)


def search(
    measure: Callable[[int], float], sizes: range, start: int, fixed: int,
    limit: float,
) -> dict[int, float]:
  """Measures few sizes; the largest that fits is then known to `TOLERANCE`.

  Memory is assumed affine in the size: the next size to measure is where a line
  through two measured ones reaches the limit. Where that is slow, as memory is
  not affine, the bracket is halved instead. If none fits, the first size is
  measured; if all fit, the last.

  `measure` returns bytes, infinite for too many to know; every size needs
  `fixed` bytes.
  """
  peaks: dict[int, float] = {}
  gaps: list[float] = []
  low, high = -1, len(sizes)  # Indices: the former fits, the latter does not.
  index = min(max((start - sizes[0]) // sizes.step, 0), len(sizes) - 1)
  while True:
    peak = peaks[sizes[index]] = measure(sizes[index])
    low, high = (index, high) if peak <= limit else (low, index)
    step = max(int(TOLERANCE * low), 1)
    if high - low <= step:
      return peaks
    if 0 <= low and high < len(sizes):
      ends = sizes[low], sizes[high]
      gaps.append(math.log(ends[1] / ends[0]))
      slow = len(gaps) > 2 and gaps[-1] > gaps[-3] / 2
      guess = None if slow else _crossing({s: peaks[s] for s in ends}, limit)
      guess = guess or math.sqrt(ends[0] * ends[1])
    else:
      # Far from all that is measured the line is not trusted.
      least, most = min(peaks) / _GROWTH, max(peaks) * _GROWTH
      guess = _crossing({0: fixed, **peaks}, limit)
      guess = guess or (least if low < 0 else most)
      guess = max(min(guess, most), least)
    index = int((guess - sizes[0]) // sizes.step)
    last = high - (step if high < len(sizes) else 1)
    index = max(min(index, last), low + step)


def _crossing(peaks: dict[int, float], limit: float) -> float | None:
  """Where the line through the two peaks nearest to the limit reaches it."""
  points = [(size, p) for size, p in peaks.items() if math.isfinite(p)]
  if len(points) < 2:
    return None
  (x, y), (u, v) = sorted(points, key=lambda p: abs(p[1] - limit))[:2]
  slope = (v - y) / (u - x)
  return x + (limit - y) / slope if slope > 0 else None


def _does_not_fit(what: str, needed: float, memory: int) -> UserError:
  needs = 'more than compiling it can get'
  if math.isfinite(needed):
    needs = f'{memory_lib.mib(needed)} MiB'
  return UserError(
      f'No batch fits: {what} needs {needs} a device, and at most {USABLE:.0%}'
      f' of its {memory_lib.mib(memory)} MiB may be used. {memory_lib.LESS}'
  )
