"""Connections between hosts: JSON messages, and a relay to a service."""

from collections.abc import Callable
import contextlib
import json
import socket
import threading
import time
from typing import Any

# Bytes of a message; a config has some ten thousand.
_LONGEST = 1 << 24


class Channel:
  """One end of a connection, which takes a JSON object a line.

  `heard` is the `time.monotonic()` of the last message.
  """

  def __init__(self, connection: socket.socket):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self._connection = connection
    self._lines = connection.makefile('rb')
    self._sending = threading.Lock()
    self.heard = time.monotonic()

  def send(self, kind: str, **facts: Any) -> None:
    """Sends a message; into a connection that has ended, nothing."""
    line = json.dumps({'kind': kind, **facts}).encode() + b'\n'
    with self._sending, contextlib.suppress(OSError):
      self._connection.sendall(line)

  def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
    """The next message within so long; None at the end, or of what is none."""
    try:
      self._connection.settimeout(seconds)
      message = json.loads(self._lines.readline(_LONGEST))
      # Sending waits for ever.
      self._connection.settimeout(None)
    except (OSError, ValueError, RecursionError):
      return None
    self.heard = time.monotonic()
    return message if isinstance(message, dict) else None

  def has_ended(self) -> bool:
    """Whether the other end has closed; nobody may be receiving."""
    with contextlib.suppress(OSError):
      self._connection.settimeout(0)
      try:
        return not self._connection.recv(1, socket.MSG_PEEK)
      except BlockingIOError:
        return False
      finally:
        self._connection.settimeout(None)
    return True

  def close(self) -> None:
    with contextlib.suppress(OSError):
      self._connection.shutdown(socket.SHUT_RDWR)
    self._connection.close()


class Relay:
  """Passes connections on, in threads.

  JAX's client of the coordination service aborts its process, with a trace of
  C++, as soon as the connection ends. Behind a relay it waits, and whoever
  watches the hosts has the time to say what has happened. `port` is of
  127.0.0.1.
  """

  def __init__(self, target: tuple[str, int], is_over: Callable[[], bool]):
    """Listens for what goes to a name and port; an end only if `is_over()`."""
    self._target, self._is_over = target, is_over
    self._server = socket.create_server(('127.0.0.1', 0))
    self.port = self._server.getsockname()[1]
    start_thread(self._accept)

  def _accept(self) -> None:
    while True:
      near, _ = self._server.accept()
      try:
        far = socket.create_connection(self._target, timeout=10)
      except OSError:
        near.close()
        continue
      for each in (near, far):
        each.settimeout(None)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      start_thread(self._pass_on, near, far, lambda: True)
      start_thread(self._pass_on, far, near, self._is_over)

  def _pass_on(
      self, source: socket.socket, sink: socket.socket,
      is_over: Callable[[], bool],
  ) -> None:
    with contextlib.suppress(OSError):
      while data := source.recv(1 << 16):
        sink.sendall(data)
    if is_over():
      for each in (source, sink):
        with contextlib.suppress(OSError):
          each.shutdown(socket.SHUT_RDWR)


def start_thread(target: Callable[..., None], *args: Any) -> None:
  threading.Thread(target=target, args=args, daemon=True).start()
