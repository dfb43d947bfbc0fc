"""The training loop: restore, step, and the hooks between steps."""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import logging
from typing import Any, NamedTuple

import jax

from dualenc_jax.errors import UserError
from dualenc_jax.objectives import collapse
from dualenc_jax.parallel.partitioning import leaf_paths
from dualenc_jax.run.experiment import (
  check_same_data,
  data_position,
  Experiment,
  initial_state,
  make_start,
)
from dualenc_jax.training import step as step_lib
from dualenc_jax.training.checkpoints import Checkpoints
from dualenc_jax.training.reporting import Reporter
from dualenc_jax.training.step import Plan, TrainState

# Steps after which the loss should be below chance.
_WARM_UP = 50
# Steps of a collapsed tower in a row after which a run is stopped; it is warned
# of after _WARM_UP of them.
_COLLAPSED = 500
_COLLAPSE = (
    'the {} tower gives all texts nearly one embedding (effective rank'
    ' {:.2f}) for {} steps in a row, and the loss, {:.3f}, is that of a model'
    ' that knows nothing: it has collapsed. Lower LEARNING_RATE or raise'
    ' TEMPERATURE; look for near-duplicates by `dualenc data check`, or mask'
    ' them (FALSE_NEGATIVE_MARGIN); align towers that differ first'
    ' (losses/matching.gin).'
)
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass
class Training:
  """A run under way, which a hook sees and may change.

  Attributes:
    step: steps taken.
    state: on the mesh; None in the hands of a late hook, for the next step has
      taken it.
    train_step: (state, batch) -> (state, metrics).
    batches: (step, cells) -> batch.
    metrics: of the last step, on the devices.
    notes: what hooks remember, JSON; it is saved with every checkpoint.
    save: whether a hook wants a checkpoint of this step.
  """

  step: int
  state: TrainState | None
  train_step: Callable[..., Any]
  batches: Callable[..., Any]
  metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  notes: dict[str, Any] = dataclasses.field(default_factory=dict)
  save: bool = False

  @property
  def ended(self) -> str | None:
    """Why the run has ended before its last step, if it has."""
    return self.notes.get('ended')


@dataclasses.dataclass(frozen=True)
class Hook:
  """Something to do at some of the steps.

  Attributes:
    call: what to do. Numbers by name that it returns are reported.
    every: steps from one call to the next; 0 for none on the way.
    at_start: call it before the first step of a run, too.
    at_end: call it after the last step, too.
    late: call it when the next step is under way, so that it may wait for the
      metrics of this one; but before any other hook, and after the last step.
    saves: call it at whatever step a hook before it wants a checkpoint, too.
    group: of the numbers that it returns, such as 'validation'.
  """

  call: Callable[[Training], Mapping[str, float] | None]
  every: int = 0
  at_start: bool = False
  at_end: bool = True
  late: bool = False
  saves: bool = False
  group: str = ''


class Ended(NamedTuple):
  """How a run has ended.

  Attributes:
    step: steps taken.
    early: why it ended before its last step; None where it did not.
    best: the step, metric and value that are kept as the best; {} of none.
  """

  step: int
  early: str | None
  best: Mapping[str, Any]


class Hooks:
  """The hooks of a run, in their order."""

  def __init__(
      self, hooks: Iterable[Hook], first: int, last: int, reporter: Reporter
  ):
    """Hooks of the steps from `first`, those taken already, to `last`."""
    self._hooks = list(hooks)
    self._first, self._last = first, last
    self._reporter = reporter
    self._waiting = None

  def __call__(self, now: Training) -> None:
    """Calls what is due after a step, and what waited for it to be under way.

    What is not late takes time that is not the steps' own.
    """
    self._call_late()
    if any(hook.late and self._is_due(hook, now.step) for hook in self._hooks):
      self._waiting = dataclasses.replace(now, state=None)
    others = [hook for hook in self._hooks if not hook.late]
    due = any(self._is_due(hook, now.step) for hook in others)
    if due or now.step == self._last:
      self._call_late()
    now.save = False
    for hook in others:
      if self._is_due(hook, now.step) or (hook.saves and now.save):
        self._call(hook, now)
      if now.ended:
        self._last = now.step
    if due:
      self._reporter.pause()

  def _call_late(self) -> None:
    now, self._waiting = self._waiting, None
    for hook in self._hooks:
      if now is not None and hook.late and self._is_due(hook, now.step):
        self._call(hook, now)

  def _call(self, hook: Hook, now: Training) -> None:
    numbers = hook.call(now)
    if numbers:
      self._reporter.scalars(hook.group, now.step, numbers)
      text = ', '.join(f'{name} {x:.4f}' for name, x in numbers.items())
      self._reporter.line(f'step {now.step}: {text}')

  def _is_due(self, hook: Hook, step: int) -> bool:
    if step == self._first:
      return hook.at_start and not step
    on_the_way = hook.every and step % hook.every == 0
    return bool(on_the_way) or (hook.at_end and step == self._last)


