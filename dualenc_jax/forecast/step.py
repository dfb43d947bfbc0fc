"""The train step on a slice that is not there: memory, time, transfers."""

from collections.abc import Iterator, Mapping, Set
import dataclasses
from typing import Any, NamedTuple

from flax import linen as nn

from dualenc_jax.forecast import kernels
from dualenc_jax.forecast.parts import part_of
from dualenc_jax.forecast.schedule import Schedule, Transfer
from dualenc_jax.forecast.slices import Generation
from dualenc_jax.run import memory
from dualenc_jax.run.experiment import Experiment

# Layers of an encoder that are compiled; those of deeper ones are alike.
_COMPILED = 2


class Sent(NamedTuple):
  """What collectives of one kind send and get in a step.

  Attributes:
    times: that they run.
    bytes: of their results on a device.
    alone: of these, what nothing else is done beside.
    exposed: seconds that the device waits for them, an estimate.
  """

  times: float = 0
  bytes: float = 0
  alone: float = 0
  exposed: float = 0

  def plus(self, transfer: Transfer, on: Generation) -> 'Sent':
    size = transfer.times * transfer.bytes
    return Sent(
        self.times + transfer.times,
        self.bytes + size,
        self.alone + (0 if transfer.hidden else size),
        self.exposed + transfer.times * transfer.exposed(on.link, on.clock),
    )


@dataclasses.dataclass(frozen=True)
class Forecast:
  """What the compiler expects of a step on one device.

  Attributes:
    parts: bytes.
    cycles: by part of the step; collectives, gathers, scatters and sorts have
      none.
    sent: by kind of collective.
    layers: the compiled layers of encoders, where the rest is extrapolated.
    kernels: names of those whose cycles are from their own schedules.
    unknown: names of kernels whose cycles are not known.
  """

  parts: memory.Parts
  cycles: Mapping[str, float]
  sent: Mapping[str, Sent]
  layers: int | None
  kernels: Set[str] = frozenset()
  unknown: Set[str] = frozenset()


def forecast(experiment: Experiment, whole: bool = False) -> Forecast:
  """Compiles the train step for the devices of its partitioner.

  Layers of one encoder are alike. So deep encoders are compiled with two
  layers, and each of them once more with one: the difference is what a layer
  costs.

  Args:
    experiment: of a `slices.SlicePartitioner`.
    whole: all layers are compiled.

  Raises:
    UserError: as `memory.by_part`.
  """
  deep = [] if whole else _deep_encoders(experiment.objective)
  if not deep:
    return _measured(experiment)
  few = {encoder: _COMPILED for encoder in deep}
  base = _measured(_with_layers(experiment, few))
  total = base
  for encoder in deep:
    less = _measured(_with_layers(experiment, few | {encoder: _COMPILED - 1}))
    total = _plus(total, base, less, encoder.num_layers - _COMPILED)
  # Shapes and shardings tell these; nothing is compiled for that.
  exact = memory.input_bytes(experiment)
  parts = dataclasses.replace(total.parts, **exact)
  return dataclasses.replace(total, parts=parts, layers=_COMPILED)


def _measured(experiment: Experiment) -> Forecast:
  step = memory.compile_step(experiment)
  on = experiment.partitioner.slice
  text, known, unknown = kernels.timed(step.as_text(), on)
  schedule = Schedule(text)
  cycles: dict[str, float] = {}
  for operation, times in schedule.operations():
    if operation.cycles:
      part = part_of(operation)
      cycles[part] = cycles.get(part, 0.0) + times * operation.cycles
  sent: dict[str, Sent] = {}
  for transfer in schedule.transfers():
    before = sent.get(transfer.kind, Sent())
    sent[transfer.kind] = before.plus(transfer, on.generation)
  parts = memory.parts_of(experiment, step)
  return Forecast(parts, cycles, sent, None, known, unknown)


def _plus(
    total: Forecast, base: Forecast, less: Forecast, layers: int
) -> Forecast:
  """With so many more layers, each what `base` has above `less`."""

  def more(total: float, base: float, less: float) -> float:
    return total + layers * max(base - less, 0)

  parts = memory.Parts(*(
      int(more(*values))
      for values in zip(*map(dataclasses.astuple, (
          total.parts, base.parts, less.parts
      )))
  ))
  cycles = {
      part: more(
          total.cycles.get(part, 0.0), value, less.cycles.get(part, 0.0)
      )
      for part, value in base.cycles.items()
  }
  sent = {
      kind: Sent(*(
          more(*values)
          for values in zip(
              total.sent.get(kind, Sent()), found, less.sent.get(kind, Sent())
          )
      ))
      for kind, found in base.sent.items()
  }
  return dataclasses.replace(total, parts=parts, cycles=cycles, sent=sent)


def _deep_encoders(tree: Any) -> list[nn.Module]:
  """Encoders that have more layers than are compiled, one after another."""
  found = []
  for encoder in _encoders(tree):
    if encoder.num_layers > _COMPILED and encoder not in found:
      found.append(encoder)
  return found


def _encoders(tree: Any) -> Iterator[nn.Module]:
  if isinstance(tree, nn.Module) and hasattr(tree, 'num_layers'):
    if not getattr(tree, 'scan_layers', False):
      yield tree
  elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
    for field in dataclasses.fields(tree):
      if field.init and field.name not in ('parent', 'name'):
        yield from _encoders(getattr(tree, field.name))


def _with_layers(
    experiment: Experiment, layers: Mapping[nn.Module, int]
) -> Experiment:

  def changed(tree: Any) -> Any:
    if isinstance(tree, nn.Module) and hasattr(tree, 'num_layers'):
      return tree.clone(num_layers=layers[tree]) if tree in layers else tree
    if not dataclasses.is_dataclass(tree) or isinstance(tree, type):
      return tree
    values = {
        field.name: changed(getattr(tree, field.name))
        for field in dataclasses.fields(tree)
        if field.init and field.name not in ('parent', 'name')
    }
    old = {name: getattr(tree, name) for name in values}
    differ = {n: v for n, v in values.items() if v is not old[n]}
    if not differ:
      return tree
    if isinstance(tree, nn.Module):
      return tree.clone(**differ)
    return dataclasses.replace(tree, **differ)

  return dataclasses.replace(
      experiment, objective=changed(experiment.objective)
  )
