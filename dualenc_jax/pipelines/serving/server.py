"""Runs an app on a socket until a signal ends it."""

import asyncio
import signal
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

# Connections at once; more are answered 503.
_CONNECTIONS = 1024


class _Protocol(H11Protocol):
  """Aborts connections whose client is slow, which uvicorn itself does not.

  A client has some seconds for the head of a request, and each time as long
  to take more of an answer. The app looks after bodies.
  """

  _timer: asyncio.TimerHandle | None = None

  def connection_made(self, transport: Any) -> None:
    super().connection_made(transport)
    self._wait(0)

  def connection_lost(self, exc: Exception | None) -> None:
    self._stop_waiting()
    super().connection_lost(exc)

  def on_response_complete(self) -> None:
    super().on_response_complete()
    self._wait(self.transport.get_write_buffer_size())

  def _stop_waiting(self) -> None:
    if self._timer is not None:
      self._timer.cancel()

  def _wait(self, unread: int) -> None:
    self._stop_waiting()
    self._timer = self.loop.call_later(
        self.timeout_keep_alive, self._check, unread
    )

  def _check(self, unread: int) -> None:
    if self.cycle is not None and not self.cycle.response_complete:
      return  # A request is under way; its answer will wait again.
    left = self.transport.get_write_buffer_size()
    if 0 < left < unread:
      self._wait(left)
    else:
      self.transport.abort()


def run(app: Any, listener: socket.socket, timeout: int) -> None:
  """Serves an ASGI app until SIGTERM or SIGINT, then answers what it has.

  Args:
    app: the ASGI app.
    listener: a socket that listens.
    timeout: seconds that a client has to send a request, or to take more of an
      answer.
  """
  server = uvicorn.Server(
      uvicorn.Config(
          app, http=_Protocol, ws='none', lifespan='on', log_config=None,
          access_log=False, server_header=False, proxy_headers=False,
          limit_concurrency=_CONNECTIONS, timeout_keep_alive=timeout,
      )
  )
  # uvicorn sends the signal again once it has ended.
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, server.handle_exit)
  server.run([listener])
