"""Memory of a train step as its compiler plans it; nothing is allocated."""

from collections.abc import Iterator, Mapping
import dataclasses
import math
import re
from typing import Any, NamedTuple

import jax

from dualenc_jax.training.experiment import Experiment, make_plan
from dualenc_jax.utils.errors import UserError

# What takes less memory.
LESS = (
    'Encode in small micro-batches (--gin.MICRO_BATCH_SIZE=), shard the'
    ' parameters over the devices (--gin_file=partitioning/fsdp.gin), recompute'
    ' activations (--gin.models.T5Encoder.remat=True), use'
    ' --gin.DTYPE=bfloat16, fewer tokens, or a smaller model.'
)
# Of the largest arrays, which the TPU's compiler lists where it comes so far.
_ALLOCATION = re.compile(
    r'Size: ([\d.]+[KMGT])\n(?: *Operator: .*?op_name="([^"]*)".*\n)?'
    r' *Shape: (\w+\[[\d,]*\])'
)
_LARGEST = 3
FEWER_PAIRS = f'--fit_batch finds the largest batch that fits. {LESS}'


class OutOfMemory(UserError):
  """The compiler ran out of the device's memory."""


@dataclasses.dataclass(frozen=True)
class Parts:
  """Bytes a device that one train step needs; they add up to its peak.

  `params`, `optimizer`, `memory` (of the objective, such as a negative cache)
  and `batch` are the step's inputs, by shapes and shardings; new values of the
  first three take the place of the old. The compiler plans the others.

  Attributes:
    activations: temporaries of the whole step less `loss`: activations that
      wait for the backward pass, gradients, updates, buffers of collectives.
    loss: temporaries of the part that the objective compiles apart and its
      gradient, such as the loss of embeddings, without the embeddings and
      gradients that enter and leave. 0 if it has no such part.
    other: metrics, the program where it lies in the device's memory, and
      padding of inputs to the device's tiles; less inputs that the step never
      reads.
  """

  params: int
  optimizer: int
  memory: int
  batch: int
  activations: int
  loss: int
  other: int

  @property
  def peak(self) -> int:
    """All of the above: what the device must have free for a step."""
    return sum(dataclasses.astuple(self))


# What a table calls parts, where it is another name than their own.
_NAMES = {
    'params': 'parameters',
    'optimizer': 'optimizer state',
    'activations': 'activations, gradients',
}


def named(parts: Mapping[str, int]) -> dict[str, int]:
  """Fields of `Parts` by their names in a table; `memory` only if any."""
  shown = {n: size for n, size in parts.items() if size or n != 'memory'}
  return {_NAMES.get(name, name): size for name, size in shown.items()}


class Stats(NamedTuple):
  """Bytes a device that the compiler plans for a program.

  Attributes:
    total: bytes that must be free.
    temporaries: their part that is neither inputs nor outputs.
  """

  total: int
  temporaries: int


def table(
    parts: Mapping[str, int], available: int | None = None
) -> Iterator[str]:
  """Lines of a table of bytes, in MiB, with their sum and the device's."""
  peak = sum(parts.values())
  for name, size in {**parts, 'peak': peak}.items():
    yield f'{name:<22} {mib(size):>12}'
  if available is not None:
    share = f'of which the peak is {peak / available:.1%}'
    yield f'{"device":<22} {mib(available):>12}, {share}'


def mib(size: float) -> str:
  """Bytes as MiB: '1,024.0'."""
  return f'{size / 2**20:,.1f}'


def measure(lowered: jax.stages.Lowered, what: str) -> Stats:
  """Compiles a program and measures it; raises as `by_part`."""
  return stats(compile_program(lowered, what))


def compile_program(
    lowered: jax.stages.Lowered, what: str, less: str = FEWER_PAIRS
) -> jax.stages.Compiled:
  """Compiles; raises OutOfMemory with the program's name and a remedy."""
  try:
    return lowered.compile()
  except jax.errors.JaxRuntimeError as e:
    if 'RESOURCE_EXHAUSTED' not in str(e):
      raise
    # As the TPU's compiler writes it.
    found = re.search(
        r'(?:\(([\d.]+[KMGT])\) exceeds available \w+ \(([\d.]+[KMGT])\)'
        r'|Used ([\d.]+[KMGT]) of ([\d.]+[KMGT]) hbm)',
        str(e),
    )
    amount = 'can get on this device'
    if found:
      needed, available = filter(None, found.groups())
      amount = f'may use: {needed}iB of {available}iB a device'
    largest = '; '.join(
        f'{size}iB for {shape}{place and f" of {place}"}'
        for size, place, shape in _ALLOCATION.findall(str(e))[:_LARGEST]
    )
    raise OutOfMemory(
        f'{what} needs more memory than compiling it {amount}.'
        f'{largest and f" Its largest arrays: {largest}."} {less}'
    ) from e


