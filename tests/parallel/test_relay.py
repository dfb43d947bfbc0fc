"""Connections that are passed on, over real sockets."""

import socket

import pytest

from dualenc_jax.parallel.relay import Relay


@pytest.mark.parametrize('is_over', [False, True])
def test_bytes_are_passed_on_and_an_end_only_when_it_is_over(is_over):
  with socket.create_server(('', 0)) as service:
    relay = Relay(('localhost', service.getsockname()[1]), lambda: is_over)
    near = socket.create_connection(('127.0.0.1', relay.port))
    far, _ = service.accept()
    sent = bytes(range(256)) * 4000
    for source, sink in ((near, far), (far, near)):
      source.sendall(sent[:200000])
      with sink.makefile('rb', buffering=0) as file:
        found = b''
        while len(found) < 200000:
          found += file.read(1 << 16)
      assert found == sent[:200000]
    far.close()
    near.settimeout(1.0)
    if is_over:
      assert near.recv(1) == b''
    else:
      with pytest.raises(TimeoutError):
        near.recv(1)
    near.close()


def test_who_is_not_there_is_not_waited_for():
  with socket.create_server(('', 0)) as service:
    port = service.getsockname()[1]
  relay = Relay(('localhost', port), lambda: False)
  near = socket.create_connection(('127.0.0.1', relay.port), timeout=30)
  assert near.recv(1) == b''
