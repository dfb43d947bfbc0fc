"""A run before its first step: shapes, what it starts from, its data."""

from collections.abc import Iterator, Mapping
import hashlib
import json
import logging
import math
from typing import Any
import uuid

import jax
from jax.experimental import multihost_utils
import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.run.experiment import Experiment
from dualenc_jax.training import initial, step as step_lib
from dualenc_jax.training.checkpoints import Checkpoints
from dualenc_jax.training.step import Plan, TrainState

_LOG = logging.getLogger(__name__)


def make_plan(experiment: Experiment) -> Plan:
  """Checks the model against the mesh and traces its parameters.

  Raises:
    UserError: sizes that do not divide, rules that match nothing.
  """
  experiment.objective.check_mesh(experiment.partitioner)
  return step_lib.plan(
      experiment.objective,
      experiment.optimizer,
      experiment.partitioner,
      experiment.seed,
  )


def make_start(plan: Plan, experiment: Experiment) -> initial.Start | None:
  """What a run without a checkpoint of its own starts from; None: scratch."""
  source = experiment.initial_checkpoint
  if source is None or getattr(source, 'path', source) is None:
    return None
  return initial.plan_start(
      source,
      experiment.objective.facts,
      experiment.tokenizer.vocabulary,
      plan.abstract.params,
  )


def describe(experiment: Experiment, plan: Plan) -> Iterator[str]:
  """Lines on devices, parameters, steps, and those of the objective."""
  mesh = experiment.partitioner.mesh
  devices = mesh.devices.flatten()
  yield (
      f'Devices: {devices.size} {devices[0].device_kind} on'
      f' {jax.process_count()} host(s), mesh data {mesh.shape["data"]} x model'
      f' {mesh.shape["model"]}.'
  )
  params = jax.tree.leaves(plan.abstract.params)
  count = sum(math.prod(leaf.shape) for leaf in params)
  yield f'Parameters: {count:,} in {len(params)} arrays.'
  yield f'Steps: {experiment.steps}.'
  yield from experiment.objective.describe(experiment)


def initial_state(
    plan: Plan, checkpoints: Checkpoints, start: initial.Start | None
) -> tuple[TrainState, dict[str, Any]]:
  """The state to start from, and what was saved beside it.

  In this order: the newest checkpoint of this run that can be read; the
  parameters of `start`; from scratch. The last two have step 0 and
  a new run_id.
  """
  restored = checkpoints.restore(plan.abstract)
  if restored is not None:
    _LOG.info('Resuming from step %d.', restored[1]['step'])
    return restored
  state = plan.init()
  if start is not None:
    state = initial.start_from(start, state)
  return state, {'step': 0, 'run_id': uuid.uuid4().hex}


def data_position(experiment: Experiment) -> dict[str, Any]:
  """What the batch of a step depends on, besides the step.

  Raises:
    AssertionError: the hosts have different data.
  """
  headers = [cache.header for cache in experiment.caches]
  position = {
      name: headers[0][name]
      if len(headers) == 1
      else [header[name] for header in headers]
      for name in ('task', 'source')
  }
  position |= {
      'vocabulary': headers[0]['vocabulary'],
      'examples': sum(len(cache) for cache in experiment.caches),
      'query_length': experiment.tokenizer.query_length,
      'passage_length': experiment.tokenizer.passage_length,
      **experiment.tokenizer.prefixes,
      'global_batch': experiment.batch_size,
      'seed': experiment.seed,
  }
  if experiment.rates is not None:
    position['rates'] = [round(rate, 9) for rate in experiment.rates]
  if jax.process_count() > 1:
    # They must lay out alike, too, or would wait for each other for ever.
    agreed = json.dumps(position) + repr(experiment.batches.shapes)
    digest = hashlib.sha256(agreed.encode()).digest()
    multihost_utils.assert_equal(
        np.frombuffer(digest, np.uint8),
        f'The hosts have different training data; this one: {position}.',
    )
  return position


def check_same_data(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
  """Refuses to resume on examples that are not those of the checkpoint."""
  changes = [
      f'{name}: {saved.get(name)} -> {value}'
      for name, value in now.items()
      if saved.get(name) != value
  ]
  if changes:
    raise UserError(
        'The training data is not what this run was trained on so far: '
        + '; '.join(changes)
        + '. Put it back, use another MODEL_DIR, or give --allow_config_change'
        ' to go on with it.'
    )
