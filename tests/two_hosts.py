"""Two processes of a command that join over gloo."""

from collections.abc import Sequence
import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def start(
    *argv: str,
    devices: int = 4,
    each: Sequence[Sequence[str]] = ((), ()),
    folders: Sequence[pathlib.Path | None] = (None, None),
) -> list[subprocess.Popen]:
  """`dualenc ARGV --multihost` on two hosts, told by flags where the other is.

  Args:
    *argv: the command and its flags.
    devices: of each host.
    each: more flags of each host; any at all, and the others, are told by
      JAX's variables.
    folders: where each host works, with caches of its own; None: here.
  """
  with socket.socket() as s:
    s.bind(('localhost', 0))
    address = f'localhost:{s.getsockname()[1]}'
  hosts = []
  for host, (more, folder) in enumerate(zip(each, folders)):
    where = {
        'coordinator_address': address,
        'num_processes': '2',
        'process_id': str(host),
    }
    if any(each):
      environ = {f'JAX_{name.upper()}': x for name, x in where.items()}
      flags = []
    else:
      environ, flags = {}, [f'--{name}={x}' for name, x in where.items()]
    if folder is not None:
      environ['DUALENC_CACHE'] = str(folder / 'cache')
    hosts.append(
        subprocess.Popen(
            [
                sys.executable, '-m', 'dualenc_jax', *argv, '--multihost',
                *flags, *more,
            ],
            env=os.environ
            | {
                'PYTHONPATH': str(ROOT),
                'XLA_FLAGS': os.environ['XLA_FLAGS'].replace(
                    'device_count=8', f'device_count={devices}'
                ),
            }
            | environ,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    )
  return hosts


def ends(
    hosts: Sequence[subprocess.Popen], seconds: int = 300
) -> list[tuple[int, str]]:
  """Status and words of each; whoever is left is killed."""
  try:
    said = [host.communicate(timeout=seconds)[0] for host in hosts]
    return [(host.returncode, output) for host, output in zip(hosts, said)]
  finally:
    for host in hosts:
      host.kill()
      host.wait()


def run(*argv: str, devices: int = 4, seconds: int = 300) -> list[str]:
  """`dualenc ARGV --multihost` on two hosts of some devices; what they say."""
  said = []
  for status, output in ends(start(*argv, devices=devices), seconds):
    assert status == 0, output[-5000:]
    said.append(output)
  return said
