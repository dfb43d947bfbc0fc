"""What a run says while it trains: TensorBoard, a progress bar, plain lines."""

from collections.abc import Mapping
import pathlib
import sys
import time

import jax
import tensorboardX
import tqdm

from dualenc_jax.errors import UserError


class Reporter:
  """Writes scalars as TensorBoard events and shows progress on stderr.

  On a terminal progress is a bar; elsewhere it is a line every ten seconds.
  """

  LINE_SECONDS = 10.0

  def __init__(
      self,
      model_dir: str | pathlib.Path,
      start: int,
      steps: int,
      batch_size: int,
  ):
    """Starts at step `start` of `steps`; events of an old run after it go."""
    self._is_first_host = jax.process_index() == 0
    self._folder = pathlib.Path(model_dir) / 'events'
    try:
      self._writer = tensorboardX.SummaryWriter(
          str(self._folder),
          # Events are numbered from 1; those of step `start` stay.
          purge_step=start + 1,
          write_to_disk=self._is_first_host,
      )
    except OSError as e:
      raise self._unwritable() from e
    self._steps = steps
    self._start = start
    self._batch_size = batch_size
    self._began = self._last = self._last_line = time.perf_counter()
    self._is_terminal = sys.stderr.isatty() and self._is_first_host
    self._bar = tqdm.tqdm(
        total=steps,
        initial=start,
        unit='step',
        disable=not self._is_terminal,
        dynamic_ncols=True,
    )

  def step(self, step: int, metrics: Mapping[str, float]) -> None:
    """Reports step number `step` (from 1), whose metrics have arrived."""
    now = time.perf_counter()
    rate = self._batch_size / max(now - self._last, 1e-9)
    self._last = now
    self.scalars('train', step, {**metrics, 'examples_per_second': rate})
    mean_rate = (step - self._start) * self._batch_size / (now - self._began)
    self._bar.set_postfix_str(
        f'loss {metrics["loss"]:.4f}, {mean_rate:.0f} examples/s', refresh=False
    )
    self._bar.update(1)
    due = now - self._last_line > self.LINE_SECONDS or step == self._steps
    if self._is_first_host and not self._is_terminal and due:
      self._last_line = now
      left = (now - self._began) / (step - self._start) * (self._steps - step)
      self.line(
          f'step {step}/{self._steps}: loss {metrics["loss"]:.4f},'
          f' {mean_rate:.0f} examples/s, {left:.0f} s left'
      )

  def scalars(self, group: str, step: int, values: Mapping[str, float]) -> None:
    """Writes numbers to TensorBoard as `<group>/<name>`.

    Raises:
      UserError: the events can no longer be written, as on a full disk.
    """
    self._check_writer()
    for name, value in values.items():
      self._writer.add_scalar(f'{group}/{name}', float(value), step)

  def pause(self) -> None:
    """Ends a pause (an evaluation, say) that is not the training's own time."""
    idle = time.perf_counter() - self._last
    self._last += idle
    self._began += idle

  def line(self, text: str) -> None:
    """One line on stderr, above the bar if there is one."""
    self._bar.write(text, file=sys.stderr)

  def close(self) -> None:
    """Ends the bar and writes what is left."""
    self._bar.close()
    self._check_writer()
    self._writer.close()

  def _check_writer(self) -> None:
    # tensorboardX writes in a thread. When that has died of an error, adding to
    # its queue blocks for ever once the queue is full.
    file_writer = self._writer.file_writer
    if file_writer is None:
      return
    if not file_writer.event_writer._worker.is_alive():
      raise self._unwritable()

  def _unwritable(self) -> UserError:
    return UserError(
        f'TensorBoard events cannot be written to {self._folder}; is the disk'
        ' full? The checkpoints so far are kept: make room and run the same'
        ' command again to resume.'
    )
