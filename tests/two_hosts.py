"""Two processes of a command that join over gloo."""

import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def run(*argv: str, devices: int = 4, seconds: int = 300) -> list[str]:
  """`dualenc ARGV --multihost` on two hosts of some devices; what they say."""
  with socket.socket() as s:
    s.bind(('localhost', 0))
    address = f'localhost:{s.getsockname()[1]}'
  hosts = [
      subprocess.Popen(
          [sys.executable, '-m', 'dualenc_jax', *argv, '--multihost'],
          env=os.environ
          | {
              'PYTHONPATH': str(ROOT),
              'XLA_FLAGS': os.environ['XLA_FLAGS'].replace(
                  'device_count=8', f'device_count={devices}'
              ),
              'JAX_COORDINATOR_ADDRESS': address,
              'JAX_NUM_PROCESSES': '2',
              'JAX_PROCESS_ID': str(host),
          },
          stdout=subprocess.PIPE,
          stderr=subprocess.STDOUT,
          text=True,
      )
      for host in range(2)
  ]
  try:
    said = [host.communicate(timeout=seconds)[0] for host in hosts]
    for host, output in zip(hosts, said):
      assert host.returncode == 0, output[-5000:]
  finally:
    for host in hosts:
      host.kill()
      host.wait()
  return said
