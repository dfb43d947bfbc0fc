"""The train step on a slice that is not there: memory, time, transfers."""

import dataclasses

from dualenc_jax.forecast import layers
from dualenc_jax.forecast.program import Forecast, measured
from dualenc_jax.run import memory
from dualenc_jax.run.experiment import Experiment


def forecast(experiment: Experiment, whole: bool = False) -> Forecast:
  """Compiles the train step for the devices of its partitioner.

  Args:
    experiment: of a `slices.SlicePartitioner`.
    whole: all layers are compiled; see `layers.of_all`.

  Raises:
    UserError: as `memory.by_part`.
  """
  inputs = memory.named(memory.input_bytes(experiment))
  return layers.of_all(experiment, _measured, inputs, whole)


def _measured(experiment: Experiment) -> Forecast:
  step = measured(*memory.lower_step(experiment), experiment.partitioner.slice)
  parts = memory.parts_of(experiment, step.stats)
  return Forecast(memory.named(dataclasses.asdict(parts)), step)
