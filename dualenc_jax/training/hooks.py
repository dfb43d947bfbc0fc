"""Hooks, which act between the steps of a run, each with a cadence."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import jax

from dualenc_jax.training.reporting import Reporter


@dataclasses.dataclass
class Training:
  """A run under way, which a hook sees and may change.

  Attributes:
    step: steps taken.
    state: a TrainState on the mesh; None for a late hook, as the next step has
      taken it.
    metrics: metrics of the last step, on devices; for late hooks on the host.
    notes: memory of the hooks, JSON, saved with every checkpoint.
    save: whether a hook wants a checkpoint of this step.
    stopped: whether the run stops here, to resume later.
  """

  step: int
  state: Any
  metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
  notes: dict[str, Any] = dataclasses.field(default_factory=dict)
  save: bool = False
  stopped: bool = False

  @property
  def ended(self) -> str | None:
    """The reason why the run has ended before its last step, if it has."""
    return self.notes.get('ended')


@dataclasses.dataclass(frozen=True)
class Hook:
  """An action at some of the steps.

  Attributes:
    call: the action. Numbers by name that it returns are reported.
    every: steps from one call to the next; 0 for none on the way.
    at_start: call it before the first step of a run, too.
    at_end: call it after the last step, too.
    late: call it when the next step is under way, so that it may wait for the
      metrics of this one; but before any other hook, and after the last step.
    saves: call it, too, at each step where a hook before it wants a checkpoint.
    group: group of the numbers that it returns, such as 'validation'.
  """

  call: Callable[[Training], Mapping[str, float] | None]
  every: int = 0
  at_start: bool = False
  at_end: bool = True
  late: bool = False
  saves: bool = False
  group: str = ''


# In the notes of a checkpoint: hooks were due at its step, and the run had
# stopped before them.
_LEFT = 'left'


class Hooks:
  """The hooks of a run, in their order."""

  def __init__(
      self, hooks: Sequence[Hook], first: int, last: int, reporter: Reporter,
      stop: Callable[[], bool] = lambda: False,
      notes: dict[str, Any] | None = None,
  ):
    """Takes the hooks of the steps from `first`, already taken, to `last`.

    Args:
      hooks: those of a run.
      first: steps taken so far.
      last: steps of the whole run.
      reporter: shows numbers that hooks return.
      stop: asked once a step, before any hook, whether to stop the run.
      notes: those of the checkpoint that the run resumes from. Hooks due at its
        step, where the run had stopped, are called first.
    """
    self._late = [hook for hook in hooks if hook.late]
    self._others = [hook for hook in hooks if not hook.late]
    self._first, self._last = first, last
    self._reporter, self._stop_is_requested = reporter, stop
    self._waiting: Training | None = None
    self.left = bool((notes or {}).pop(_LEFT, False))

  def __call__(self, now: Training) -> None:
    """Calls the hooks due after a step, and late hooks of the step before.

    No checkpoint is written before late hooks have seen the metrics of its
    step. Time of other hooks does not count as time of steps.
    """
    self._call_late()
    if any(self._is_due(hook, now.step) for hook in self._late):
      self._waiting = dataclasses.replace(now, state=None)
    due = [hook for hook in self._others if self._is_due(hook, now.step)]
    rest = any(not hook.saves for hook in due)
    if self._stop_is_requested() and (rest or now.step < self._last):
      self._stop(now, rest)
      return
    now.save = False
    if due or now.step == self._last:
      self._call_late()
    for hook in self._others:
      if self._is_due(hook, now.step) or (hook.saves and now.save):
        self._call(hook, now)
      if now.ended:
        self._last = now.step
    if due:
      self._reporter.pause()

  def _stop(self, now: Training, rest: bool) -> None:
    """Saves, if anything is new, and leaves hooks due to the next process."""
    self._call_late()
    now.stopped = True
    if now.step == self._first:
      return
    if rest:
      now.notes[_LEFT] = True
    for hook in self._others:
      if hook.saves:
        self._call(hook, now)

  def _call_late(self) -> None:
    now, self._waiting = self._waiting, None
    if now is None:
      return
    now.metrics = jax.device_get(now.metrics)
    for hook in self._late:
      if self._is_due(hook, now.step):
        self._call(hook, now)

  def _call(self, hook: Hook, now: Training) -> None:
    numbers = hook.call(now)
    if numbers:
      self._reporter.scalars(hook.group, now.step, numbers)
      text = ', '.join(f'{name} {x:.4f}' for name, x in numbers.items())
      self._reporter.line(f'step {now.step}: {text}')

  def _is_due(self, hook: Hook, step: int) -> bool:
    if step == self._first:
      if not self.left:
        return hook.at_start and not step
      if hook.late or hook.saves:
        # Notes of the others are saved with the checkpoint that is there.
        return hook.saves
    on_the_way = hook.every and step % hook.every == 0
    return bool(on_the_way) or (hook.at_end and step == self._last)