def train(
    experiment: Experiment,
    plan: Plan,
    config: str,
    hooks: Sequence[Hook] = (),
    ready: Callable[[], None] = lambda: None,
    allow_other_data: bool = False,
    started: float | None = None,
) -> Ended:
  """Trains, or goes on training, until `experiment.steps` or a hook ends it.

  Args:
    experiment: the run.
    plan: `make_plan` of it.
    config: its gin config, saved in every checkpoint.
    hooks: called between the one that reports and the one that saves, so that
      a checkpoint has what they have found at its step.
    ready: called once data and checkpoints are known to be good.
    allow_other_data: resume although the examples are not those of before, or
      a hook had ended the run.
    started: `time.perf_counter()` at the program's start, for the log.

  Raises:
    UserError: bad input, a loss or gradient that is not finite, or a disk that
      is full.
  """
  checkpoints = Checkpoints(experiment.model_dir, experiment.keep_checkpoints)
  # Its errors, before texts are tokenised.
  start = None if checkpoints.steps() else make_start(plan, experiment)
  batches = experiment.batches
  state, meta = initial_state(plan, checkpoints, start)
  first, data = meta['step'], data_position(experiment)
  notes = meta.get('notes', {})
  if first and not allow_other_data:
    check_same_data(meta['data'], data)
  for line in experiment.objective.describe_batches(experiment, first):
    _LOG.info('%s', line)
  ready()
  if allow_other_data:
    notes.pop('ended', None)
  if notes.get('ended'):
    return Ended(first, notes['ended'], notes.get('best', {}))
  objective = experiment.objective
  if not first:
    state = state._replace(memory=objective.fill(experiment, state.params))
  constants = objective.constants(experiment, state.params)
  complete = objective.completion(experiment)
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
  run = Training(first, state, plan.train_step, batches, notes=notes)
  call_hooks = Hooks(
      [
          report(experiment, leaf_paths(plan.abstract.params), reporter),
          *hooks,
          save(experiment, checkpoints, meta),
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
    while run.step < steps and not run.ended:
      batch = partitioner.to_device(run.batches(run.step, cells))
      note_shape(batch, seen, run)
      if constants:
        batch = {**batch, **constants}
      if complete is not None:
        batch = complete(run.state.params, batch)
      with jax.transfer_guard('disallow'):
        run.state, run.metrics = run.train_step(run.state, batch)
      run.step += 1
      call_hooks(run)
  finally:
    try:
      reporter.close()
    finally:
      checkpoints.wait()
  return Ended(run.step, run.ended, run.notes.get('best', {}))


def report(
    experiment: Experiment, paths: Sequence[str], reporter: Reporter
) -> Hook:
  """Reports every step, and stops the run where a step has gone wrong.

  It warns where the loss is above chance after the warm-up, and where a tower
  has collapsed, for which the run is stopped later.
  """

  chance = experiment.objective.chance(experiment)
  in_a_row = 0
  recent = collections.deque(maxlen=_WARM_UP // 2)

  def call(run: Training) -> None:
    nonlocal in_a_row
    values = jax.device_get(run.metrics)
    bad = step_lib.non_finite_tensors(values, paths)
    problem = experiment.objective.problem(values)
    if bad:
      more = f' and {len(bad) - 3} more' if len(bad) > 3 else ''
      problem = (
          f'{", ".join(bad[:3])}{more} {"is" if len(bad) == 1 else "are"} not'
          ' finite. Lower the learning rate or raise the temperature, and run'
          ' again.'
      )
    tower = collapse.collapsed(values, chance)
    in_a_row = in_a_row + 1 if tower else 0
    if tower and in_a_row in (_WARM_UP, _COLLAPSED):
      said = _COLLAPSE.format(
          tower, values[f'{tower}_rank'], in_a_row, float(values['loss'])
      )
      if in_a_row == _WARM_UP:
        reporter.line(f'WARNING: step {run.step}: {said}')
      else:
        problem = said
    if problem:
      raise UserError(
          f'Step {run.step}: {problem} The run has stopped; what it saved'
          ' before this step stays.'
      )
    del values['gradient_squares']
    if chance is not None:
      values['chance'] = chance
    reporter.step(run.step, values)
    if chance is None or run.step > _WARM_UP:
      return
    recent.append(float(values['loss']))
    mean = sum(recent) / len(recent)
    if run.step == _WARM_UP and mean > chance:
      reporter.line(
          f'WARNING: after {run.step} steps the loss is {mean:.2f}, above the'
          f' {chance:.2f} of a model that knows nothing. From scratch try a'
          ' higher TEMPERATURE, 0.05 to 0.1: too small a one keeps it from'
          ' learning; or a lower LEARNING_RATE.'
      )

  return Hook(call, every=1, late=True)


def save(
    experiment: Experiment, checkpoints: Checkpoints, meta: dict[str, Any]
) -> Hook:
  """Saves a checkpoint."""

  def call(run: Training) -> None:
    data = {**meta['data'], 'next_step': run.step}
    kept = {'notes': run.notes} if run.notes else {}
    checkpoints.best = run.notes.get('best', {}).get('step')
    checkpoints.save(run.state, run.step, {**meta, **kept, 'data': data})

  return Hook(call, experiment.checkpoint_every, saves=True)


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
