"""Hooks that watch the numbers of steps and the machine, and warn or stop."""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import logging
import queue
import threading
import time
from typing import Any

import jax

from dualenc_jax.parallel.partitioning import path_string
from dualenc_jax.training import step as step_lib
from dualenc_jax.training.hooks import Hook, Training
from dualenc_jax.training.reporting import Reporter
from dualenc_jax.utils import machine
from dualenc_jax.utils.errors import UserError

# Steps after which the loss should be below chance, or a collapsed tower is
# warned of; and those of it in a row after which a run is stopped.
_WARM_UP, _COLLAPSED = 50, 500
# A rank below this is a collapse if the loss is not lower than a constant map's
# by more than that; it is about as high if towers collapse, with noise.
_LOW_RANK, _NEAR_CHANCE = 2.0, 0.05
_COLLAPSE = (
    'the {} tower gives all texts nearly one embedding (effective rank'
    ' {:.2f}) for {} steps in a row, and the loss, {:.3f}, is that of a model'
    ' that knows nothing: it has collapsed. Lower LEARNING_RATE or raise'
    ' TEMPERATURE; look for near-duplicates by `dualenc data check`.'
)
# In the notes of a checkpoint, as {'in_a_row': 0, 'total': 2}.
_SKIPPED = 'skipped'
# Metrics that are arrays, one number a parameter.
_ARRAYS = 'gradient_squares', 'finite'
# Steps that the share of waiting is of, and between two reports of it.
_RECENT = 100
# The most seconds that the end of a run waits for that of its last step.
_END_SECONDS = 20.0
# A larger share of waiting is warned of, once until it falls below again.
_SLOW = 0.1
_LOG = logging.getLogger(__name__)
LogFn = Callable[[str], None]


def stop_at_non_finite(
    paths: Sequence[str], most_skipped: int, log: LogFn
) -> Hook:
  """Returns a hook that stops a run whose numbers are not finite.

  These are the loss, gradients and parameters, whose `paths` are given. Up to
  `most_skipped` (`Optimizer.skip_non_finite`) steps in a row, which change
  nothing, are only counted and logged.
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
    problem = f'{", ".join(bad[:3])}{more} {verb} not finite.'
    if not run.metrics.get('skipped'):
      raise _stopped(
          run, f'{problem} Lower the learning rate or raise the temperature,'
          ' and run again.'
      )
    counts = run.notes.setdefault(_SKIPPED, {'in_a_row': 0, 'total': 0})
    if counts['in_a_row'] >= most_skipped:
      raise _stopped(
          run, f'{problem} It is one more in a row than SKIP_NON_FINITE,'
          f' {most_skipped}, skips. Lower the learning rate or raise the'
          ' temperature.'
      )
    for name in counts:
      counts[name] += 1
    log(
        f'WARNING: step {run.step}: {problem} The step is skipped, number'
        f' {counts["in_a_row"]} of at most {most_skipped} in a row,'
        f' {counts["total"]} in all.'
    )

  return Hook(call, every=1, late=True)


def _collapsed_tower(
    metrics: Mapping[str, Any], chance: float | None
) -> str | None:
  """Returns the tower that looks collapsed by metrics of a step, if any.

  Its rank is low, and the loss no lower than `chance`, a constant map's.
  """
  if chance is None or float(metrics['loss']) < chance - _NEAR_CHANCE:
    return None
  ranks = {
      name: metrics.get(f'{name}_rank', _LOW_RANK)
      for name in ('query', 'passage')
  }
  lowest = min(ranks, key=ranks.__getitem__)
  return lowest if ranks[lowest] < _LOW_RANK else None


def stop_at_collapse(chance: float | None, log: LogFn) -> Hook:
  """Returns a hook that warns of a collapsed tower, and then stops the run.

  `chance` is the loss of a model that knows nothing, None if it is not known.
  """
  in_a_row = 0

  def call(run: Training) -> None:
    nonlocal in_a_row
    metrics = run.metrics
    if metrics.get('skipped'):
      return
    tower = _collapsed_tower(metrics, chance)
    in_a_row = in_a_row + 1 if tower else 0
    if tower and in_a_row in (_WARM_UP, _COLLAPSED):
      text = _COLLAPSE.format(
          tower, metrics[f'{tower}_rank'], in_a_row, float(metrics['loss'])
      )
      if in_a_row == _COLLAPSED:
        raise _stopped(run, text)
      log(f'WARNING: step {run.step}: {text}')

  return Hook(call, every=1, late=True)


def warn_above_chance(chance: float | None, log: LogFn) -> Hook:
  """Returns a hook that warns of a loss above chance after the warm-up."""
  recent: collections.deque[float] = collections.deque(maxlen=_WARM_UP // 2)

  def call(run: Training) -> None:
    if chance is None or run.step > _WARM_UP:
      return
    recent.append(float(run.metrics['loss']))
    mean = sum(recent) / len(recent)
    if run.step == _WARM_UP and mean > chance:
      log(
          f'WARNING: after {run.step} steps the loss is {mean:.2f}, above the'
          f' {chance:.2f} of a model that knows nothing. From scratch try a'
          ' higher TEMPERATURE, 0.05 to 0.1: too small a one keeps it from'
          ' learning; or a lower LEARNING_RATE.'
      )

  return Hook(call, every=1, late=True)


def report_metrics(reporter: Reporter, chance: float | None) -> Hook:
  """Returns a hook that reports the metrics of every step."""

  def call(run: Training) -> None:
    metrics = {k: v for k, v in run.metrics.items() if k not in _ARRAYS}
    if chance is not None:
      metrics['chance'] = chance
    reporter.step(run.step, metrics)

  return Hook(call, every=1, late=True)


class InputTimer:
  """Measures how long devices wait for the batches of the last 100 steps.

  A batch is made while the step before it runs: no time is lost unless that
  ends first.
  """

  def __init__(self):
    # Seconds of waiting before a step, and of the step.
    self._steps = collections.deque(maxlen=_RECENT)
    self._running = queue.SimpleQueue()
    self._made = 0.0, 0.0
    # A daemon: if a device hangs, the program may end nevertheless.
    self._thread = threading.Thread(target=self._time_steps, daemon=True)
    self._thread.start()

  def time_batch(self, make: Callable[[], Any]) -> Any:
    """Times `make()`, and returns its batch."""
    began = time.perf_counter()
    batch = make()
    self._made = began, time.perf_counter()
    return batch

  def start_step(self, output: jax.Array) -> None:
    """Takes an output of the step, under way, on the last batch."""
    self._running.put((*self._made, time.perf_counter(), output))

  def close(self) -> None:
    """Waits for the last step: a program ending with a thread in XLA aborts."""
    self._running.put(None)
    self._thread.join(_END_SECONDS)

  @property
  def share(self) -> float:
    """The share of the devices' time that was waiting for a batch."""
    waited, ran = map(sum, zip(*self._steps)) if self._steps else (0.0, 0.0)
    return waited / (waited + ran) if waited else 0.0

  def _time_steps(self) -> None:
    before = None
    while (step := self._running.get()) is not None:
      began, made, dispatched, output = step
      try:
        output.block_until_ready()
      except Exception:  # It is raised in the loop, too.
        return
      end = time.perf_counter()
      if before is not None:
        waited = max(made - max(before, began), 0.0)
        self._steps.append((waited, end - max(before, dispatched)))
      before = end


