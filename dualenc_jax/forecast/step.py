"""The train step on an absent slice: memory, time, transfers."""

from collections.abc import Callable
import dataclasses

import jax

from dualenc_jax.forecast import layers, slices
from dualenc_jax.forecast.program import Forecast, measured
from dualenc_jax.run import memory
from dualenc_jax.run.experiment import Experiment


def forecast(experiment: Experiment, whole: bool = False) -> Forecast:
  """Compiles the train step for the devices of its `SlicePartitioner`.

  `whole` compiles all layers; see `layers.of_all`.
  """
  return _of_layers(experiment, _measured, whole)


def peak(experiment: Experiment, whole: bool = False) -> int:
  """Bytes a device, sooner than by `forecast`."""
  return _of_layers(experiment, _memory, whole).peak


def _of_layers(
    experiment: Experiment,
    measured: Callable[[Experiment], Forecast],
    whole: bool,
) -> Forecast:
  inputs = memory.named(memory.input_bytes(experiment))
  return layers.of_all(experiment, measured, inputs, whole)


def _memory(experiment: Experiment) -> Forecast:
  lowered, what = memory.lower_step(experiment)
  on = slices.of(experiment.partitioner)
  step = measured(lowered, what, on, memory_alone=True)
  inputs = memory.named(memory.input_bytes(experiment))
  rest = step.stats.total - sum(inputs.values())
  return Forecast({**inputs, 'beside them': rest}, step)


def _measured(experiment: Experiment) -> Forecast:
  on = slices.of(experiment.partitioner)

  def loss(lowered: jax.stages.Lowered, what: str) -> memory.Stats:
    return measured(lowered, what, on, memory_alone=True).stats

  step = measured(*memory.lower_step(experiment), on)
  parts = memory.parts_of(experiment, step.stats, loss)
  return Forecast(memory.named(dataclasses.asdict(parts)), step)
