"""Reports of how a run uses its machine: idle devices, memory, compilations."""

import collections
from collections.abc import Callable, Iterator
import contextlib
import logging
import queue
import threading
import time
from typing import Any

import jax

from dualenc_jax.parallel.partitioning import path_string
from dualenc_jax.training.hooks import Hook, Training
from dualenc_jax.training.reporting import Reporter
from dualenc_jax.utils import machine

_COMPILED = '/jax/core/compile/backend_compile_duration'
# Steps that the share of waiting is of, and between two reports of it.
_RECENT = 100
# The first step compiles, and so may that after it.
_WARM_UP = 2
# For so long the end of a run waits for that of its last step.
_END_SECONDS = 20.0
# A larger share of waiting is warned of, once until it falls below again.
_SLOW = 0.1
_LOG = logging.getLogger(__name__)


class Waiting:
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

  def batch(self, make: Callable[[], Any]) -> Any:
    """Times `make()`, and returns its batch."""
    began = time.perf_counter()
    batch = make()
    self._made = began, time.perf_counter()
    return batch

  def runs(self, output: jax.Array) -> None:
    """Takes the output of the step, under way, on the last batch."""
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


def report_use(waiting: Waiting, reporter: Reporter) -> Hook:
  """A hook: reports memory and waiting each 100 steps, warns of slow input."""
  is_slow = False

  def write(run: Training) -> None:
    nonlocal is_slow
    share = waiting.share
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


def log_memory() -> None:
  """Logs the peak of memory of the process."""
  used = machine.memory_in_use()
  names = {'host_peak_mib': 'of this process', 'device_peak_mib': 'a device'}
  parts = [f'{used[k]:,.0f} MiB {v}' for k, v in names.items() if k in used]
  if parts:
    _LOG.info('Most memory: %s.', ', '.join(parts))


class Programs:
  """Names the batches that the train step is compiled for, after the first."""

  def __init__(self, most: int, spends: Callable[[float], None]):
    """`most` is the number of shapes; `spends` gets seconds of compiling."""
    self._most, self._spends = most, spends
    self._seen: collections.Counter[Any] = collections.Counter()

  @contextlib.contextmanager
  def step(self, number: int, batch: Any) -> Iterator[None]:
    """A context of the train step number `number`, from 1, on a batch."""
    spent, thread = [], threading.get_ident()

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
      if event == _COMPILED and threading.get_ident() == thread:
        spent.append(duration_secs)

    leaves = jax.tree_util.tree_leaves_with_path(batch)
    shapes = tuple((path_string(path), leaf.shape) for path, leaf in leaves)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
      yield
    finally:
      jax.monitoring.unregister_event_duration_listener(listen)
    if self._seen:
      # All of the first step is no measure of the speed.
      self._spends(sum(spent))
    if self._seen and shapes not in self._seen:
      others = set(shapes) - set(next(iter(self._seen)))
      _LOG.info(
          'Step %d: the texts need another shape of batch, number %d of at most'
          ' %d: %s; compiled in %.1f s.',
          number, len(self._seen) + 1, self._most,
          _words(shape for shape in shapes if shape in others), sum(spent),
      )
    elif spent and self._seen.total() >= _WARM_UP:
      _LOG.warning(
          'WARNING: step %d: the train step was compiled again, in %.1f s, for'
          ' a batch of a shape that it was compiled for before: %s. That is a'
          ' mistake in the library, or in an objective of yours: something'
          ' besides the shapes changes from step to step.',
          number, sum(spent), _words(shapes),
      )
    self._seen[shapes] += 1


def _words(shapes: Any) -> str:
  return ', '.join(f'{name} {list(shape)}' for name, shape in shapes)
