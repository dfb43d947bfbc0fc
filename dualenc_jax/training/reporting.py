"""What a run says while it trains: TensorBoard, a progress bar, plain lines."""

from collections.abc import Mapping
import pathlib
import sys
import time

import jax
import tensorboardX
import tqdm


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
    self._writer = tensorboardX.SummaryWriter(
        str(pathlib.Path(model_dir) / 'events'),
        purge_step=start,
        write_to_disk=self._is_first_host,
    )
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
          f'step {step}/{self._steps}: loss {metrics["loss"]:.4f}, accuracy'
          f' {metrics["accuracy"]:.3f}, {mean_rate:.0f} examples/s,'
          f' {left:.0f} s left'
      )

  def scalars(self, group: str, step: int, values: Mapping[str, float]) -> None:
    """Writes numbers to TensorBoard as `<group>/<name>`."""
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
    self._bar.close()
    self._writer.close()
