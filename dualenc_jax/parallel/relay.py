"""A door to another host's service that does not shut when that host dies."""

from collections.abc import Callable
import contextlib
import socket
import threading


class Relay:
  """Passes connections on, in threads.

  JAX's client of the coordination service aborts its process, with a trace of
  C++, as soon as the connection ends. Behind a relay it waits, and whoever
  watches the hosts has the time to say what has happened.

  Attributes:
    port: of 127.0.0.1, to connect to.
  """

  def __init__(self, target: tuple[str, int], is_over: Callable[[], bool]):
    """Starts to listen.

    Args:
      target: name and port to pass on to.
      is_over: whether the end of a connection is as it should be, so that it is
        passed on, too.
    """
    self._target, self._is_over = target, is_over
    self._server = socket.create_server(('127.0.0.1', 0))
    self.port = self._server.getsockname()[1]
    _start(self._accept)

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
      _start(self._pass_on, near, far, lambda: True)
      _start(self._pass_on, far, near, self._is_over)

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


def _start(target: Callable[..., None], *args) -> None:
  threading.Thread(target=target, args=args, daemon=True).start()
