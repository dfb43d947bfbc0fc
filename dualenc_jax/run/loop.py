"""The training loop: restore, step, and the hooks between steps."""

from collections.abc import Callable, Sequence
import logging
from typing import Any

import jax

from dualenc_jax.errors import UserError
from dualenc_jax.run import plan as plan_lib, resume
from dualenc_jax.run.experiment import Experiment
from dualenc_jax.run.hooks import Hook, Hooks, Training
from dualenc_jax.training import step as step_lib
from dualenc_jax.training.checkpoints import Checkpoints
from dualenc_jax.training.reporting import Reporter

_LOG = logging.getLogger(__name__)


def train(
    experiment: Experiment,
    plan: plan_lib.Plan,
    config: str,
    hooks: Sequence[Hook] = (),
    ready: Callable[[], None] = lambda: None,
    allow_other_data: bool = False,
    started: float | None = None,
) -> None:
  """Trains, or goes on training, until `experiment.steps`.

  Args:
    experiment: the run.
    plan: `plan.make_plan` of it.
    config: its gin config, saved in every checkpoint.
    hooks: called after those that report and save.
    ready: called once data and checkpoints are known to be good.
    allow_other_data: resume although the examples are not those of before.
    started: `time.perf_counter()` at the program's start, for the log.

  Raises:
    UserError: bad input, a loss or gradient that is not finite, or a disk that
      is full.
  """
  checkpoints = Checkpoints(experiment.model_dir, experiment.keep_checkpoints)
  # Its errors, before texts are tokenised.
  start = None if checkpoints.steps() else plan_lib.make_start(plan, experiment)
  batches = experiment.batches
  state, meta = resume.initial_state(plan, checkpoints, start)
  first, data = meta['step'], resume.data_position(experiment)
  if first and not allow_other_data:
    resume.check_same_data(meta['data'], data)
  for line in experiment.objective.describe_batches(experiment, first):
    _LOG.info('%s', line)
  ready()
  meta = {
      'run_id': meta['run_id'],
      'data': data,
      'model': experiment.objective.facts,
      'config': config,
  }
  partitioner, steps = experiment.partitioner, experiment.steps
  cells = partitioner.host_rows(batches.cells)
  reporter = Reporter(
      experiment.model_dir, first, steps, experiment.batch_size, started
  )
  run = Training(first, state, plan.train_step, batches)
  call_hooks = Hooks(
      [
          report(experiment, plan_lib.param_paths(plan), reporter),
          save(experiment, checkpoints, meta),
          *hooks,
      ],
      first,
      steps,
      reporter,
  )
  del state  # The first step takes it.
  seen = set()
  try:
    if first < steps:
      call_hooks(run)
    while run.step < steps:
      batch = partitioner.to_device(run.batches(run.step, cells))
      note_shape(batch, seen, run)
      with jax.transfer_guard('disallow'):
        run.state, run.metrics = run.train_step(run.state, batch)
      run.step += 1
      call_hooks(run)
  finally:
    try:
      reporter.close()
    finally:
      checkpoints.wait()


def report(
    experiment: Experiment, paths: Sequence[str], reporter: Reporter
) -> Hook:
  """Reports every step, and stops the run where a step has gone wrong."""

  def call(run: Training) -> None:
    values = jax.device_get(run.metrics)
    bad = step_lib.non_finite_tensors(values, paths)
    problem = experiment.objective.problem(values)
    if bad:
      more = f' and {len(bad) - 3} more' if len(bad) > 3 else ''
      problem = (
          f'{", ".join(bad[:3])}{more} is not finite. Lower the learning rate'
          ' or raise the temperature, and run again.'
      )
    if problem:
      raise UserError(
          f'Step {run.step}: {problem} The run has stopped; the checkpoints'
          ' before this step are kept.'
      )
    del values['gradient_squares']
    reporter.step(run.step, values)

  return Hook(call, every=1, late=True)


def save(
    experiment: Experiment, checkpoints: Checkpoints, meta: dict[str, Any]
) -> Hook:
  """Saves a checkpoint."""

  def call(run: Training) -> None:
    data = {**meta['data'], 'next_step': run.step}
    checkpoints.save(run.state, run.step, {**meta, 'data': data})

  return Hook(call, experiment.checkpoint_every)


def note_shape(batch: Any, seen: set[Any], run: Training) -> None:
  """Logs that a batch has another shape than all `seen` so far."""
  shape = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
  if seen and shape not in seen:
    _LOG.info(
        'Step %d: the texts need another shape of batch, number %d of at most'
        ' %d; compiling for it.',
        run.step,
        len(seen) + 1,
        len(run.batches.shapes),
    )
  seen.add(shape)
