"""Progress of a run: metrics on disk, and a bar or lines on stderr."""

from collections.abc import Iterator, Mapping
import contextlib
import importlib
import json
import logging
import math
import os
import pathlib
import sys
import time
from typing import Any

import jax
import tqdm

from dualenc_jax.utils import files
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.progress import Progress

METRICS = 'metrics.jsonl'
TRACKERS = 'wandb', 'trackio'
# Seconds after which a reader of the events finds new ones.
_FLUSH_SECONDS = 30
_LOG = logging.getLogger(__name__)


class Reporter:
  """Writes scalars to `MODEL_DIR` and shows progress on stderr.

  Scalars are TensorBoard events in `events`, and lines of `metrics.jsonl` such
  as {"step": 10, "group": "train", "loss": 3.5}, where a number that is not
  finite is null. Only the first host writes. Methods that write raise UserError
  if that fails, as on a full disk.
  """

  def __init__(
      self, model_dir: str | pathlib.Path, start: int, steps: int,
      batch_size: int, tracker: str | None = None, run_id: str = '',
  ):
    """Opens the files, and removes metrics after the step of the start.

    Args:
      model_dir: the run's folder.
      start: steps taken so far.
      steps: steps of the whole run.
      batch_size: examples a step.
      tracker: one of `TRACKERS`, which gets the scalars, too.
      run_id: name of the run there, so that a resumed run is the same one.

    Raises:
      UserError: a file cannot be written, or the tracker is not installed.
    """
    self._is_first_host = jax.process_index() == 0
    self._folder = pathlib.Path(model_dir)
    if self._is_first_host:
      with self._writing():
        # Metrics of step `start` stay; step 0 of a run is evaluated again.
        keep = start or -1
        self._events = _Events(self._folder / 'events', keep + 1)
        path = self._folder / METRICS
        files.write(path, ''.join(_lines_until(path, keep)))
        self._lines = path.open('a', buffering=1)
      self._tracker = tracker and _Tracker(tracker, self._folder, run_id)
    self._steps = steps
    self._start = start
    self._batch_size = batch_size
    self._began = self._last = time.perf_counter()
    self._progress = Progress(
        'Training', steps, 'steps', self._is_first_host, start
    )

  def step(self, step: int, metrics: Mapping[str, float]) -> None:
    """Reports step number `step` (from 1), whose metrics have arrived."""
    now = time.perf_counter()
    took, self._last = now - self._last, now
    is_first = step == self._start + 1
    rate = self._batch_size / max(took, 1e-9)
    self.scalars('train', step, {**metrics, 'examples_per_second': rate})
    if not is_first:
      # The first step, which is compiled, does not count.
      rate = (step - self._start - 1) * self._batch_size / (now - self._began)
    note = f'loss {metrics["loss"]:.4f}, {rate:.0f} examples/s'
    self._progress(1, note)
    if is_first:
      self._began = now
    if step == self._steps:
      self._progress.log(note)

  def scalars(self, group: str, step: int, values: Mapping[str, float]) -> None:
    """Writes scalars as one line, and to TensorBoard as `<group>/<name>`."""
    if not self._is_first_host:
      return
    line: dict[str, Any] = {'step': step, 'group': group}
    for name, value in values.items():
      value = float(value)
      # Nine digits tell all float32 apart.
      line[name] = float(f'{value:.9g}') if math.isfinite(value) else None
    with self._writing():
      self._events.write(group, step, values)
      if self._tracker:
        self._tracker.write(group, step, values)
      self._lines.write(json.dumps(line, allow_nan=False) + '\n')

  def pause(self) -> None:
    """Takes the time since the last step, as of an evaluation, out."""
    self.leave_out(time.perf_counter() - self._last)

  def leave_out(self, seconds: float) -> None:
    """Takes a time, such as that of a compilation, out of the speed."""
    self._last += seconds
    self._began += seconds
    self._progress.leave_out(seconds)

  def flush(self) -> None:
    """Writes all that was reported so far to disk."""
    if self._is_first_host:
      with self._writing():
        self._events.flush()
        os.fsync(self._lines.fileno())

  def line(self, text: str) -> None:
    """Logs one line on stderr, above the bar if there is one."""
    tqdm.tqdm.write(text, file=sys.stderr)

  def close(self) -> None:
    """Ends the bar and writes the rest."""
    self._progress.close()
    if self._is_first_host:
      with self._writing():
        self._lines.close()
        self._events.close()
      if self._tracker:
        self._tracker.close()

  @contextlib.contextmanager
  def _writing(self) -> Iterator[None]:
    try:
      yield
    except OSError as e:
      raise UserError(
          f'{METRICS} or the events cannot be written to {self._folder}. Make'
          ' room there and run the same command again to resume.'
      ) from e


