"""Ends of a run before its last step: a criterion, or signals on any host."""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import logging
import math
import numbers
import os
import signal
import socket
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from dualenc_jax.parallel import host_arrays
from dualenc_jax.utils.errors import (
  check_whole,
  expect,
  INTERRUPTED,
  RUN_AGAIN,
  stop,
)

# The effective rank of the query tower's embeddings, as a share of the passage
# tower's, below which they count as collapsed, which the divergence hides.
_LEAST_RANK = 0.5
# `kill`, preemption; Ctrl-C; SLURM's --signal=USR1@60.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# One notice may come twice: to a launcher, which passes it on, and to the group
# of its processes. Later than this a second one is meant.
_SAME_SECONDS = 1.0
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class UntilAligned:
  """DAFT's criterion for the end of alignment (Leonhardt et al. 2022, alg. 1).

  The run ends when both towers embed queries alike. With KL the divergence of
  `evaluation.divergence.alignment` on the validation queries, KL_0 that before
  the first step, and a floor measured on the passage tower alone, that is

    KL - floor < share (KL_0 - floor).

  Attributes:
    share: share of the excess at the start that may be left.
    threshold: nats; the run ends at KL < threshold in place of the above.
      DAFT's 250 fits its 512 dims and its number of queries.
    patience: evaluations in a row in which KL has not fallen, after which the
      run ends, too; None for no such end.
  """

  share: float = 0.2
  threshold: float | None = None
  patience: int | None = 3

  def __post_init__(self):
    expect(
        isinstance(self.share, numbers.Real) and 0 <= self.share < 1,
        'UntilAligned.share', self.share,
        'a number from 0 up to, not including, 1',
    )
    nats = self.threshold
    expect(
        nats is None or isinstance(nats, numbers.Real) and math.isfinite(nats),
        'UntilAligned.threshold', nats,
        'a number, of nats, or None for the share of the start',
    )
    if self.patience is not None:
      check_whole('UntilAligned.patience', self.patience, 1)

  def limit(self, start: float, floor: float) -> float:
    """Returns the divergence below which a run ends."""
    excess = self.share * (start - floor)
    return floor + excess if self.threshold is None else self.threshold

  def end(
      self, notes: dict[str, Any], divergence: float, floor: float, rank: float
  ) -> str | None:
    """Returns the reason to end after an evaluation; None to go on.

    Args:
      notes: kept from one evaluation to the next, {} before the first, which
        precedes the first step.
      divergence: KL, nats.
      floor: as above.
      rank: effective rank of the query tower's embeddings over the passage
        tower's.
    """
    if not notes:
      notes.update(start=divergence, best=divergence, since=0)
      return None
    fell = divergence < notes['best']
    notes['since'] = 0 if fell else notes['since'] + 1
    notes['best'] = min(divergence, notes['best'])
    limit = self.limit(notes['start'], floor)
    if divergence < limit and rank >= _LEAST_RANK:
      return f'aligned, the divergence {divergence:.1f} is below {limit:.1f}.'
    if self.patience is not None and notes['since'] >= self.patience:
      return (
          'WARNING: the divergence has not fallen at the last'
          f' {notes["since"]} of the evaluations; it is {divergence:.1f}, and'
          f' below {limit:.1f} was aimed at.'
      )
    return None


class Stopping:
  """A request to stop a run at the end of a step, by a signal.

  Within `handle_signals`, SIGTERM, SIGINT and SIGUSR1 request a stop. Within
  `between_steps` of a run the first signal waits for the end of a step, and a
  second one, a second later or more, ends the process at once with status 128 +
  its number. Elsewhere there is nothing to save: SIGINT is a KeyboardInterrupt,
  the others end the program with status 75 (`errors.RUN_AGAIN`).

  Attributes:
    cause: the name of the signal; None without a request.
  """

  def __init__(self):
    self.cause: str | None = None
    self._stepping = False
    self._signalled_at: float | None = None

  @property
  def status(self) -> int:
    """The exit status of a program that has stopped."""
    return INTERRUPTED if self.cause == 'SIGINT' else RUN_AGAIN

  @contextlib.contextmanager
  def between_steps(self) -> Iterator[None]:
    """A context in which a signal waits for the end of a step."""
    self._stepping = True
    try:
      yield
    finally:
      self._stepping = False

  @contextlib.contextmanager
  def handle_signals(self) -> Iterator[None]:
    """A context that handles signals, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
      yield
      return
    # A thread reads the signals, which a long call into XLA does not delay.
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    before = {each: signal.signal(each, self._handle) for each in SIGNALS}
    threading.Thread(target=self._read, args=[reader], daemon=True).start()
    try:
      yield
    finally:
      for each, handler in before.items():
        signal.signal(each, handler)
      signal.set_wakeup_fd(wakeup)
      writer.close()

  def _handle(self, number: int, frame: Any) -> None:
    if self._stepping or self.cause is not None:
      return
    if number == signal.SIGINT:
      raise KeyboardInterrupt
    stop(number, frame)

  def _read(self, reader: socket.socket) -> None:
    with reader:
      while data := reader.recv(1):
        if data[0] in SIGNALS and (self._stepping or self.cause is not None):
          self._signalled(data[0])

  def _signalled(self, number: int) -> None:
    name, now = signal.Signals(number).name, time.monotonic()
    if self._signalled_at is None:
      self._signalled_at, self.cause = now, name
      _LOG.warning(
          '%s: the run stops at the end of a step and saves a checkpoint of it.'
          ' A second signal stops it at once.',
          name,
      )
    elif now - self._signalled_at >= _SAME_SECONDS:
      os.write(2, f'{name} again: stopping at once.\n'.encode())
      os._exit(128 + number)


class AnyHost:
  """Whether any host has requested a stop, asked once a step.

  One host has its own answer. Several have that of the step before, which
  devices compute behind that step, so that no host waits; each must ask at each
  step.
  """

  def __init__(self, this_host: Callable[[], bool]):
    """`this_host` returns the answer of this host."""
    self._this_host = this_host
    self._pending: jax.Array | None = None
    if jax.process_count() > 1:
      # One device a host: a sum over all of them, beside those of the train
      # step, would have the hosts wait for each other in different orders.
      mesh = host_arrays.mesh()
      self._each = NamedSharding(mesh, PartitionSpec('host'))
      self._any = jax.jit(
          jnp.any, out_shardings=NamedSharding(mesh, PartitionSpec())
      )

  def __call__(self) -> bool:
    answer = self._this_host()
    if jax.process_count() == 1:
      return answer
    before = self._pending
    self._pending = self._any(
        jax.make_array_from_process_local_data(self._each, np.full(1, answer))
    )
    return before is not None and bool(before)
