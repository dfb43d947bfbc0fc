"""Memory of a train step as its compiler plans it; nothing is allocated.

`fit_batch` finds the largest batch that fits.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import math
from typing import Any, NamedTuple

import jax

from dualenc_jax.checkpoints.adapters import GROUP
from dualenc_jax.training.experiment import Experiment, make_plan
from dualenc_jax.utils.errors import UserError

# Share of a device's memory that a step may plan to use. The rest is for the
# next batch, the runtime's own buffers and fragmentation.
USABLE = 0.95
# The search for a batch ends when what fits and what does not are this close.
TOLERANCE = 0.02
# Pairs beyond which no batch is tried.
MAX_BATCH_SIZE = 2**24
# Most that a size tried differs from all before.
_GROWTH = 16
LESS = (
    'Encode in small micro-batches (--gin.MICRO_BATCH_SIZE=), shard the'
    ' parameters over the devices (--gin_file=partitioning/fsdp.gin), recompute'
    ' activations (--gin.models.T5Encoder.remat=True, or GemmaEncoder), use'
    ' --gin.DTYPE=bfloat16, fewer tokens, or a smaller model.'
)
FEWER_PAIRS = f'--fit_batch finds the largest batch that fits. {LESS}'


class OutOfMemory(UserError):
  """The compiler ran out of the device's memory."""


class Fit(NamedTuple):
  """The largest batch that fits, in pairs, and bytes a device of its step.

  `too_large` is the smallest that was seen not to fit. Without one larger ones
  may fit: the search stops at `MAX_BATCH_SIZE`, or at the last of the
  objective's `batch_sizes`.
  """

  batch_size: int
  peak: int
  too_large: int | None


def memory_parts(
    experiment: Experiment, compiled: jax.stages.Compiled
) -> dict[str, int]:
  """Returns bytes a device of a compiled step, by name; the sum is its peak.

  The first are the step's inputs, by shapes and shardings; with LoRA base,
  adapters and heads stand in place of the parameters. New parameters, optimizer
  state and memory of the objective (such as a negative cache, absent
  if it has none) take the place of the old. `temporaries` are activations that
  wait for the backward pass, gradients, updates, the loss's matrices and
  buffers of collectives. `other` is metrics, the program where it lies in the
  device's memory, and padding of inputs to the device's tiles.
  """
  state = make_plan(experiment).abstract
  sizes = {'parameters': device_bytes(state.params)}
  if jax.tree.leaves(state.base):
    adapters = device_bytes(state.params[GROUP])
    sizes = {
        'base': device_bytes(state.base),
        'adapters': adapters,
        'heads': sizes['parameters'] - adapters,
    }
  sizes |= {
      'optimizer state': device_bytes((state.opt_state, state.step)),
      'memory': device_bytes(state.memory),
      'batch': device_bytes(_abstract_batch(experiment)),
  }
  if not sizes['memory']:
    del sizes['memory']
  temporaries = _analysis(compiled).temp_size_in_bytes
  other = peak_of(compiled) - temporaries - sum(sizes.values())
  return {**sizes, 'temporaries': temporaries, 'other': other}


def format_table(
    parts: Mapping[str, int], available: int | None = None
) -> Iterator[str]:
  """Yields lines of a table of bytes, in MiB, with their sum."""
  peak = sum(parts.values())
  for name, size in {**parts, 'peak': peak}.items():
    yield f'{name:<22} {mib(size):>12}'
  if available is not None:
    share = f'of which the peak is {peak / available:.1%}'
    yield f'{"device":<22} {mib(available):>12}, {share}'


def mib(size: float) -> str:
  """Bytes as MiB: '1,024.0'."""
  return f'{size / 2**20:,.1f}'


def compile_step(experiment: Experiment) -> jax.stages.Compiled:
  """Compiles the train step for the devices of the mesh.

  Raises:
    OutOfMemory: the compiler ran out of the device's memory.
  """
  lowered = lower_step(experiment)
  try:
    return lowered.compile()
  except jax.errors.JaxRuntimeError as e:
    if 'RESOURCE_EXHAUSTED' not in str(e):
      raise
    raise OutOfMemory(
        f'The train step of {experiment.batch_size:,} pairs needs more memory'
        f' than the device has: {str(e).splitlines()[0]} {FEWER_PAIRS}'
    ) from e


def lower_step(experiment: Experiment) -> jax.stages.Lowered:
  """Returns the train step lowered for the devices of the mesh."""
  plan = make_plan(experiment)
  step: Any = plan.train_step
  return step.lower(plan.abstract, _abstract_batch(experiment))


def measure_peak(experiment: Experiment) -> int:
  """Compiles the train step; returns all bytes that it needs of a device."""
  return peak_of(compile_step(experiment))


def peak_of(compiled: jax.stages.Compiled) -> int:
  """Returns the bytes of a device that must be free for a compiled program."""
  plan = _analysis(compiled)
  # `peak_memory_in_bytes` lacks the temporaries on the CPU.
  arguments, outputs = plan.argument_size_in_bytes, plan.output_size_in_bytes
  total = arguments + outputs - plan.alias_size_in_bytes
  return total + plan.temp_size_in_bytes + plan.generated_code_size_in_bytes


