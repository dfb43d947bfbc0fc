"""What a run will be, in a few lines, before it starts."""

from collections.abc import Iterator

import jax

from dualenc_jax.run import plan as plan_lib
from dualenc_jax.run.experiment import Experiment


def describe(experiment: Experiment, plan: plan_lib.Plan) -> Iterator[str]:
  """Lines on devices, parameters, steps, and those of the objective."""
  mesh = experiment.partitioner.mesh
  devices = mesh.devices.flatten()
  yield (
      f'Devices: {devices.size} {devices[0].device_kind} on'
      f' {jax.process_count()} host(s), mesh data {mesh.shape["data"]} x model'
      f' {mesh.shape["model"]}.'
  )
  yield (
      f'Parameters: {plan_lib.count_params(plan):,} in'
      f' {len(plan_lib.param_paths(plan))} arrays.'
  )
  yield f'Steps: {experiment.steps}.'
  yield from experiment.objective.describe(experiment)
