"""Two hosts that join over gloo do at the same step what one of them wishes."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
HOST = """
import sys
import jax
address, index = sys.argv[1], int(sys.argv[2])
jax.distributed.initialize(address, 2, index)
from dualenc_jax.run.hooks import Agreement, Wish

step = 0
def wish():
  # One asks for a checkpoint until there is one, the other tells to stop.
  if index and step >= 6:
    return Wish.STOP
  return Wish.SAVE if not index and 2 <= step < 4 else Wish.GO_ON

agree, found = Agreement(wish), []
while not found or found[-1] is not Wish.STOP:
  step += 1
  found.append(agree())
print('found', [int(each) for each in found])
"""


@pytest.mark.slow
def test_what_one_wishes_all_do_a_step_later():
  with socket.socket() as s:
    s.bind(('localhost', 0))
    address = f'localhost:{s.getsockname()[1]}'
  flags = '--xla_force_host_platform_device_count=2'
  hosts = [
      subprocess.Popen(
          [sys.executable, '-c', HOST, address, str(index)],
          env=os.environ | {'PYTHONPATH': str(ROOT), 'XLA_FLAGS': flags},
          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
      )
      for index in range(2)
  ]
  try:
    for host in hosts:
      out, err = host.communicate(timeout=300)
      # Wished at step 2 and at 3, when nobody knew yet, and saved once.
      last = out.splitlines()[-1:]
      assert last == ['found [0, 0, 1, 0, 0, 0, 2]'], err[-3000:]
  finally:
    for host in hosts:
      host.kill()
      host.wait()
