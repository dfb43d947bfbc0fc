"""The training loop: restore, step, and the hooks between steps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import logging
import pathlib
import time
from typing import Any, NamedTuple

import jax

from dualenc_jax.parallel.partitioning import leaf_paths
from dualenc_jax.training import experiment as experiment_lib, monitors
from dualenc_jax.training.checkpoints import Checkpoints, write_vocabulary
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.training.hooks import (
  Agreement,
  Hook,
  Hooks,
  Request,
  Training,
)
from dualenc_jax.training.reporting import Reporter
from dualenc_jax.training.step import Plan
from dualenc_jax.training.stopping import Clock, Stopping
from dualenc_jax.utils.errors import UserError

_LOG = logging.getLogger(__name__)


class Ended(NamedTuple):
  """The end of a run: steps taken, and why it ended early, if it did.

  `best` has the step, metric and value of the best checkpoint, {} without one;
  `stopped` is who stopped it, to go on later.
  """

  step: int
  early: str | None
  best: Mapping[str, Any]
  stopped: str | None = None


def train(
    experiment: Experiment, plan: Plan | None = None, config: str = '',
    hooks: Sequence[Hook] = (), ready: Callable[[], None] = lambda: None,
    allow_other_data: bool = False,
    past_end: bool = False, started: float | None = None,
    stopping: Stopping | None = None,
) -> Ended:
  """Trains, or goes on training, until `experiment.steps` or a hook ends it.

  Args:
    experiment: the run.
    plan: `make_plan` of the experiment, which is made if None is given.
    config: the gin config, saved in every checkpoint.
    hooks: called between those that watch the numbers and the one that saves,
      so that a checkpoint has what they have found at its step.
    ready: called once data and checkpoints are known to be good.
    allow_other_data: resume although the examples have changed.
    past_end: resume although a hook had ended the run.
    started: `time.perf_counter()` at the program's start.
    stopping: may stop the run at the end of a step; the checkpoint of that step
      is the same as if the run had gone on.
  """
  stopping = stopping or Stopping()
  plan = plan or experiment_lib.make_plan(experiment)
  began = time.perf_counter() if started is None else started
  checkpoints = Checkpoints(experiment.model_dir, experiment.keep_checkpoints)
  # Its errors, before texts are tokenised.
  start = None
  if not checkpoints.steps():
    start = experiment_lib.make_start(plan, experiment)
  batches = experiment.batches
  state, meta = experiment_lib.initial_state(plan, checkpoints, start)
  first, data = meta['step'], experiment_lib.data_position(experiment)
  notes = meta.get('notes', {})
  if first and not allow_other_data:
    experiment_lib.check_same_data(meta['data'], data)
  objective, partitioner = experiment.objective, experiment.partitioner
  for line in objective.describe_batches(experiment, first):
    _LOG.info('%s', line)
  ready()
  if not jax.process_index():
    write_vocabulary(
        pathlib.Path(experiment.model_dir), experiment.tokenizer.vocabulary
    )
  if past_end:
    notes.pop('ended', None)
  if notes.get('ended'):
    return Ended(first, notes['ended'], notes.get('best', {}))
  if not first:
    state = state._replace(memory=objective.fill(experiment, state.params))
  constants = objective.constants(experiment, state.params)
  complete = objective.completion(experiment)
  meta = {
      'run_id': meta['run_id'],
      'data': data | experiment.tokenizer.named,
      'model': objective.facts,
      'config': config,
  }
  steps, cells = experiment.steps, partitioner.host_rows(batches.cells)
  reporter = Reporter(
      experiment.model_dir, first, steps, experiment.batch_size, started
  )
  run = Training(first, state, plan.train_step, batches, notes=notes)
  del state  # The first step takes it.
  clock = Clock(checkpoints, experiment.checkpoint_every_hours)
  timer = monitors.InputTimer()

  def request() -> Request:
    clock.ticks()
    # One step is taken at least, so that short times get on, too.
    spent = time.perf_counter() - began if run.step > first else 0.0
    if stopping.reason(spent, clock.step, clock.save):
      return Request.STOP
    return Request.SAVE if clock.is_due else Request.CONTINUE

  def save(now: Training) -> None:
    """A checkpoint, or notes beside that which the run goes on from."""
    kept = {'notes': now.notes} if now.notes else {}
    kept |= {**meta, 'data': {**meta['data'], 'next_step': now.step}}
    # What was reported is on disk: a run that goes on reports what comes after.
    reporter.flush()
    checkpoints.best = now.notes.get('best', {}).get('step')
    if first and now.step == first:
      checkpoints.note(now.step, kept)
      return
    clock.saves()
    checkpoints.save(now.state, now.step, kept)

  every = [
      *_monitors(experiment, plan, reporter),
      monitors.report_resources(timer, reporter),
      *hooks,
      Hook(save, experiment.checkpoint_every, saves=True),
  ]
  call_hooks = Hooks(every, first, steps, reporter, Agreement(request), notes)
  shapes = monitors.BatchShapes(len(batches.shapes), reporter.leave_out)
  with (
      stopping.between_steps(),
      _closing(timer.close, reporter.close, checkpoints.wait),
  ):
    if first < steps or call_hooks.left:
      call_hooks(run)
    while run.step < steps and not (run.ended or run.stopped):
      batch = timer.batch(
          lambda: partitioner.to_device(run.batches(run.step, cells))
      )
      if constants:
        batch = {**batch, **constants}
      if complete is not None:
        batch = complete(run.state.params, batch)
      with shapes.step(run.step + 1, batch):
        with jax.transfer_guard('disallow'):
          run.state, run.metrics = run.train_step(run.state, batch)
      timer.start_step(run.metrics['loss'])
      run.step += 1
      call_hooks(run)
  monitors.log_memory()
  asked_by = stopping.asked_by or 'another host was asked to stop'
  stopped = asked_by if run.stopped else None
  return Ended(run.step, run.ended, run.notes.get('best', {}), stopped)


@contextlib.contextmanager
def _closing(*closes: Callable[[], None]) -> Iterator[None]:
  """Ends what the loop has begun; an error of the loop itself wins."""
  try:
    yield
  except BaseException:
    for close in closes:
      with contextlib.suppress(UserError):
        close()
    raise
  with contextlib.ExitStack() as ends:
    for close in reversed(closes):
      ends.callback(close)


def _monitors(
    experiment: Experiment, plan: Plan, reporter: Reporter
) -> Iterator[Hook]:
  """Yields the hooks that look at the numbers of every step."""
  paths = leaf_paths(plan.abstract.params)
  chance, log = experiment.objective.chance(experiment), reporter.line
  skipped = experiment.optimizer.skip_non_finite
  yield monitors.stop_at_non_finite(paths, skipped, log)
  yield monitors.stop_at_collapse(chance, log)
  yield monitors.report_metrics(reporter, chance)
  yield monitors.warn_above_chance(chance, log)
