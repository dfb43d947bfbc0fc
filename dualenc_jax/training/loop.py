"""The training loop: restore, step, report, evaluate, save."""

from collections.abc import Mapping
import dataclasses
import logging
import pathlib
import time
from typing import Any

import jax
import numpy as np

from dualenc_jax.data import cache as cache_lib
from dualenc_jax.data.batches import Batches
from dualenc_jax.errors import UserError
from dualenc_jax.experiment import Experiment
from dualenc_jax.retrieval import evaluation
from dualenc_jax.training import plan as plan_lib
from dualenc_jax.training import step as step_lib
from dualenc_jax.training.checkpoints import Checkpoints
from dualenc_jax.training.reporting import Reporter

_LOG = logging.getLogger(__name__)


def train(
    experiment: Experiment, config: str, started: float | None = None
) -> Mapping[str, float]:
  """Trains, or goes on training, until `experiment.steps`.

  Args:
    experiment: the run.
    config: its gin config, saved in every checkpoint.
    started: `time.perf_counter()` at the program's start, for the log.

  Returns:
    Metrics of the last evaluation on the validation split; {} without one.

  Raises:
    UserError: bad input, or a loss or gradient that is not finite.
  """
  plan = plan_lib.make_plan(experiment)
  batches = make_batches(experiment)
  checkpoints = Checkpoints(experiment.model_dir, experiment.keep_checkpoints)
  state, first = initial_state(experiment, plan, checkpoints)
  evaluator = PeriodicEvaluation(experiment, plan)
  rows = plan.partitioner.host_rows(experiment.batch_size)
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
    del values['gradient_squares']
    reporter.step(step, values)

  def save(step: int) -> None:
    checkpoints.save(
        state,
        step,
        {
            'data': {
                'seed': experiment.seed,
                'global_batch': experiment.batch_size,
                'next_step': step,
            },
            'config': config,
        },
    )

  results, late = {}, None
  try:
    for step in range(first, experiment.steps):
      batch = plan.partitioner.to_device(batches(step, rows))
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
    reporter.close()
    checkpoints.wait()
  return results


def make_batches(experiment: Experiment) -> Batches:
  """The training batches, from the cache, which is prepared if need be."""
  return Batches(
      cache_lib.prepare(
          experiment.task, 'train', experiment.tokenizer, experiment.tokens_dir
      ),
      experiment.batch_size,
      experiment.seed,
      experiment.tokenizer.query_length,
      experiment.tokenizer.passage_length,
      experiment.num_negatives,
  )


def initial_state(
    experiment: Experiment, plan: plan_lib.Plan, checkpoints: Checkpoints
) -> tuple[step_lib.TrainState, int]:
  """The state to start from, and the step that it has reached.

  In this order: the newest checkpoint of this run that can be read; the
  parameters of `initial_checkpoint` with fresh optimizer state; from scratch.
  """
  restored = checkpoints.restore(plan.abstract)
  if restored is not None:
    state, meta = restored
    _LOG.info('Resuming from step %d.', meta['step'])
    return state, meta['step']
  state = plan.init()
  if experiment.initial_checkpoint is None:
    return state, 0
  source = pathlib.Path(experiment.initial_checkpoint)
  params, meta = Checkpoints(source).restore_params(plan.abstract.params)
  _LOG.info('Starting from %s, step %d.', source, meta['step'])
  return state._replace(params=params), 0


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
      _LOG.info('The task %s has no validation split.', e.task.name)
      return
    cache = cache_lib.prepare(
        e.task, 'validation', e.tokenizer, e.tokens_dir
    )
    self._set = evaluation.RetrievalSet.from_cache(cache).subset(
        e.eval_queries, e.eval_passages
    )
    self._embedder = plan_lib.make_embedder(self.plan, e)

  def is_due(self, step: int, last: bool) -> bool:
    """Whether to evaluate after `step` steps."""
    return self._set is not None and (
        last or step % self.experiment.eval_every == 0
    )

  def __call__(self, params: Any) -> Mapping[str, float]:
    model_params = {k: v for k, v in params.items() if k != 'loss'}
    return evaluation.evaluate(self._embedder, model_params, self._set)[0]


def format_metrics(metrics: Mapping[str, float]) -> str:
  """'P@1 0.123, MRR 0.234, ...'."""
  return ', '.join(f'{k} {np.round(v, 4):.4f}' for k, v in metrics.items())
