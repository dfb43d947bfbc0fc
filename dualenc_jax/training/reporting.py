"""What a run says while it trains: numbers on disk, a bar or plain lines."""

from collections.abc import Iterator, Mapping
import importlib
import json
import math
import pathlib
import sys
import time
import types

import jax
import tqdm

from dualenc_jax.errors import UserError
from dualenc_jax.io import files
from dualenc_jax.io.progress import Progress

METRICS = 'metrics.jsonl'


class Reporter:
  """Writes scalars to `MODEL_DIR` and shows progress on stderr.

  They are TensorBoard events in `events`, and in `metrics.jsonl` lines such as
  {"step": 10, "group": "train", "loss": 3.5}, where a number that is not finite
  is null. Only the first host writes. On a terminal progress is a bar;
  elsewhere it is a line every ten seconds.
  """

  def __init__(
      self,
      model_dir: str | pathlib.Path,
      start: int,
      steps: int,
      batch_size: int,
      started: float | None = None,
  ):
    """Starts at a step; numbers of an old run after it go.

    Args:
      model_dir: the run's folder.
      start: steps taken so far.
      steps: of the whole run.
      batch_size: examples a step.
      started: `time.perf_counter()` when the program started, for a line.
    """
    self._started = started
    self._is_first_host = jax.process_index() == 0
    self._folder = pathlib.Path(model_dir)
    if self._is_first_host:
      try:
        # The numbers of step `start` stay; of a run's start there are none.
        keep = start or -1
        self._events = _tensorboard().SummaryWriter(
            str(self._folder / 'events'), purge_step=keep + 1
        )
        path = self._folder / METRICS
        files.write(path, ''.join(_until(path, keep)))
        self._lines = path.open('a', buffering=1)
      except OSError as e:
        raise self._unwritable() from e
    self._steps = steps
    self._start = start
    self._batch_size = batch_size
    self._began = self._last = time.perf_counter()
    self._progress = Progress('Training', None, 'steps', self._is_first_host)
    self._progress.reach(start, steps)

  def step(self, step: int, metrics: Mapping[str, float]) -> None:
    """Reports step number `step` (from 1), whose metrics have arrived."""
    now = time.perf_counter()
    took, self._last = now - self._last, now
    is_first = step == self._start + 1
    if is_first and self._started is not None:
      since = now - self._started
      self.line(f'First step done {since:.1f} s after the start.')
    rate = self._batch_size / max(took, 1e-9)
    self.scalars('train', step, {**metrics, 'examples_per_second': rate})
    if not is_first:
      # The first step is not counted: it was compiled, too.
      rate = (step - self._start - 1) * self._batch_size / (now - self._began)
    note = f'loss {metrics["loss"]:.4f}, {rate:.0f} examples/s'
    self._progress(1, note)
    if is_first:
      self._began = now
      self._progress.leave_out(took, 1)
    if step == self._steps:
      self._progress.log(note)

  def scalars(self, group: str, step: int, values: Mapping[str, float]) -> None:
    """Writes numbers as one line, and to TensorBoard as `<group>/<name>`.

    Raises:
      UserError: they can no longer be written, as on a full disk.
    """
    if not self._is_first_host:
      return
    self._check_events()
    line = {'step': step, 'group': group}
    for name, value in values.items():
      value = float(value)
      self._events.add_scalar(f'{group}/{name}', value, step)
      # Nine digits tell all float32 apart.
      line[name] = float(f'{value:.9g}') if math.isfinite(value) else None
    try:
      self._lines.write(json.dumps(line, allow_nan=False) + '\n')
    except OSError as e:
      raise self._unwritable() from e

  def pause(self) -> None:
    """Ends a pause (an evaluation, say) that is not the training's own time."""
    idle = time.perf_counter() - self._last
    self._last += idle
    self._began += idle
    self._progress.leave_out(idle)

  def line(self, text: str) -> None:
    """One line on stderr, above the bar if there is one."""
    tqdm.tqdm.write(text, file=sys.stderr)

  def close(self) -> None:
    """Ends the bar and writes what is left."""
    self._progress.close()
    if self._is_first_host:
      self._lines.close()
      self._check_events()
      self._events.close()

  def _check_events(self) -> None:
    # tensorboardX writes in a thread. When that has died of an error, adding to
    # its queue blocks for ever once the queue is full.
    if not self._events.file_writer.event_writer._worker.is_alive():
      raise self._unwritable()

  def _unwritable(self) -> UserError:
    return UserError(
        f'{METRICS} or the events cannot be written to {self._folder}; is the'
        ' disk full? The checkpoints so far are kept: make room and run the'
        ' same command again to resume.'
    )


def _tensorboard() -> types.ModuleType:
  """tensorboardX, kept from importing PyTorch: seconds, and 200 MB."""
  if 'torch' in sys.modules:
    return importlib.import_module('tensorboardX')
  sys.modules['torch'] = None
  try:
    return importlib.import_module('tensorboardX')
  finally:
    del sys.modules['torch']


def _until(path: pathlib.Path, step: int) -> Iterator[str]:
  """The lines of `metrics.jsonl` up to a step; one cut short by a kill goes."""
  if not path.exists():
    return
  for line in path.read_text().splitlines(keepends=True):
    if line.endswith('}\n') and json.loads(line)['step'] <= step:
      yield line