def stats(compiled: jax.stages.Compiled) -> Stats:
  """The bytes of a compiled program.

  The total is not `peak_memory_in_bytes`, which leaves the temporaries out on
  the CPU.
  """
  found = compiled.memory_analysis()
  if found is None:
    raise UserError(
        f'The backend {jax.default_backend()} does not report how much memory a'
        ' compiled program needs; give --no_compile.'
    )
  arguments, outputs = found.argument_size_in_bytes, found.output_size_in_bytes
  total = arguments + outputs - found.alias_size_in_bytes
  total += found.temp_size_in_bytes + found.generated_code_size_in_bytes
  return Stats(total, found.temp_size_in_bytes)


def by_part(experiment: Experiment) -> Parts:
  """Compiles the train step, and the loss on its own, for their bytes."""
  return parts_of(experiment, measure(*lower_step(experiment)))


def parts_of(experiment: Experiment, step: Stats) -> Parts:
  """`by_part` of a train step that is measured; compiles the loss alone."""
  # Inside of the step the compiler may need less for the loss than on its own.
  loss = min(_loss_bytes(experiment), step.temporaries)
  inputs = input_bytes(experiment)
  return Parts(
      **inputs, activations=step.temporaries - loss, loss=loss,
      other=step.total - sum(inputs.values()) - step.temporaries,
  )


def input_bytes(experiment: Experiment) -> dict[str, int]:
  """The `Parts` of a step's inputs, by name; compiles nothing."""
  state = make_plan(experiment).abstract
  return {
      'params': device_bytes(state.params),
      'optimizer': device_bytes((state.opt_state, state.step)),
      'memory': device_bytes(state.memory),
      'batch': device_bytes(_batch(experiment)),
  }


def peak(experiment: Experiment) -> int:
  """All bytes a device of the compiled train step; raises as `by_part`."""
  return measure(*lower_step(experiment)).total


def state(experiment: Experiment) -> int:
  """Bytes a device of parameters and optimizer state; compiles nothing."""
  return device_bytes(make_plan(experiment).abstract)


def device_bytes(tree: Any) -> int:
  """Bytes of abstract arrays on one device, by their shardings."""
  return sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(tree)
  )


def _batch(experiment: Experiment) -> Any:
  return _on_rows(experiment.objective.abstract_batch(experiment), experiment)


def _on_rows(tree: Any, experiment: Experiment) -> Any:
  rows = experiment.partitioner.rows
  return jax.tree.map(
      lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=rows), tree
  )


def lower_step(experiment: Experiment) -> tuple[jax.stages.Lowered, str]:
  """The train step lowered for the devices of the mesh, and its name."""
  plan = make_plan(experiment)
  step: Any = plan.train_step
  lowered = step.lower(plan.abstract, _batch(experiment))
  return lowered, f'The train step of {experiment.batch_size:,} pairs'


def _loss_bytes(experiment: Experiment) -> int:
  """Temporaries of the part that is compiled apart, and of its gradient."""
  plan = make_plan(experiment)
  partitioner = experiment.partitioner
  with partitioner.scope():
    found = experiment.objective.apart(plan.abstract.params, _batch(experiment))
  if found is None:
    return 0
  part, params, rows, rest = found

  def loss(params, rows, rest):
    with partitioner.scope():
      return part(params, rows, rest)

  whole, per_row = partitioner.replicated, partitioner.rows
  gradient = jax.jit(
      jax.value_and_grad(loss, argnums=(0, 1), has_aux=True),
      out_shardings=(whole, (whole, per_row)),
  )
  rows, rest = _on_rows((rows, rest), experiment)
  lowered = gradient.lower(params, rows, rest)
  what = f'The loss of {experiment.batch_size:,} pairs'
  return measure(lowered, what).temporaries
