"""Joining the hosts of a command, and ending them together.

There is one meeting a process; alone, all of this does nothing.
"""

import atexit
import contextlib
import os
import sys
import time

from dualenc_jax.errors import UserError
from dualenc_jax.parallel import meeting
from dualenc_jax.parallel.channel import Relay
from dualenc_jax.parallel.cluster import Cluster

# This library's own watch is what ends hosts.
_JAX_WAITS = 24 * 3600
_joined: meeting.Meeting | None = None


def join(cluster: Cluster, seconds: int, facts: str) -> None:
  """Meets the other hosts, compares facts with theirs, and joins them in JAX.

  Of one host alone nothing is done. Facts are lines: versions, flags.

  Raises:
    UserError: they do not come within `seconds`, or differ.
  """
  global _joined
  if cluster.count == 1:
    return
  import jax

  there = meeting.Meeting(cluster, seconds)
  _joined = there
  # Before JAX's own, which waits for the other hosts.
  atexit.register(there.leave)
  agree('versions or flags', facts)
  # SIGTERM would be noted by it alone, and end nothing.
  jax.config.update('jax_enable_preemption_service', False)
  name, port = '127.0.0.1', there.service_port
  if cluster.index:
    first = meeting.host_and_port(cluster.address)[0]
    port = Relay((first, port), lambda: there.is_over).port
  jax.distributed.initialize(
      f'{name}:{port}', cluster.count, cluster.index, cluster.local_device_ids,
      initialization_timeout=_JAX_WAITS, heartbeat_timeout_seconds=_JAX_WAITS,
      shutdown_timeout_seconds=_JAX_WAITS,
  )
  kind = jax.local_devices()[0].device_kind
  agree('devices', f'{jax.local_device_count()} of kind {kind}')


def agree(what: str, text: str, advice: str = '') -> None:
  """Raises UserError, on all hosts, unless all have the same lines of text."""
  if _joined is None:
    return
  texts = _joined.share(text)
  members = [_joined.members[i] for i in range(len(texts))]
  if said := meeting.differing(what, members, texts):
    raise UserError(f'{said} {advice or "Expected the same on all hosts."}')


def wait_for_all() -> None:
  """Returns once all hosts have come to it, however long that takes."""
  if _joined is not None:
    _joined.share('')


def wait_for_verdict(error: BaseException) -> None:
  """Leaves it to the watch to say which host an error is of.

  The connections between devices end as soon as a host does. Returns where no
  host was lost.
  """
  if _joined is None:
    return
  each: BaseException | None = error
  while each is not None:
    said = str(each)
    if (
        type(each).__name__ == 'JaxRuntimeError'
        and 'RESOURCE_EXHAUSTED' not in said
    ):
      time.sleep(meeting.SILENCE + 10)
      return
    each = each.__cause__ or each.__context__


def end(status: int, why: str) -> int:
  """Ends this host, which has failed, and has the others end.

  Args:
    status: to exit with, and for the others, which have then failed, too; it is
      returned where this host is alone.
    why: for the others, after the name of this host.
  """
  if _joined is None or _joined.is_over:
    return status
  _joined.end(why, status)
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError, ValueError):
      stream.flush()
  # JAX would wait, at exit, for hosts that wait for this one.
  os._exit(status)


def leave() -> None:
  """Says that this host has done what all had agreed on."""
  if _joined is not None:
    _joined.leave()


def is_joined() -> bool:
  """Whether this is one of several hosts."""
  return _joined is not None
