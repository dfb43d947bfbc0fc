"""The hosts that a command joins: by flags, variables or a cluster."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from dualenc_jax.errors import expect, UserError

# Their flags are the same in small letters, without JAX_.
_VARIABLES = ('JAX_COORDINATOR_ADDRESS', 'JAX_NUM_PROCESSES', 'JAX_PROCESS_ID')
# What `srun` sets, and JAX reads.
_SLURM = (
    'SLURM_JOB_ID', 'SLURM_STEP_NODELIST', 'SLURM_NTASKS', 'SLURM_PROCID',
    'SLURM_LOCALID',
)
_NUMBERS = {'SLURM_JOB_ID', 'SLURM_NTASKS', 'SLURM_PROCID', 'SLURM_LOCALID'}


@dataclasses.dataclass(frozen=True)
class Cluster:
  """The hosts of a command, and which this one is.

  The first is reached at `address`, 'name:port'; `local_device_ids` is None for
  all devices of the machine.
  """

  address: str
  count: int
  index: int
  local_device_ids: Sequence[int] | None = None


def find(
    given: Mapping[str, str | int | None], environ: Mapping[str, str],
    seconds: int,
) -> Cluster:
  """The hosts as flags name them, else JAX's variables, else the cluster.

  `given` are the flags coordinator_address, num_processes and process_id, or
  None; `seconds` how long to wait for a cluster's own name service.

  Raises:
    UserError: some of them are missing, or are not what they should be.
  """
  flags = {f'--{name}': value for name, value in given.items()}
  variables = {name: environ.get(name) or None for name in _VARIABLES}
  for source in (flags, variables):
    absent = [name for name, value in source.items() if value is None]
    if not absent:
      return _checked(source)
    if len(absent) < len(source):
      there = ' and '.join(name for name in source if name not in absent)
      raise UserError(
          f'{there} {"is" if len(absent) == 2 else "are"} given without'
          f' {" and ".join(absent)}. Expected all three of'
          f' {", ".join(source)}, on every host.'
      )
  return _detected(environ, seconds)


def _checked(source: Mapping[str, Any]) -> Cluster:
  names, (address, *numbers) = list(source), source.values()
  address = str(address)
  host, _, port = address.rpartition(':')
  expect(
      host and port.isdecimal() and 0 < int(port) < 1 << 16, names[0], address,
      'the name or number of the first host and a port, such as 10.0.0.1:8476',
  )
  for name, number in zip(names[1:], numbers):
    expect(str(number).isdecimal(), name, number, 'a whole number')
  count, index = map(int, numbers)
  if not index < count:
    both = f'{names[2]} is {index} and {names[1]} {count}'
    raise UserError(f'{both}; expected an index below the count.')
  return Cluster(address, count, index)


def _detected(environ: Mapping[str, str], seconds: int) -> Cluster:
  """The hosts as JAX finds them: of Cloud TPUs, SLURM, Open MPI, Kubernetes."""
  # No public function finds them without joining them.
  from jax._src import clusters

  absent = [name for name in _SLURM if not environ.get(name)]
  for name in () if absent else sorted(_NUMBERS):
    expected = 'a whole number, as srun sets it'
    expect(environ[name].isdecimal(), name, environ[name], expected)
  try:
    address, count, index, local = (
        clusters.ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, seconds
        )
    )
  except Exception as e:  # Of name services, HTTP, Kubernetes, variables.
    raise UserError(
        f'--multihost: the cluster does not list its hosts: {e}. {_ADVICE}'
    ) from e
  if address is None or count is None or index is None:
    half = ''
    if 'SLURM_JOB_ID' in environ and absent:
      half = (
          f' SLURM_JOB_ID is set and {", ".join(absent)} not: in a batch script'
          ' start the command with srun.'
      )
    raise UserError(
        '--multihost: the hosts are unknown. Expected Cloud TPUs, SLURM, Open'
        f' MPI or Kubernetes.{half} {_ADVICE}'
    )
  return Cluster(address, count, index, local)


_ADVICE = (
    'Elsewhere give --coordinator_address=HOST:PORT, --num_processes and'
    ' --process_id, or the variables ' + ', '.join(_VARIABLES) + '.'
)
