"""What a run does beside stepping, and when."""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
from typing import Any

from dualenc_jax.training.reporting import Reporter
from dualenc_jax.training.step import TrainState


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
  """

  step: int
  state: TrainState | None
  train_step: Callable[..., Any]
  batches: Callable[..., Any]
  metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Hook:
  """Something to do at some of the steps.

  Attributes:
    call: what to do. Numbers by name that it returns are reported.
    every: steps from one call to the next; 0 for none on the way.
    at_start: call it before the first step of this process, too.
    at_end: call it after the last step, too.
    late: call it when the next step is under way, so that it may wait for the
      metrics of this one; but before any other hook, and after the last step.
    group: of the numbers that it returns, such as 'validation'.
  """

  call: Callable[[Training], Mapping[str, float] | None]
  every: int = 0
  at_start: bool = False
  at_end: bool = True
  late: bool = False
  group: str = ''


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
    due = [h for h in self._hooks if not h.late and self._is_due(h, now.step)]
    if due or now.step == self._last:
      self._call_late()
    for hook in due:
      self._call(hook, now)
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
      return hook.at_start
    on_the_way = hook.every and step % hook.every == 0
    return bool(on_the_way) or (hook.at_end and step == self._last)
