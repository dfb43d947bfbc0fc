"""Two processes of a command that join over gloo."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import os
import pathlib
import socket
import subprocess
import sys

import metadata_server

ROOT = pathlib.Path(__file__).parents[2]
# Of each host.
Environs = Sequence[Mapping[str, str]]


def free_port() -> int:
  with socket.create_server(('', 0)) as server:
    return server.getsockname()[1]


def by_jax(*addresses: str) -> Environs:
  """JAX's own variables; the first host's address as each knows it."""
  return [
      {
          'JAX_COORDINATOR_ADDRESS': address, 'JAX_NUM_PROCESSES': '2',
          'JAX_PROCESS_ID': str(host),
      }
      for host, address in enumerate(
          addresses or [f'localhost:{free_port()}'] * 2
      )
  ]


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


def by_gke() -> Environs:
  """What pods of GKE have, on machines with TPUs."""
  port = str(free_port())
  return [
      {
          'JAX_FORCE_TPU_INIT': '1', 'JAX_COORDINATOR_PORT': port,
          'TPU_WORKER_HOSTNAMES': 'localhost,localhost',
          'TPU_WORKER_ID': str(host),
          # Else JAX asks a metadata server for them.
          'MEGASCALE_COORDINATOR_ADDRESS': 'localhost',
          'MEGASCALE_NUM_SLICES': '1', 'MEGASCALE_SLICE_ID': '0',
      }
      for host in range(2)
  ]


@contextlib.contextmanager
def by_metadata(folder: pathlib.Path) -> Iterator[Environs]:
  """What TPU VMs learn from a metadata server each.

  The folder gets a module that all Python programs import first.
  """
  # JAX asks no server where it finds no TPU chips.
  (folder / 'sitecustomize.py').write_text(
      'import os, jax\ndel os.environ["TPU_SKIP_MDS_QUERY"]\n'
  )
  port = str(free_port())
  with contextlib.ExitStack() as servers:
    yield [
        {
            'JAX_FORCE_TPU_INIT': '1', 'JAX_COORDINATOR_PORT': port,
            'PYTHONPATH': f'{folder}:{ROOT}',
            'GCE_METADATA_IP': servers.enter_context(
                metadata_server.serve({
                    'attributes/agent-worker-number': str(host),
                    'attributes/worker-network-endpoints': (
                        'unknown:unknown:127.0.0.1,unknown:unknown:127.0.0.1'
                    ),
                    'attributes/tpu-env': "ACCELERATOR_TYPE: 'v5litepod-8'\n",
                })
            ),
        }
        for host in range(2)
    ]


def start(
    *argv: str, devices: int | Sequence[int] = 4,
    environs: Environs | None = None, each: Sequence[Sequence[str]] = ((), ()),
    folders: Sequence[pathlib.Path | None] = (None, None),
    within: Sequence[Sequence[str]] = ((), ()),
) -> list[subprocess.Popen]:
  """`dualenc ARGV --multihost` on two hosts.

  Of each host: `environs`, more variables, which say where the other is, or
  flags do; `each`, more flags; `folders`, where it works, with caches of its
  own, or here; `within`, a command that runs that of the host.
  """
  if environs is None:
    address = f'localhost:{free_port()}'
    environs = {}, {}
    where = f'--coordinator_address={address}', '--num_processes=2'
    each = [
        [*where, f'--process_id={host}', *more]
        for host, more in enumerate(each)
    ]
  if isinstance(devices, int):
    devices = devices, devices
  hosts = []
  for more, environ, folder, count, outer in zip(
      each, environs, folders, devices, within, strict=True
  ):
    caches = {'DUALENC_CACHE': str(folder / 'cache')} if folder else {}
    hosts.append(
        subprocess.Popen(
            [
                *outer, sys.executable, '-m', 'dualenc_jax', *argv,
                '--multihost', *more,
            ],
            env=os.environ
            | {'PYTHONPATH': str(ROOT), 'JAX_NUM_CPU_DEVICES': str(count)}
            | caches | environ,
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
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
) -> list[str]:
  """Runs `start` to its end; what the hosts say."""
  said = []
  for status, output in ends(
      start(*argv, devices=devices, environs=environs, each=each), seconds
  ):
    assert status == 0, output[-5000:]
    said.append(output)
  return said
