"""Two processes of a command, or more, that join over gloo."""

from collections.abc import Mapping, Sequence
import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
# Of each host.
Environs = Sequence[Mapping[str, str]]


def free_port() -> int:
  with socket.create_server(('', 0)) as server:
    return server.getsockname()[1]


def by_flags(count: int = 2) -> Sequence[Sequence[str]]:
  """Flags that name the hosts, for each of them."""
  address = f'localhost:{free_port()}'
  where = f'--coordinator_address={address}', f'--num_processes={count}'
  return [[*where, f'--process_id={host}'] for host in range(count)]


def by_slurm() -> Environs:
  """What `srun` sets; the port is made of the job's number."""
  return [
      {
          'SLURM_JOB_ID': str(os.getpid()),
          'SLURM_STEP_NODELIST': 'localhost,other', 'SLURM_NTASKS': '2',
          'SLURM_PROCID': str(host), 'SLURM_LOCALID': str(host),
      }
      for host in range(2)
  ]


def impatient(folder: pathlib.Path) -> Environs:
  """Variables of hosts that give each other up after 8 s in place of 50.

  The folder gets a module that all Python programs import first.
  """
  (folder / 'sitecustomize.py').write_text(
      'from dualenc_jax.parallel import hosts\nhosts.SILENCE = 8\n'
  )
  return ({'PYTHONPATH': f'{folder}:{ROOT}'},) * 2


def start(
    *argv: str, devices: int | Sequence[int] = 4,
    environs: Environs | None = None, each: Sequence[Sequence[str]] = (),
    folders: Sequence[pathlib.Path | None] = (),
    stderr: int = subprocess.STDOUT,
) -> list[subprocess.Popen]:
  """`dualenc ARGV --multihost` on two hosts, or as many as have `devices`.

  Of each host: `environs`, more variables, in place of flags that say where
  the other is if they are those of SLURM; `each`, more flags; `folders`, where
  it works, with caches of its own, or here.
  """
  if isinstance(devices, int):
    devices = devices, devices
  count = len(devices)
  environs, each = environs or ({},) * count, each or ((),) * count
  folders = folders or (None,) * count
  if 'SLURM_JOB_ID' not in environs[0]:
    each = [[*where, *more] for where, more in zip(by_flags(count), each)]
  hosts = []
  for more, environ, folder, own in zip(
      each, environs, folders, devices, strict=True
  ):
    caches = {'DUALENC_CACHE': str(folder / 'cache')} if folder else {}
    hosts.append(
        subprocess.Popen(
            [
                sys.executable, '-m', 'dualenc_jax', *argv, '--multihost',
                *more,
            ],
            env=os.environ
            | {'PYTHONPATH': str(ROOT), 'JAX_NUM_CPU_DEVICES': str(own)}
            | caches | environ,
            cwd=folder, stdout=subprocess.PIPE, stderr=stderr,
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


def run(
    *argv: str, devices: int = 4, environs: Environs | None = None,
    each: Sequence[Sequence[str]] = ((), ()), seconds: int = 300,
    stderr: int = subprocess.STDOUT,
) -> list[str]:
  """Runs `start` to its end; what the hosts say."""
  said = []
  for status, output in ends(
      start(
          *argv, devices=devices, environs=environs, each=each, stderr=stderr
      ),
      seconds,
  ):
    assert status == 0, output[-5000:]
    said.append(output)
  return said
