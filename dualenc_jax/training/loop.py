"""The training loop: restore, step, and the hooks between steps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import logging
import pathlib
from typing import Any, NamedTuple

import jax

from dualenc_jax.checkpoints.adapters import GROUP
from dualenc_jax.parallel.partitioning import leaf_paths
from dualenc_jax.training import experiment as experiment_lib, monitors
from dualenc_jax.training.checkpoints import Checkpoints, write_vocabulary
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.training.hooks import Hook, Hooks, Training
from dualenc_jax.training.reporting import Reporter
from dualenc_jax.training.step import Plan
from dualenc_jax.training.stopping import AnyHost, Stopping

_LOG = logging.getLogger(__name__)


class Outcome(NamedTuple):
  """The end of a run.

  Attributes:
    step: steps taken.
    ended: the reason why the run has ended before its last step, if it has.
    best: step, metric and value of the best checkpoint, {} without one.
    stopped: the cause of a stop, after which the run can be resumed.
  """

  step: int
  ended: str | None
  best: Mapping[str, Any]
  stopped: str | None = None


def train(
    experiment: Experiment, plan: Plan | None = None, config: str = '',
    hooks: Sequence[Hook] = (), ready: Callable[[], None] = lambda: None,
    allow_other_data: bool = False, allow_other_config: bool = False,
    stopping: Stopping | None = None,
) -> Outcome:
  """Trains or resumes a run until `experiment.steps` or until a hook ends it.

  Args:
    experiment: the run.
    plan: `make_plan` of the experiment, which is made if None is given.
    config: the gin config, saved in every checkpoint; '' for a run that is
      built in Python.
    hooks: called between those that watch the numbers and the one that saves,
      so that a checkpoint has their notes on its step.
    ready: called once data and checkpoints are known to be good.
    allow_other_data: resume although the examples have changed.
    allow_other_config: resume although a hook had ended the run, or settings
      of a run that is built in Python have changed.
    stopping: may stop the run at the end of a step, whose checkpoint is then
      the same as in a run that is not stopped.

  Raises:
    UserError: data or checkpoints do not fit, or numbers are not finite.
  """
  stopping = stopping or Stopping()
  plan = plan or experiment_lib.make_plan(experiment)
  objective, partitioner = experiment.objective, experiment.partitioner

  # Each part is checked before the next, which takes longer.
  checkpoints = Checkpoints(experiment.model_dir, experiment.keep_checkpoints)
  start = None
  if plan.lora is not None or not checkpoints.steps():
    start = experiment_lib.make_start(plan, experiment)
  batches = experiment.batches
  state, meta = experiment_lib.restore_or_init(plan, checkpoints, start)
  first, notes = meta['step'], meta.get('notes', {})
  data = experiment_lib.describe_data(experiment)
  if first and not allow_other_data:
    experiment_lib.check_same_data(meta['data'], data)
  # A run that gin has built is compared by its config.
  settings = {} if config else experiment_lib.describe_settings(experiment)
  if first and not allow_other_config:
    experiment_lib.check_same_settings(meta.get('settings', {}), settings)
  for line in objective.describe_batches(experiment, first):
    _LOG.info('%s', line)
  ready()
  if not jax.process_index():
    write_vocabulary(
        pathlib.Path(experiment.model_dir), experiment.tokenizer.vocabulary
    )
  if allow_other_config:
    notes.pop('ended', None)
  if notes.get('ended'):
    return Outcome(first, notes['ended'], notes.get('best', {}))

  if not first:
    extra = objective.init_extra_state(experiment, plan.all_params(state))
    state = state._replace(memory=extra)
  complete = objective.make_completion(experiment, plan.all_params(state))
  meta = {
      'run_id': meta['run_id'],
      'data': data | experiment.tokenizer.own_facts,
      'model': objective.facts,
      'config': config,
      **({'settings': settings} if settings else {}),
      **({GROUP: meta[GROUP]} if plan.lora is not None else {}),
  }
  steps, cells = experiment.steps, partitioner.host_rows(batches.cells)
  reporter = Reporter(
      experiment.model_dir, first, steps, experiment.batch_size,
      experiment.tracker, meta['run_id'],
  )
  run = Training(first, state, notes=notes)
  del state  # The first step takes it.
  late: list[bool] = []
  shapes = monitors.BatchShapes(len(batches.shapes), reporter.leave_out)

  def save(now: Training) -> None:
    """Saves a checkpoint, or new notes in that which the run resumes from."""
    kept = {'notes': now.notes} if now.notes else {}
    kept |= {**meta, 'data': {**meta['data'], 'next_step': now.step}}
    # A run that resumes reports what comes after this step.
    reporter.flush()
    checkpoints.best = now.notes.get('best', {}).get('step')
    if first and now.step == first:
      checkpoints.rewrite_meta(now.step, kept)
      return
    checkpoints.save(now.state, now.step, kept)

  every = [
      *_monitors(experiment, plan, reporter),
      monitors.report_late_batches(late, reporter),
      *hooks,
      Hook(save, experiment.checkpoint_every, saves=True),
  ]
  stop = AnyHost(lambda: stopping.cause is not None)
  call_hooks = Hooks(every, first, steps, reporter, stop, notes)
  with contextlib.ExitStack() as ends:
    ends.enter_context(stopping.between_steps())
    for end in (checkpoints.wait, reporter.close):
      ends.callback(end)
    if first < steps or call_hooks.left:
      call_hooks(run)
    while run.step < steps and not (run.ended or run.stopped):
      batch = partitioner.to_device(batches(run.step, cells))
      if run.metrics:
        late.append(run.metrics['loss'].is_ready())
      if complete is not None:
        batch = complete(plan.all_params(run.state), batch)
      with shapes.step(run.step + 1, batch), jax.transfer_guard('disallow'):
        run.state, run.metrics = plan.train_step(run.state, batch)
      run.step += 1
      call_hooks(run)
  cause = stopping.cause or 'another host was asked to stop'
  stopped = cause if run.stopped else None
  return Outcome(run.step, run.ended, run.notes.get('best', {}), stopped)


def _monitors(
    experiment: Experiment, plan: Plan, reporter: Reporter
) -> Iterator[Hook]:
  """Yields the hooks that look at the numbers of every step."""
  paths = leaf_paths(plan.abstract.params)
  chance, log = experiment.objective.chance(experiment), reporter.line
  yield monitors.stop_at_non_finite(paths)
  yield monitors.warn_of_collapse(chance, log)
  yield monitors.report_metrics(reporter, chance)
  yield monitors.warn_above_chance(chance, log)
  yield monitors.warn_without_loss(log)
