"""What a run will be, in a few lines, before it starts."""

from collections.abc import Iterator

import jax

from dualenc_jax.experiment import Experiment
from dualenc_jax.training import plan as plan_lib


def describe(experiment: Experiment, plan: plan_lib.Plan) -> Iterator[str]:
  """Lines on devices, parameters, batch and negatives."""
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
  tokenizer = experiment.tokenizer
  yield (
      f'Global batch: {experiment.batch_size} pairs, query'
      f' {tokenizer.query_length} and passage {tokenizer.passage_length}'
      f' tokens, {experiment.steps} steps.'
  )
  yield f'Loss: {type(experiment.loss).__name__}.'
  counts = plan_lib.negatives_per_query(experiment)
  if counts:
    parts = ', '.join(f'{count:,} {name}' for name, count in counts.items())
    yield (
        f'Negatives per query: {sum(counts.values()):,} ({parts}), less'
        ' duplicates.'
    )
