"""Memory of the train step as the compiler plans it; nothing is allocated."""

from collections.abc import Iterator
import dataclasses
import math
import re
from typing import Any

import jax

from dualenc_jax.errors import UserError
from dualenc_jax.run.experiment import Experiment, make_plan
from dualenc_jax.training.step import Plan

# What takes less memory.
LESS = (
    'Encode in small micro-batches (--gin.MICRO_BATCH_SIZE=), shard the'
    ' parameters over the devices (--gin_file=partitioning/fsdp.gin), recompute'
    ' activations (--gin.models.T5Encoder.remat=True), use'
    ' --gin.DTYPE=bfloat16, fewer tokens, or a smaller model.'
)


class OutOfMemory(UserError):
  """The compiler ran out of the device's memory."""


@dataclasses.dataclass(frozen=True)
class Parts:
  """Bytes a device that one train step needs; they add up to its peak.

  `params`, `optimizer`, `memory` and `batch` are the step's inputs, from shapes
  and shardings. What is new of the first three takes the place of the old. The
  others are what the compiler plans beside them.

  Attributes:
    params: parameters, those of the loss among them.
    optimizer: optimizer state, and the count of steps.
    memory: of the objective, such as a negative cache.
    batch: tokens and fingerprints.
    activations: temporaries of the whole step less `loss`: activations that
      wait for the backward pass, gradients, updates, what the collectives
      need.
    loss: temporaries of what the objective has compiled apart and its
      gradient, such as the loss of embeddings; the embeddings and gradients,
      which enter and leave, are not among them. 0 if it has no such part.
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

  def describe(self, available: int | None = None) -> Iterator[str]:
    """Lines of a table in MiB; `available`: bytes of the device, if known."""
    parts = {
        'parameters': self.params,
        'optimizer state': self.optimizer,
        **({'memory': self.memory} if self.memory else {}),
        'batch': self.batch,
        'activations, gradients': self.activations,
        'loss': self.loss,
        'other': self.other,
        'peak': self.peak,
    }
    for name, size in parts.items():
      yield f'{name:<22} {mib(size):>12}'
    if available is not None:
      share = f'of which the peak is {self.peak / available:.1%}'
      yield f'{"device":<22} {mib(available):>12}, {share}'


def mib(size: int) -> str:
  """Bytes as MiB: '1,024.0'."""
  return f'{size / 2**20:,.1f}'


def by_part(experiment: Experiment) -> Parts:
  """Compiles the train step, and the loss on its own, and says what they need.

  Raises:
    OutOfMemory: the compiler ran out of the device's memory.
    UserError: the backend does not tell.
  """
  return parts_of(experiment, compile_step(experiment))


def parts_of(experiment: Experiment, step: jax.stages.Compiled) -> Parts:
  """`by_part` of a train step that `compile_step` has compiled."""
  plan = make_plan(experiment)
  analysis = _analysis(step)
  temporaries = analysis.temp_size_in_bytes
  # Inside of the step the compiler may need less for the loss than on its own.
  loss = min(_loss_bytes(experiment, plan), temporaries)
  inputs = input_bytes(experiment)
  return Parts(
      **inputs,
      activations=temporaries - loss,
      loss=loss,
      other=_total(analysis) - sum(inputs.values()) - temporaries,
  )


def input_bytes(experiment: Experiment) -> dict[str, int]:
  """`Parts` that a step takes in, by name; compiles nothing."""
  state = make_plan(experiment).abstract
  return {
      'params': _device_bytes(state.params),
      'optimizer': _device_bytes((state.opt_state, state.step)),
      'memory': _device_bytes(state.memory),
      'batch': _device_bytes(_batch(experiment)),
  }


def peak(experiment: Experiment) -> int:
  """Bytes a device of the compiled train step, in all; raises as `by_part`."""
  return _total(_analysis(compile_step(experiment)))


def state(experiment: Experiment) -> int:
  """Bytes a device of parameters and optimizer state; compiles nothing."""
  return _device_bytes(make_plan(experiment).abstract)


def _device_bytes(tree: Any) -> int:
  """Bytes of abstract arrays on one device, by their shardings."""
  return sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(tree)
  )


def _batch(experiment: Experiment) -> dict[str, jax.ShapeDtypeStruct]:
  batch = experiment.objective.abstract_batch(experiment)
  return _on_rows(batch, experiment)


def _on_rows(tree: Any, experiment: Experiment) -> Any:
  rows = experiment.partitioner.rows
  return jax.tree.map(
      lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=rows), tree
  )


def compile_step(experiment: Experiment) -> jax.stages.Compiled:
  """The train step for the devices of the mesh; raises `OutOfMemory`."""
  plan = make_plan(experiment)
  return _compile(
      plan.train_step.lower(plan.abstract, _batch(experiment)),
      f'The train step of {experiment.batch_size:,} pairs',
  )


def _loss_bytes(experiment: Experiment, plan: Plan) -> int:
  """Temporaries of the part that is compiled apart, and of its gradient."""
  partitioner = experiment.partitioner
  with partitioner.scope():
    found = experiment.objective.apart(plan.abstract.params, _batch(experiment))
  if found is None:
    return 0
  part, params, rows, rest = found

  def loss(params, rows, rest):
    with partitioner.scope():
      return part(params, rows, rest)

  gradient = jax.jit(
      jax.value_and_grad(loss, argnums=(0, 1), has_aux=True),
      out_shardings=(
          partitioner.replicated,
          (partitioner.replicated, partitioner.rows),
      ),
  )
  rows, rest = _on_rows((rows, rest), experiment)
  compiled = _compile(
      gradient.lower(params, rows, rest),
      f'The loss of {experiment.batch_size:,} pairs',
  )
  return _analysis(compiled).temp_size_in_bytes


def _compile(lowered: jax.stages.Lowered, what: str) -> jax.stages.Compiled:
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
    raise OutOfMemory(
        f'{what} needs more memory than compiling it {amount}.'
        ' --fit_batch finds the largest batch that fits.'
        + (f' {LESS}' if found else '')
    ) from e


def _analysis(compiled: jax.stages.Compiled) -> Any:
  """The compiler's CompiledMemoryStats, bytes a device."""
  analysis = compiled.memory_analysis()
  if analysis is None:
    raise UserError(
        f'The backend {jax.default_backend()} does not tell how much memory a'
        ' compiled program needs; give --no_compile.'
    )
  return analysis


def _total(analysis: Any) -> int:
  """Bytes that must be free on a device for a compiled program.

  Its `peak_memory_in_bytes` leaves the temporaries out on the CPU.
  """
  return (
      analysis.argument_size_in_bytes
      + analysis.temp_size_in_bytes
      + analysis.output_size_in_bytes
      - analysis.alias_size_in_bytes
      + analysis.generated_code_size_in_bytes
  )
