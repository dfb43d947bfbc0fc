"""What a run uses of its machine: memory, and time that waits for data."""

import logging

from dualenc_jax.io import machine
from dualenc_jax.run.feeding import Waiting
from dualenc_jax.run.hooks import Hook, Training
from dualenc_jax.training.reporting import Reporter

GROUP = 'resources'
_EVERY = 100
# A share of waiting beyond it is said, once until it falls below again.
_SLOW = 0.1
_LOG = logging.getLogger(__name__)


class Resources:
  """Writes what is used every 100 steps, and says at the end what was most."""

  def __init__(self, waiting: Waiting, reporter: Reporter):
    self._waiting, self._reporter = waiting, reporter
    self._is_slow = False

  def hook(self) -> Hook:
    return Hook(self._write, _EVERY, at_end=False, late=True)

  def _write(self, run: Training) -> None:
    share = self._waiting.share
    self._reporter.scalars(
        GROUP, run.step, {'waiting_for_data': share, **machine.memory_in_use()}
    )
    was_slow, self._is_slow = self._is_slow, share > _SLOW
    if self._is_slow and not was_slow:
      self._reporter.line(
          f'WARNING: step {run.step}: the input is slow: devices wait for data'
          f' {share:.0%} of the time. Keep the token cache (CACHE_DIR) on a'
          ' local disk, give this process more CPU cores, or make a step larger'
          ' (BATCH_SIZE).'
      )

  def describe(self) -> None:
    """Logs the most memory that the process had."""
    used = machine.memory_in_use()
    names = {'host_peak_mib': 'of this process', 'device_peak_mib': 'a device'}
    parts = [f'{used[k]:,.0f} MiB {v}' for k, v in names.items() if k in used]
    if parts:
      _LOG.info('Most memory: %s.', ', '.join(parts))
