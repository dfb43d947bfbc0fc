"""Hooks that watch the numbers of steps, and warn or stop the run."""

import collections
from collections.abc import Callable
import math

from dualenc_jax.objectives import collapse, Objective
from dualenc_jax.training import step as step_lib
from dualenc_jax.training.hooks import Hook, Training
from dualenc_jax.training.reporting import Reporter
from dualenc_jax.utils.errors import UserError

# Steps after which the loss should be below chance, or a collapsed tower is
# warned of; and those of it in a row after which a run is stopped.
_WARM_UP, _COLLAPSED = 50, 500
_COLLAPSE = (
    'the {} tower gives all texts nearly one embedding (effective rank'
    ' {:.2f}) for {} steps in a row, and the loss, {:.3f}, is that of a model'
    ' that knows nothing: it has collapsed. Lower LEARNING_RATE or raise'
    ' TEMPERATURE; look for near-duplicates by `dualenc data check`, or mask'
    ' them (FALSE_NEGATIVE_MARGIN); align towers that differ first'
    ' (objectives/matching.gin).'
)
# A loss is a spike if it is above the mean of so many before it by so many of
# their standard deviations, and by such a share of a loss that is known: near
# zero one odd pair of a batch is many deviations.
_RECENT, _DEVIATIONS, _SHARE = 100, 6.0, 0.05
# In the notes of a checkpoint, as {'in_a_row': 0, 'total': 2}.
_SKIPPED = 'skipped'
Say = Callable[[str], None]


def non_finite(paths: list[str], skip: int, say: Say) -> Hook:
  """Stops a run whose loss, gradient or parameters are not finite.

  Up to `skip` (`Optimizer.skip_non_finite`) steps in a row, which change
  nothing, are only counted and reported. `paths` are those of the parameters.
  """

  def call(run: Training) -> None:
    bad = step_lib.non_finite_tensors(run.metrics, paths)
    counts = run.notes.get(_SKIPPED)
    if not bad:
      if counts:
        counts['in_a_row'] = 0
      return
    more = f' and {len(bad) - 3} more' if len(bad) > 3 else ''
    verb = 'is' if len(bad) == 1 else 'are'
    what = f'{", ".join(bad[:3])}{more} {verb} not finite.'
    if not run.metrics.get('skipped'):
      raise _stops(
          run, f'{what} Lower the learning rate or raise the temperature, and'
          ' run again.'
      )
    counts = run.notes.setdefault(_SKIPPED, {'in_a_row': 0, 'total': 0})
    if counts['in_a_row'] >= skip:
      raise _stops(
          run, f'{what} It is one more in a row than SKIP_NON_FINITE, {skip},'
          ' leaves out. Lower the learning rate or raise the temperature.'
      )
    for each in counts:
      counts[each] += 1
    say(
        f'WARNING: step {run.step}: {what} The step is left out, number'
        f' {counts["in_a_row"]} of at most {skip} in a row,'
        f' {counts["total"]} in all.'
    )

  return Hook(call, every=1, late=True)


def problems(objective: Objective, chance: float | None, say: Say) -> Hook:
  """Stops a run whose objective has a problem, or whose tower has collapsed."""
  in_a_row = 0

  def call(run: Training) -> None:
    nonlocal in_a_row
    values = run.metrics
    if values.get('skipped'):
      return
    problem = objective.problem(values)
    tower = collapse.collapsed(values, chance)
    in_a_row = in_a_row + 1 if tower else 0
    if tower and in_a_row in (_WARM_UP, _COLLAPSED):
      said = _COLLAPSE.format(
          tower, values[f'{tower}_rank'], in_a_row, float(values['loss'])
      )
      if in_a_row == _WARM_UP:
        say(f'WARNING: step {run.step}: {said}')
      else:
        problem = said
    if problem:
      raise _stops(run, problem)

  return Hook(call, every=1, late=True)


def above_chance(chance: float | None, say: Say) -> Hook:
  """Warns of a loss that is above chance after the warm-up."""
  recent: collections.deque[float] = collections.deque(maxlen=_WARM_UP // 2)

  def call(run: Training) -> None:
    if chance is None or run.step > _WARM_UP:
      return
    recent.append(float(run.metrics['loss']))
    mean = sum(recent) / len(recent)
    if run.step == _WARM_UP and mean > chance:
      say(
          f'WARNING: after {run.step} steps the loss is {mean:.2f}, above the'
          f' {chance:.2f} of a model that knows nothing. From scratch try a'
          ' higher TEMPERATURE, 0.05 to 0.1: too small a one keeps it from'
          ' learning; or a lower LEARNING_RATE.'
      )

  return Hook(call, every=1, late=True)


def spikes(chance: float | None, say: Say) -> Hook:
  """Warns of a loss far above those before it, once until it falls again.

  A spike is above the mean of the last 100 losses by more than 6 of their
  standard deviations, which chance makes in less than one step in a billion. A
  steady fall of the loss widens the deviation and hides small spikes. It is
  also above that mean by more than 5% of the loss of a model that knows
  nothing, or, where that is unknown, of the mean of the first 100 seen: a loss
  near zero is mostly that of the few pairs that are not learnt yet, which some
  batches have and others have not.
  """
  recent: collections.deque[float] = collections.deque(maxlen=_RECENT)
  is_high, scale = False, chance

  def call(run: Training) -> None:
    nonlocal is_high, scale
    loss = float(run.metrics['loss'])
    if not math.isfinite(loss):
      return
    if len(recent) == _RECENT:
      mean = math.fsum(recent) / _RECENT
      square = math.fsum((x - mean) ** 2 for x in recent) / _RECENT
      scale = scale or abs(mean)
      least = max(_DEVIATIONS * square**0.5, _SHARE * scale)
      was_high, is_high = is_high, loss > mean + least
      if is_high and not was_high:
        say(
            f'WARNING: step {run.step}: the loss jumps to {loss:.3f}; the last'
            f' {_RECENT} steps had {mean:.3f}, give or take {square**0.5:.3f}.'
            ' If it does not come back, look at the data (`dualenc data'
            ' check`), lower LEARNING_RATE, or give CLIP_NORM.'
        )
    recent.append(loss)

  return Hook(call, every=1, late=True)


def report(reporter: Reporter, chance: float | None) -> Hook:
  """Reports the numbers of every step."""

  def call(run: Training) -> None:
    of_tensors = ('gradient_squares', 'finite')
    values = {k: v for k, v in run.metrics.items() if k not in of_tensors}
    if chance is not None:
      values['chance'] = chance
    reporter.step(run.step, values)

  return Hook(call, every=1, late=True)


def _stops(run: Training, problem: str) -> UserError:
  return UserError(
      f'Step {run.step}: {problem} The run has stopped; what it saved before'
      ' this step stays.'
  )
