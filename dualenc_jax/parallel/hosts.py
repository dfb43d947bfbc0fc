"""The hosts of a command: they join, agree, and end together.

JAX's coordination service runs on the first host. Its heartbeats end every host
once one has died or has not answered for `SILENCE` seconds. A host that fails
writes the reason into the service's key-value store, and the others end with
it. In a process that has not joined others, `agree`, `wait_for_all` and `leave`
do nothing.
"""

import atexit
from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import json
import os
import socket
import sys
import threading
import time
from typing import Any

from dualenc_jax.utils.errors import RUN_AGAIN, UserError

# Seconds without a heartbeat after which JAX gives a host up.
SILENCE = 60
# Seconds between checks whether a host has failed.
_INTERVAL = 1.0
_DAY = 24 * 3600
# Seconds in which a shared folder must show what another host has written, and
# between looks. NFS keeps the list of a folder's files for up to 60 s.
_APPEARS, _POLL = 120.0, 2.0
_FAILED = 'dualenc_jax/failed'
# Exit statuses of a host that would fail again.
_ERRORS = 1, 2

# The state of JAX's coordination service, once the hosts have joined.
_service: Any = None
# How often all hosts have waited for each other, for unique keys.
_waits = 0
_over = threading.Event()


@dataclasses.dataclass(frozen=True)
class Host:
  """The number of this host among those that share the work."""

  index: int = 0
  count: int = 1


def join(
    address: str | None, count: int | None, index: int | None, seconds: int,
    facts: str,
) -> None:
  """Joins the other hosts, and compares facts with the first.

  Args:
    address: HOST:PORT of the first host.
    count: number of hosts.
    index: number of this one. All three are None where JAX finds them: on Cloud
      TPUs, SLURM, Open MPI and Kubernetes.
    seconds: time to wait for all hosts; then JAX ends the process.
    facts: lines that must be the same on all hosts: versions, flags.

  Raises:
    UserError: JAX does not find the hosts, or they differ.
  """
  global _service
  import jax

  # The key-value store has no public name. Orbax takes it from here, too.
  from jax._src import distributed

  # Otherwise JAX catches SIGTERM.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
        address, count, index, initialization_timeout=seconds,
        # Under SLURM a process would have one device only.
        cluster_detection_method='deactivate' if address else None,
        heartbeat_timeout_seconds=SILENCE, shutdown_timeout_seconds=_DAY,
    )
  except Exception as e:  # Name services, HTTP, Kubernetes and others fail.
    raise UserError(
        f'--multihost: JAX does not find the hosts: {e} Expected Cloud TPUs,'
        ' SLURM (start the command with srun), Open MPI or Kubernetes, or'
        ' --coordinator_address=HOST:PORT, --num_processes and --process_id on'
        ' every host.'
    ) from e
  _service = distributed.global_state
  watch = threading.Thread(target=_watch, daemon=True)
  watch.start()
  # Before JAX's own function, which waits for the other hosts.
  atexit.register(watch.join)
  atexit.register(leave)
  agree('versions or flags', f'hosts {_service.num_processes}\n{facts}')
  kind = jax.local_devices()[0].device_kind
  agree('devices', f'{jax.local_device_count()} of kind {kind}')


def agree(
    what: str, text: str, advice: str = 'Expected the same on all hosts.'
) -> None:
  """Returns once all hosts have the same lines of text.

  All hosts must call it in the same order.

  Raises:
    UserError: on each host that has other lines than the first.
  """
  if _service is None:
    return
  client, key = _service.client, f'dualenc_jax/lines {_waits}'
  if _service.process_id == 0:
    client.key_value_set(key, f'{_name()}\n{text}')
  first, _, expected = client.blocking_key_value_get(
      key, _DAY * 1000
  ).partition('\n')
  if text != expected:
    raise UserError(
        f'The hosts have different {what}: {first} has'
        f' {_lines_beyond(expected, text)}, {_name()} has'
        f' {_lines_beyond(text, expected)}. {advice}'
    )
  wait_for_all()


def lines(provenance: Mapping[str, Any]) -> str:
  """Lines of the provenance of a model, for `agree`, without its folder."""
  return '\n'.join(
      f'{name} {value}'
      for name, value in sorted(provenance.items())
      if name not in ('model_dir', 'checkpoint')
  )


def wait_for_all() -> None:
  """Returns once all hosts have called it, however long that takes."""
  global _waits
  if _service is not None:
    key, _waits = f'dualenc_jax/wait {_waits}', _waits + 1
    _service.client.wait_at_barrier(key, _DAY * 1000)


def wait_for_shards(is_done: Callable[[], bool], folder: Any) -> None:
  """Waits until all hosts have made their shards in a folder they share.

  All hosts must call it. `is_done` says whether all shards are there.

  Raises:
    UserError: this host does not see what the others have made.
  """
  wait_for_all()
  last = time.monotonic() + _APPEARS
  while not is_done():
    if time.monotonic() > last:
      raise UserError(
          f'{folder} lacks shards that the other hosts have made. Give a folder'
          ' that all hosts share.'
      )
    time.sleep(_POLL)


def wait_for_verdict(error: BaseException) -> None:
  """Waits until JAX names the host that an error of a collective is due to.

  Returns at once for other errors.
  """
  each: BaseException | None = error
  while _service is not None and each is not None:
    text = str(each)
    if 'Gloo' in text or (
        type(each).__name__ == 'JaxRuntimeError'
        and 'RESOURCE_EXHAUSTED' not in text
    ):
      time.sleep(SILENCE + 20)
      return
    each = each.__cause__ or each.__context__


def end(status: int, why: str) -> int:
  """Ends this host, which has failed, and the others.

  Args:
    status: exit status of this host, and of the others if it is an error's.
    why: the reason, which the others print after the name of this host.

  Returns:
    The status, where this host is alone or has left.
  """
  if _service is None or _over.is_set():
    return status
  _over.set()
  client, index = _service.client, _service.process_id
  with contextlib.suppress(Exception):  # The service may have ended.
    client.key_value_set(_FAILED, json.dumps([status, f'{_name()} {why}']))
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError, ValueError):
      stream.flush()
  if index == 0:
    time.sleep(3 * _INTERVAL)  # The store ends with this process.
  # JAX would wait, at exit, for hosts that wait for this one.
  os._exit(status)


def leave() -> None:
  """Marks the work of this host as done: failures of others end it no more."""
  _over.set()


def is_joined() -> bool:
  """Whether this is one of several hosts."""
  return _service is not None


def _watch() -> None:
  """Ends this process once another host has written that it has failed."""
  while not _over.wait(_INTERVAL):
    try:
      status, why = json.loads(_service.client.key_value_try_get(_FAILED))
    except Exception:  # No host has failed, or JAX is about to say so.
      continue
    if _over.is_set():
      return
    # The main thread may wait for ever. Checkpoints and shards appear whole or
    # not at all.
    os.write(
        2,
        f'error: {why}; {_name()} stops, too. Run the same command again on all'
        ' hosts to resume.\n'.encode(),
    )
    os._exit(status if status in _ERRORS else RUN_AGAIN)


def _name() -> str:
  number = _service.process_id
  return f'host {number} ({socket.gethostname()}, pid {os.getpid()})'


def _lines_beyond(text: str, other: str) -> str:
  """The first lines of a text that the other lacks."""
  lines = [x for x in text.splitlines() if x not in other.splitlines()]
  more = f' and {len(lines) - 3} more' if len(lines) > 3 else ''
  return '; '.join(lines[:3]) + more if lines else 'nothing else'
