"""What a run starts from or goes on with, and that its data is the same."""

from collections.abc import Mapping
import hashlib
import json
import logging
from typing import Any
import uuid

import jax
from jax.experimental import multihost_utils
import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.run.experiment import Experiment
from dualenc_jax.training import initial
from dualenc_jax.training.checkpoints import Checkpoints
from dualenc_jax.training.step import Plan, TrainState

_LOG = logging.getLogger(__name__)


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
      name: _only([header[name] for header in headers])
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


def _only(values: list[str]) -> str | list[str]:
  """The value of one cache, or the list of those of several."""
  return values[0] if len(values) == 1 else values


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
