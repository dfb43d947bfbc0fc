"""Set-up of a command before it computes: logging, JAX, hosts."""

import argparse
import importlib.metadata
import logging
import os
import sys

import jax

import dualenc_jax
from dualenc_jax.cli import flags, process
from dualenc_jax.parallel import hosts
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.files import default_cache_dir

_LOG = logging.getLogger(__name__)
_PLACE = 'coordinator_address', 'num_processes', 'process_id'
# Flags that hosts may differ in: a folder may have another place.
_OF_A_HOST = {*_PLACE, 'initialization_timeout', 'model_dir'}
# The number of processes of a job, as each of them finds it. SLURM's batch
# script and an interactive shell have SLURM_NTASKS, but are no task of a step.
_LAUNCHED = {'SLURM_STEP_NUM_TASKS': 'srun', 'OMPI_COMM_WORLD_SIZE': 'mpirun'}


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds --multihost and where the other hosts are."""
  add = parser.add_argument
  add('--multihost', action='store_true',
      help='join the other hosts; needs the next three flags, but not on TPU'
      ' pods, SLURM, Open MPI and Kubernetes')
  add('--coordinator_address', metavar='HOST:PORT', type=flags.address,
      help='where the first host is reached')
  add('--num_processes', type=flags.whole(), help='number of hosts')
  add('--process_id', type=flags.whole(0),
      help='number of this host, from 0')
  add('--initialization_timeout', type=flags.whole(), default=300,
      metavar='SECONDS',
      help='time to wait for all hosts (default %(default)s)')


def start_logging() -> None:
  """Shows what this program logs, and warnings of others, on standard error."""
  logging.basicConfig(
      level=logging.WARNING, format='%(message)s', stream=sys.stderr, force=True
  )
  logging.getLogger('dualenc_jax').setLevel(logging.INFO)
  # Orbax logs what it raises, too, with a traceback a thread.
  logging.getLogger('absl').addFilter(lambda record: not record.exc_info)


def start(
    args: argparse.Namespace | None = None, keep_programs: bool = True
) -> None:
  """Sets up logging and JAX's compilation cache, and joins the other hosts.

  `args` have the flags of `add_flags`; None for a command without them.
  `keep_programs` = False disables the persistent compilation cache.
  """
  start_logging()
  if args is not None:
    _check_place(args)
  if args is not None and args.multihost:
    _join(args)
  else:
    _check_alone(args)
  if jax.default_backend() == 'cpu':
    process.keep_freed_memory()
  if keep_programs:
    use_compilation_cache()
  else:
    jax.config.update('jax_compilation_cache_dir', None)


def host() -> hosts.Host:
  """This host's number among the hosts that have joined, after `start`."""
  return hosts.Host(jax.process_index(), jax.process_count())


def check_multihost(
    args: argparse.Namespace, *without: str, needs_index: bool = False
) -> None:
  """Raises UserError for --multihost with flags that several hosts do not take.

  `without` are their names; `needs_index` if it needs --index_dir.
  """
  if not args.multihost:
    return
  if needs_index and args.index_dir is None:
    raise UserError(
        '--multihost needs --index_dir: a folder that all hosts share, where'
        ' each keeps its part of the embeddings.'
    )
  for name in without:
    if getattr(args, name):
      raise UserError(
          f'--{name} takes one host: leave it or --multihost out.'
      )


def _check_place(args: argparse.Namespace) -> None:
  """Raises UserError where some of the flags of one host are missing."""
  given = [f'--{name}' for name in _PLACE if getattr(args, name) is not None]
  if given and not (args.multihost and len(given) == len(_PLACE)):
    raise UserError(
        f'Of the flags that name the hosts only {", ".join(given)} given.'
        f' Expected --multihost with all of --{", --".join(_PLACE)}, or with'
        ' none of them where JAX finds the hosts.'
    )


def _check_alone(args: argparse.Namespace | None) -> None:
  """Raises UserError in one of several processes that have not joined."""
  found = {name: os.environ.get(name, '') for name in _LAUNCHED}
  name = next((n for n, v in found.items() if v.isdigit() and int(v) > 1), '')
  what = f'{name}={found.get(name)}: {_LAUNCHED.get(name)} has started others'
  slice_ = os.environ.get('TPU_WORKER_HOSTNAMES', '').split(',')
  if not name and len(slice_) > 1:
    name = 'TPU_WORKER_HOSTNAMES'
    what = f'{name} names {len(slice_)} hosts of one TPU slice'
  if name:
    advice = 'Give --multihost' if hasattr(args, 'multihost') else (
        'This command takes one host: run it once'
    )
    raise UserError(
        f'{what}. {advice}; or unset {name} if each is to run alone.'
    )


def use_compilation_cache() -> None:
  """Keeps compiled programs between runs.

  `JAX_COMPILATION_CACHE_DIR` says where. Several devices of a CPU keep them
  there alone: in a kept program with several rings XLA's CPU client mixes up
  what these send (jaxlib 0.10.2, 0.12.0.1; docs/running.md has such a program).
  """
  folder = os.environ.get('JAX_COMPILATION_CACHE_DIR')
  if not folder:
    if jax.default_backend() == 'cpu' and jax.device_count() > 1:
      return
    folder = str(default_cache_dir() / 'compiled')
  jax.config.update('jax_compilation_cache_dir', folder)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.05)


def _join(args: argparse.Namespace) -> None:
  process.keep_output_apart()
  # Versions and flags that must be the same on all hosts, a line each.
  lines = [f'{n} {importlib.metadata.version(n)}' for n in ('jax', 'jaxlib')]
  lines.append(f'dualenc_jax {dualenc_jax.__version__}')
  for name, value in sorted(vars(args).items()):
    if isinstance(value, list) and name not in _OF_A_HOST:
      lines += [str(x) for x in value if not str(x).startswith('MODEL_DIR =')]
    elif name not in _OF_A_HOST:
      lines.append(f'--{name}={value}')
  seconds = args.initialization_timeout
  _LOG.info('Joining the other hosts, which have %d s to come.', seconds)
  hosts.join(
      args.coordinator_address, args.num_processes, args.process_id, seconds,
      '\n'.join(lines),
  )
  index, count = jax.process_index(), jax.process_count()
  _LOG.info('Joined as host %d of %d.', index, count)