def report_resources(timer: InputTimer, reporter: Reporter) -> Hook:
  """Returns a hook that reports memory and waiting, and warns of slow input."""
  is_slow = False

  def write(run: Training) -> None:
    nonlocal is_slow
    share = timer.share
    numbers = {'waiting_for_data': share, **machine.memory_in_use()}
    reporter.scalars('resources', run.step, numbers)
    was_slow, is_slow = is_slow, share > _SLOW
    if is_slow and not was_slow:
      reporter.line(
          f'WARNING: step {run.step}: the input is slow: devices wait for data'
          f' {share:.0%} of the time. Keep the token cache (CACHE_DIR) on a'
          ' local disk, give this process more CPU cores, or make a step larger'
          ' (BATCH_SIZE).'
      )

  return Hook(write, _RECENT, at_end=False, late=True)


class BatchShapes:
  """Logs the shapes of batches for which the train step is compiled again."""

  def __init__(self, most: int, leave_out: Callable[[float], None]):
    """`most` is the number of shapes; `leave_out` gets seconds of compiling."""
    self._most, self._leave_out = most, leave_out
    self._seen: list[dict[str, tuple[int, ...]]] = []

  @contextlib.contextmanager
  def step(self, number: int, batch: Any) -> Iterator[None]:
    """A context of the train step number `number`, from 1, on a batch."""
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    shapes = {path_string(path): leaf.shape for path, leaf in leaves}
    began = time.perf_counter()
    yield
    if shapes in self._seen:
      return
    if self._seen:
      seconds = time.perf_counter() - began
      self._leave_out(seconds)
      other = shapes.items() - self._seen[0].items()
      _LOG.info(
          'Step %d: the texts need another shape of batch, number %d of at most'
          ' %d: %s; compiled in %.1f s.',
          number, len(self._seen) + 1, self._most,
          ', '.join(f'{name} {[*shape]}' for name, shape in sorted(other)),
          seconds,
      )
    self._seen.append(shapes)


def _stopped(run: Training, problem: str) -> UserError:
  return UserError(
      f'Step {run.step}: {problem} The run has stopped; what it saved before'
      ' this step stays.'
  )
