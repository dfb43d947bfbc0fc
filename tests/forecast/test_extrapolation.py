"""Deep encoders, forecast by few of their layers."""

import dataclasses

import pytest
import tiny_training

from dualenc_jax.forecast import train_step
from dualenc_jax.forecast.train_step import CollectiveStats, Forecast
from dualenc_jax.objectives import Contrastive


@dataclasses.dataclass(frozen=True)
class Run:
  objective: Contrastive


@pytest.mark.parametrize('all_layers', [False, True])
def test_layers_of_each_encoder_are_added(all_layers):
  model = tiny_training.make_model(separate_towers=True, num_layers=12)
  model = model.clone(encoder=model.encoder.clone(num_layers=3))
  measured = []

  def measure(run):
    towers = run.objective.model
    layers = towers.encoder.num_layers, towers.passage_encoder.num_layers
    measured.append(layers)
    return Forecast(
        {'parameters': 100 + 7 * layers[0] + 5 * layers[1], 'other': 9},
        {'all-gather': CollectiveStats(1 + sum(layers), 10.0 * layers[1])},
    )

  run = Run(Contrastive(model, tiny_training.LOSS))
  found = train_step.extrapolate(run, measure, all_layers)
  assert measured == ([(3, 12)] if all_layers else [(2, 2), (1, 2), (2, 1)])
  assert found.parts == {'parameters': 100 + 7 * 3 + 5 * 12, 'other': 9}
  assert found.collectives == {'all-gather': CollectiveStats(16, 120)}
  assert found.layers == (None if all_layers else 2)


def test_few_layers_are_compiled_as_they_are():
  run = Run(Contrastive(tiny_training.make_model(), tiny_training.LOSS))
  found = Forecast({'parameters': 1})
  assert train_step.extrapolate(run, lambda given: found) is found
