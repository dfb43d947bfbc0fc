"""The train step on an absent slice."""

from collections.abc import Callable
import dataclasses

from dualenc_jax.forecast import layers
from dualenc_jax.forecast.program import collectives, Forecast
from dualenc_jax.training import memory
from dualenc_jax.training.experiment import Experiment


def forecast(experiment: Experiment, whole: bool = False) -> Forecast:
  """Compiles the train step for the devices of a `SlicePartitioner`.

  `whole` compiles all layers; see `layers.of_all`.
  """
  return _of_layers(experiment, _by_part, whole)


def peak(experiment: Experiment, whole: bool = False) -> int:
  """Bytes a device, sooner than by `forecast`."""
  return _of_layers(experiment, _total, whole).peak


def _of_layers(
    experiment: Experiment,
    measured: Callable[[Experiment], Forecast],
    whole: bool,
) -> Forecast:
  inputs = memory.named(memory.input_bytes(experiment))
  return layers.of_all(experiment, measured, inputs, whole)


def _total(experiment: Experiment) -> Forecast:
  inputs = memory.named(memory.input_bytes(experiment))
  rest = memory.peak(experiment) - sum(inputs.values())
  return Forecast({**inputs, 'beside them': rest})


def _by_part(experiment: Experiment) -> Forecast:
  compiled = memory.compile_program(*memory.lower_step(experiment))
  parts = memory.parts_of(experiment, memory.stats(compiled))
  sent = collectives(compiled.as_text() or '')
  return Forecast(memory.named(dataclasses.asdict(parts)), sent)