class _Events:
  """A file of TensorBoard events, written at once.

  tensorboardX's `SummaryWriter` has a thread, whose queue `flush` does not wait
  for, and which blocks callers after an error.
  """

  def __init__(self, folder: pathlib.Path, purge_step: int):
    """Opens a new file, which voids older ones from a step on."""
    with _without_torch():
      from tensorboardX import event_file_writer, summary
      from tensorboardX.proto import event_pb2
    # Its warnings of numbers that are not finite do not name them.
    logging.getLogger('tensorboardX.x2num').setLevel(logging.ERROR)
    self._scalar, self._event = summary.scalar, event_pb2.Event
    folder.mkdir(parents=True, exist_ok=True)
    self._file = event_file_writer.EventsWriter(str(folder / 'events'))
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._add(purge_step, session_log=start)
    self.flush()

  def write(self, group: str, step: int, values: Mapping[str, float]) -> None:
    for name, value in values.items():
      self._add(step, summary=self._scalar(f'{group}/{name}', float(value)))
    if time.monotonic() > self._flushed + _FLUSH_SECONDS:
      self.flush()

  def flush(self) -> None:
    self._file.flush()
    self._flushed = time.monotonic()

  def close(self) -> None:
    self._file.close()

  def _add(self, step: int, **what: Any) -> None:
    event = self._event(wall_time=time.time(), step=step, **what)
    self._file.write_event(event)


class _Tracker:
  """A run in Weights & Biases or trackio, whose functions are the same."""

  def __init__(self, package: str, folder: pathlib.Path, run_id: str):
    try:
      self._package = importlib.import_module(package)
    except ImportError as e:
      raise UserError(
          f'TRACKER is {package!r}, which is not installed: pip install'
          f' {package}.'
      ) from e
    name = folder.absolute().name
    same = {'id': run_id} if package == 'wandb' else {}
    self._package.init(
        project='dualenc_jax', name=name, resume='allow', **same
    )

  def write(self, group: str, step: int, values: Mapping[str, float]) -> None:
    named = {f'{group}/{name}': float(x) for name, x in values.items()}
    self._package.log(named, step=step)

  def close(self) -> None:
    self._package.finish()


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
  """A context without PyTorch, whose import costs seconds and 200 MB."""
  if 'torch' in sys.modules:
    yield
    return
  sys.modules['torch'] = None  # type: ignore[assignment] # Not importable.
  try:
    yield
  finally:
    del sys.modules['torch']


def _lines_until(path: pathlib.Path, step: int) -> Iterator[str]:
  """Yields the lines of `metrics.jsonl` up to a step.

  A line that a kill cut short is skipped, as are damaged ones, with a warning:
  a log stops no run.
  """
  if not path.exists():
    return
  damaged = 0
  with path.open('rb') as file:
    for line in file:
      try:
        if json.loads(line)['step'] <= step:
          yield line.decode()
      except (ValueError, LookupError, TypeError):
        damaged += line.endswith(b'\n')
  if damaged:
    _LOG.warning('%s: damaged lines, %d in all, are left out.', path, damaged)
