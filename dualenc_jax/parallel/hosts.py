"""The hosts of a command: they join, agree, and end together.

JAX's coordination service runs on the first host. By its heartbeats every host
ends, to be run again, once one has died or has not answered for `SILENCE`
seconds. A host that fails writes the reason into the service's key-value store,
and the others end with it. In a process that has not joined others, `agree`,
`wait_for_all` and `leave` do nothing.
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
from typing import Any, NoReturn

from dualenc_jax.parallel import lost_hosts
from dualenc_jax.utils.errors import RUN_AGAIN, UserError

# Seconds without a heartbeat after which JAX gives a host up, a second early or
# late.
SILENCE = 50
# Seconds between signs of life, and between checks whether a host has failed.
_INTERVAL = 1.0
# Hosts for each of which one more sign of life passes between looks at all.
_CROWD = 32
_DAY = 24 * 3600
# Seconds in which a shared folder must show what another host has written, and
# between looks. NFS keeps the list of a folder's files for up to 60 s.
_APPEARS, _POLL = 120.0, 2.0
_FAILED, _ALIVE = 'dualenc_jax/failed', 'dualenc_jax/alive'
# Exit statuses of a host that would fail again.
_ERRORS = 1, 2

# The state of JAX's coordination service, once the hosts have joined.
_service: Any = None
# How often all hosts have waited for each other, for unique keys.
_waits = 0
# By the key of a host: its last sign of life, and when this host saw it first.
_heard: dict[str, tuple[str, float]] = {}
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
    seconds: time to wait for all hosts; then the process ends, with the status
      `RUN_AGAIN`.
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
    with lost_hosts.told_to(_give_up):
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
  """Waits until JAX gives up the host that an error of a collective is due to.

  The process ends then. Returns at once for other errors, and after a while if
  no host is lost.
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
  client, key, beats = _service.client, f'{_ALIVE}/{_service.process_id}', 0
  while not _over.wait(_INTERVAL):
    beats += 1
    try:
      client.key_value_set(key, f'{_name()} {beats}', allow_overwrite=True)
      # Each host reads the signs of all, so of many each reads seldom.
      if beats % (1 + _service.num_processes // _CROWD) == 0:
        now = time.monotonic()
        for host, said in client.key_value_dir_get(_ALIVE):
          if said != _heard.get(host, ('', now))[0]:
            _heard[host] = said, now
      status, why = json.loads(client.key_value_try_get(_FAILED))
    except Exception:  # No host has failed, or JAX is about to say so.
      continue
    if not _over.is_set():
      status = status if status in _ERRORS else RUN_AGAIN
      _stop(f'{why}; {_stops_too()}', status)
  with contextlib.suppress(Exception):
    client.key_value_set(key, ' left', allow_overwrite=True)


def _give_up(*_: Any) -> None:
  """Ends this process, as JAX has given up a host, or waiting for all."""
  if _service is None:
    _stop(
        'not all hosts have come within --initialization_timeout, or they were'
        ' given other numbers of hosts. Run the same command again on all'
        ' hosts.',
        RUN_AGAIN,
    )
  last = max((seen for _, seen in _heard.values()), default=0.0)
  lost = [said for said, seen in _heard.values() if last - seen > SILENCE / 2]
  if not lost and _service.process_id:
    # The store is with the first host: without it all are as silent.
    lost = [_heard.get(f'{_ALIVE}/0', ('host 0 -', last))[0]]
  names = [name for said in lost if (name := said.rpartition(' ')[0])]
  _stop(
      f'{" and ".join(names) or "another host"} has died or does not answer;'
      f' {_stops_too()}', RUN_AGAIN,
  )


def _stop(message: str, status: int) -> NoReturn:
  """Ends this process, whose main thread may wait for ever."""
  # Checkpoints and shards appear whole or not at all.
  os.write(2, f'error: {message}\n'.encode())
  os._exit(status)


def _stops_too() -> str:
  return (
      f'{_name()} stops, too. Run the same command again on all hosts to'
      ' resume.'
  )


def _name() -> str:
  number = _service.process_id
  return f'host {number} ({socket.gethostname()}, pid {os.getpid()})'


def _lines_beyond(text: str, other: str) -> str:
  """The first lines of a text that the other lacks."""
  lines = [x for x in text.splitlines() if x not in other.splitlines()]
  more = f' and {len(lines) - 3} more' if len(lines) > 3 else ''
  return '; '.join(lines[:3]) + more if lines else 'nothing else'
