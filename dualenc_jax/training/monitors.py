"""Hooks that watch the numbers of steps and the input, and warn or stop."""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import logging
import time
from typing import Any

import jax
import numpy as np

from dualenc_jax.checkpoints.weights import list_first
from dualenc_jax.training.hooks import Hook, Training
from dualenc_jax.training.reporting import Reporter
from dualenc_jax.utils.errors import UserError

# Steps after which the loss should be below chance, and those in a row of a
# collapsed tower after which it is warned of.
_WARM_UP = 50
# First steps without any loss, after which it is warned of.
_WITHOUT_LOSS = 10
# A rank below this is a collapse if the loss is not lower than a constant map's
# by more than that; it is about as high if towers collapse, with noise.
_LOW_RANK, _NEAR_CHANCE = 2.0, 0.05
# Metrics that are arrays, one number a parameter.
_ARRAYS = 'gradient_squares', 'finite'
# Steps from one report of late batches to the next.
_RECENT = 100
# A larger share of late batches is warned of, once until it falls below again.
_SLOW = 0.5
_LOG = logging.getLogger(__name__)
LogFn = Callable[[str], None]


def stop_at_non_finite(paths: Sequence[str]) -> Hook:
  """Returns a hook that stops a run whose numbers are not finite.

  These are the loss, gradients and parameters, whose `paths` are given.
  """

  def call(run: Training) -> None:
    bad = _non_finite_tensors(run.metrics, paths)
    if bad:
      verb = 'is' if len(bad) == 1 else 'are'
      raise UserError(
          f'Step {run.step}: {list_first(bad)} {verb} not finite. The run has'
          ' stopped; what it saved before this step stays. Lower the learning'
          ' rate or raise the temperature, and run again.'
      )

  return Hook(call, every=1, late=True)


def _non_finite_tensors(
    metrics: Mapping[str, Any], paths: Sequence[str]
) -> list[str]:
  """Returns names of the loss, gradients or parameters that are not finite."""
  names = [] if np.isfinite(metrics['loss']) else ['the loss']
  bad = ~np.isfinite(metrics['gradient_squares'])
  names += [f'the gradient of {path}' for path, b in zip(paths, bad) if b]
  return names or [
      f'the updated {path}'
      for path, finite in zip(paths, metrics['finite'])
      if not finite
  ]


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


def warn_of_collapse(chance: float | None, log: LogFn) -> Hook:
  """Returns a hook that warns of a tower that has collapsed.

  `chance` is the loss of a model that knows nothing, None if it is not known.
  """
  in_a_row = 0

  def call(run: Training) -> None:
    nonlocal in_a_row
    metrics = run.metrics
    tower = _collapsed_tower(metrics, chance)
    in_a_row = in_a_row + 1 if tower else 0
    if in_a_row == _WARM_UP:
      log(
          f'WARNING: step {run.step}: the {tower} tower gives all texts nearly'
          f' one embedding (effective rank {metrics[f"{tower}_rank"]:.2f}) for'
          f' {in_a_row} steps in a row, and the loss,'
          f' {float(metrics["loss"]):.3f}, is that of a model that knows'
          ' nothing: it has collapsed. Lower LEARNING_RATE or raise'
          ' TEMPERATURE; look for near-duplicates by `dualenc data check`.'
      )

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


def warn_without_loss(log: LogFn) -> Hook:
  """Returns a hook that warns of a loss of 0 at each of the first steps."""
  is_zero: list[bool] = []

  def call(run: Training) -> None:
    if len(is_zero) == _WITHOUT_LOSS:
      return
    is_zero.append(float(run.metrics['loss']) == 0)
    if len(is_zero) == _WITHOUT_LOSS and all(is_zero):
      log(
          f'WARNING: step {run.step}: the loss of each of the first'
          f' {_WITHOUT_LOSS} steps is 0, so nothing has been learnt: no query'
          ' has a passage of a batch to tell its own from. Copies of a text'
          ' are no negatives; look for them by `dualenc data check`.'
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


def report_late_batches(late: list[bool], reporter: Reporter) -> Hook:
  """Returns a hook that reports the share of late batches, and warns of many.

  `late` says of each batch since the last report whether the step before, which
  runs while a batch is made, had ended by then; the hook clears it.
  """
  is_slow = False

  def write(run: Training) -> None:
    nonlocal is_slow
    share = sum(late) / max(len(late), 1)
    late.clear()
    reporter.scalars('input', run.step, {'late_batches': share})
    was_slow, is_slow = is_slow, share > _SLOW
    if is_slow and not was_slow:
      reporter.line(
          f'WARNING: step {run.step}: the input is slow: devices waited for'
          f' {share:.0%} of the last {_RECENT} batches. Keep the token cache'
          ' (CACHE_DIR) on a local disk, give this process more CPU cores, or'
          ' make a step larger (BATCH_SIZE).'
      )

  return Hook(write, _RECENT, at_end=False, late=True)


class BatchShapes:
  """Logs steps whose batch has another shape, for which they are compiled."""

  def __init__(self, most: int, leave_out: Callable[[float], None]):
    """`most` is the number of shapes; `leave_out` gets seconds of compiling."""
    self._most, self._leave_out = most, leave_out
    self._seen: set[tuple[tuple[int, ...], ...]] = set()

  @contextlib.contextmanager
  def step(self, number: int, batch: Any) -> Iterator[None]:
    """A context of the train step number `number`, from 1, on a batch."""
    shapes = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
    is_other = bool(self._seen) and shapes not in self._seen
    self._seen.add(shapes)
    began = time.perf_counter()
    yield
    if is_other:
      seconds = time.perf_counter() - began
      self._leave_out(seconds)
      _LOG.info(
          'Step %d: the texts need another shape of batch, number %d of at most'
          ' %d, compiled in %.1f s.',
          number, len(self._seen), self._most, seconds,
      )