def state_bytes(experiment: Experiment) -> int:
  """Returns bytes a device of a run's state; compiles nothing."""
  return device_bytes(make_plan(experiment).abstract)


def device_bytes(tree: Any) -> int:
  """Returns bytes of abstract arrays on one device, by their shardings."""
  return sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(tree)
  )


def _analysis(compiled: jax.stages.Compiled) -> Any:
  analysis = compiled.memory_analysis()
  if analysis is None:
    raise UserError(
        f'The backend {jax.default_backend()} does not report how much memory a'
        ' compiled program needs; give --no_compile.'
    )
  return analysis


def _abstract_batch(experiment: Experiment) -> Any:
  rows = experiment.partitioner.rows
  return jax.tree.map(
      lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=rows),
      experiment.objective.abstract_batch(experiment),
  )


def fit_batch(
    experiment: Experiment,
    memory: int,
    log: Callable[[int, int | None], None] = lambda size, peak: None,
) -> Fit:
  """Finds the largest global batch whose train step fits, to `TOLERANCE`.

  Memory is assumed to grow with the batch. It falls by some 20 MiB where the
  loss turns from dense to ring, which matters on a device below about a GiB.
  Every size tried is compiled, which takes as long as at the start of a run.

  Args:
    experiment: a run; the search begins at its batch size.
    memory: bytes of a device.
    log: called with each size compiled and its peak, None where the compiler
      ran out of the device's memory.

  Raises:
    UserError: no batch fits.
  """
  limit = int(USABLE * memory)
  state = state_bytes(experiment)
  if state > limit:
    raise _does_not_fit('the state of parameters and optimizer', state, memory)

  def measure(size: int) -> float:
    try:
      needed = measure_peak(dataclasses.replace(experiment, batch_size=size))
    except OutOfMemory:
      log(size, None)
      return math.inf
    log(size, needed)
    return needed

  sizes = experiment.objective.batch_sizes(experiment)
  smallest = max(sizes.step, 2)  # One pair has no negatives.
  most = max(min(sizes.stop - 1, MAX_BATCH_SIZE), smallest)
  sizes = range(smallest, most + 1, sizes.step)
  peaks = search_sizes(measure, sizes, experiment.batch_size, state, limit)
  fitting = [size for size, needed in peaks.items() if needed <= limit]
  if not fitting:
    what = f'the step of {sizes[0]:,} pairs'
    raise _does_not_fit(what, peaks[sizes[0]], memory)
  largest = max(fitting)
  too_large = min((size for size in peaks if size > largest), default=None)
  return Fit(largest, int(peaks[largest]), too_large)


def search_sizes(
    measure: Callable[[int], float], sizes: range, start: int, fixed: int,
    limit: float,
) -> dict[int, float]:
  """Measures few sizes; the largest that fits is then known to `TOLERANCE`.

  Memory is assumed affine in the size: the next size to measure is where a line
  through two measured ones reaches the limit, or, each third time, the middle
  of the bracket. If none fits, the first size is measured; if all fit, the
  last.

  Args:
    measure: returns bytes of a size, infinite for too many to know.
    sizes: the sizes to choose from.
    start: the size near which the search begins.
    fixed: bytes that every size needs.
    limit: the bytes that are free.

  Returns:
    Bytes by measured size.
  """
  peaks: dict[int, float] = {}
  low, high = -1, len(sizes)  # Indices: the former fits, the latter does not.
  index = min(max((start - sizes[0]) // sizes.step, 0), len(sizes) - 1)
  while True:
    needed = peaks[sizes[index]] = measure(sizes[index])
    low, high = (index, high) if needed <= limit else (low, index)
    step = max(int(TOLERANCE * low), 1)
    if high - low <= step:
      return peaks
    # Far from all that is measured the line is not trusted.
    least = sizes[low] if low >= 0 else min(peaks) / _GROWTH
    most = sizes[high] if high < len(sizes) else max(peaks) * _GROWTH
    points = {0: fixed, **peaks}
    if low >= 0 and high < len(sizes):
      points = {size: peaks[size] for size in (sizes[low], sizes[high])}
    guess = _crossing(points, limit)
    if guess is None or len(peaks) % 3 == 0:
      guess = math.sqrt(least * most)
    guess = max(min(guess, most), least)
    index = int((guess - sizes[0]) // sizes.step)
    last = high - (step if high < len(sizes) else 1)
    index = max(min(index, last), low + step)


def _crossing(peaks: Mapping[int, float], limit: float) -> float | None:
  """Where the line through the two peaks nearest to the limit reaches it."""
  (x, y), (u, v) = sorted(
      peaks.items(), key=lambda point: abs(point[1] - limit)
  )[:2]
  slope = (v - y) / (u - x)
  return x + (limit - y) / slope if 0 < slope < math.inf else None


def _does_not_fit(what: str, needed: float, memory: int) -> UserError:
  needs = 'more than compiling it can get'
  if math.isfinite(needed):
    needs = f'{mib(needed)} MiB'
  return UserError(
      f'No batch fits: {what} needs {needs} a device, and at most {USABLE:.0%}'
      f' of its {mib(memory)} MiB may be used. {LESS}'
  )
