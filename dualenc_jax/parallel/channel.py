"""Messages between two hosts: a JSON object a line, over TCP."""

import contextlib
import json
import socket
import threading
import time
from typing import Any

# Bytes of a message; a config has some ten thousand.
_LONGEST = 1 << 24


class Channel:
  """One end of a connection.

  Attributes:
    heard: `time.monotonic()` of the last message.
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
    """The next message; None at the end, or of what is no message.

    Args:
      seconds: as long is waited for it; None for ever.
    """
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
