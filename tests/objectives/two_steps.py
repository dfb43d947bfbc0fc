"""Two steps of an objective on any mesh, against one device and padding."""

import optax
import pytest
import tiny_training

from dualenc_jax.training import Optimizer, Partitioner, step as step_lib


def losses(partitioner, objective, make_batch):
  """Of two steps with dropout; make_batch(layout, cells, step)."""
  plan = step_lib.plan(
      objective, Optimizer(optax.adafactor(1e-2), lambda step: 1e-2),
      partitioner, 0,
  )
  micro, devices = objective.micro_batch_size, partitioner.mesh.shape['data']
  state, values = plan.init(), []
  for step in range(2):
    batch = make_batch(objective.layout, devices, micro, step)
    state, metrics = plan.train_step(state, partitioner.to_device(batch))
    values.append(float(metrics['loss']))
  return values


def assert_same(padded, objective, model_parallel, make_batch, size, rel):
  """The losses of an objective are those of a padded one on one device."""

  def batch(layout, devices, micro, step):
    return make_batch(layout, devices * (size // (micro or size)), step)

  wanted = losses(tiny_training.OneDevice(), padded, batch)
  found = losses(Partitioner(model_parallel), objective, batch)
  assert found == pytest.approx(wanted, rel=rel)
  assert found[0] != found[1]
