"""The training loop: restore, step, report, evaluate, save."""

from collections.abc import Callable, Mapping
import dataclasses
import hashlib
import json
import logging
import time
from typing import Any
import uuid

import jax
from jax.experimental import multihost_utils
import numpy as np

from dualenc_jax.data.batches import Batches
from dualenc_jax.errors import UserError
from dualenc_jax.evaluation import evaluation
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.interop import own
from dualenc_jax.losses import metrics as metrics_lib
from dualenc_jax.objectives import embedding
from dualenc_jax.run import plan as plan_lib, summary
from dualenc_jax.run.experiment import Experiment
from dualenc_jax.training import initial, step as step_lib
from dualenc_jax.training.checkpoints import Checkpoints
from dualenc_jax.training.reporting import Reporter

_LOG = logging.getLogger(__name__)


def train(
    experiment: Experiment,
    plan: plan_lib.Plan,
    config: str,
    ready: Callable[[], None] = lambda: None,
    allow_other_data: bool = False,
    started: float | None = None,
) -> Mapping[str, float]:
  """Trains, or goes on training, until `experiment.steps`.

  Args:
    experiment: the run.
    plan: `plan.make_plan` of it.
    config: its gin config, saved in every checkpoint.
    ready: called once data and checkpoints are known to be good.
    allow_other_data: resume although the examples are not those of before.
    started: `time.perf_counter()` at the program's start, for the log.

  Returns:
    Metrics of the last evaluation on the validation split; {} without one.

  Raises:
    UserError: bad input, a loss or gradient that is not finite, or a disk that
      is full.
  """
  checkpoints = Checkpoints(experiment.model_dir, experiment.keep_checkpoints)
  # Its errors, before texts are tokenised.
  start = None if checkpoints.steps() else plan_lib.make_start(plan, experiment)
  batches = experiment.batches
  state, meta = initial_state(plan, checkpoints, start)
  first, data = meta['step'], data_position(experiment, batches)
  if first and not allow_other_data:
    check_same_data(meta['data'], data)
  for line in summary.of_data(experiment, batches, first):
    _LOG.info('%s', line)
  ready()
  evaluator = PeriodicEvaluation(experiment, plan)
  cells = plan.partitioner.host_rows(batches.cells)
  paths = plan_lib.param_paths(plan)
  reporter = Reporter(
      experiment.model_dir, first, experiment.steps, experiment.batch_size
  )

  def report(step: int, metrics: Any) -> None:
    values = jax.device_get(metrics)
    bad = step_lib.non_finite_tensors(values, paths)
    if bad:
      more = f' and {len(bad) - 3} more' if len(bad) > 3 else ''
      raise UserError(
          f'Step {step}: {", ".join(bad[:3])}{more} is not finite. The run has'
          ' stopped; the checkpoints before this step are kept. Lower the'
          ' learning rate or raise the temperature, and run again.'
      )
    error = values.get('norm_error', 0.0)
    if error > metrics_lib.NORM_TOLERANCE:
      raise UserError(
          f'Step {step}: the norm of an embedding is off 1 by {error:.3g}, so'
          ' that its dot products are no cosines. The run has stopped;'
          ' normalise what the model returns, or set'
          ' losses.Similarity.check_norms = False.'
      )
    del values['gradient_squares']
    reporter.step(step, values)

  def save(step: int) -> None:
    checkpoints.save(
        state,
        step,
        {
            'run_id': meta['run_id'],
            'data': {**data, 'next_step': step},
            'model': own.describe(experiment.model),
            'config': config,
        },
    )

  results, late, seen = {}, None, set()
  try:
    for step in range(first, experiment.steps):
      batch = plan.partitioner.to_device(batches(step, cells))
      shape = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
      if seen and shape not in seen:
        _LOG.info(
            'Step %d: the texts need another shape of batch, number %d of at'
            ' most %d; compiling for it.',
            step,
            len(seen) + 1,
            len(batches.shapes),
        )
      seen.add(shape)
      with jax.transfer_guard('disallow'):
        state, metrics = plan.train_step(state, batch)
      # The metrics of a step are fetched when the next one is under way.
      if late is not None:
        report(*late)
      if step == first and started is not None:
        jax.block_until_ready(metrics)
        _LOG.info(
            'First step done %.1f s after the start.',
            time.perf_counter() - started,
        )
      late = step + 1, metrics
      done = step + 1
      last = done == experiment.steps
      evaluate_now = evaluator.is_due(done, last)
      save_now = last or done % experiment.checkpoint_every == 0
      if evaluate_now or save_now:
        report(*late)
        late = None
        if save_now:
          save(done)
        if evaluate_now:
          results = evaluator(state.params)
          reporter.scalars('validation', done, results)
          reporter.line(f'step {done}: ' + format_metrics(results))
        reporter.pause()
  finally:
    try:
      reporter.close()
    finally:
      checkpoints.wait()
  return results


def data_position(experiment: Experiment, batches: Batches) -> dict[str, Any]:
  """What the batch of a step depends on, besides the step."""
  headers = [cache.header for cache in batches.caches]
  position = {
      name: _only([header[name] for header in headers])
      for name in ('task', 'source')
  }
  position |= {
      'vocabulary': headers[0]['vocabulary'],
      'examples': batches.num_examples,
      'query_length': experiment.tokenizer.query_length,
      'passage_length': experiment.tokenizer.passage_length,
      **experiment.tokenizer.prefixes,
      'global_batch': experiment.batch_size,
      'seed': experiment.seed,
  }
  if batches.rates is not None:
    position['rates'] = [round(rate, 9) for rate in batches.rates]
  if jax.process_count() > 1:
    # They must lay out alike, too, or would wait for each other for ever.
    agreed = json.dumps(position) + repr(batches.shapes)
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


def initial_state(
    plan: plan_lib.Plan, checkpoints: Checkpoints, start: initial.Start | None
) -> tuple[step_lib.TrainState, dict[str, Any]]:
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


@dataclasses.dataclass
class PeriodicEvaluation:
  """Evaluation on a fixed sub-corpus of the validation split."""

  experiment: Experiment
  plan: plan_lib.Plan

  def __post_init__(self):
    self._set = None
    e = self.experiment
    if not e.eval_every:
      return
    if 'validation' not in e.task.splits():
      _LOG.info('The task %s has no validation split.', e.task.task_name)
      return
    task = e.task.for_split('validation')
    corpus_split = task.corpus_split('validation')
    if corpus_split is not None:
      _LOG.info(
          'Evaluation while training ranks the judged passages of split'
          ' validation alone, not those of split %s as `dualenc evaluate`.',
          corpus_split,
      )
    everything = RetrievalSet.from_cache(e.cache('validation'))
    self._set = everything.subset(e.eval_queries, e.eval_passages)
    self._embedder = plan_lib.make_embedder(self.plan, e)

  def is_due(self, step: int, last: bool) -> bool:
    """Whether to evaluate after `step` steps."""
    return self._set is not None and (
        last or step % self.experiment.eval_every == 0
    )

  def __call__(self, params: Any) -> Mapping[str, float]:
    return evaluation.evaluate(
        self._embedder, embedding.model_params(params), self._set
    ).metrics


def format_metrics(metrics: Mapping[str, float]) -> str:
  """'P@1 0.123, MRR 0.234, ...'."""
  return ', '.join(f'{k} {np.round(v, 4):.4f}' for k, v in metrics.items())
