"""What a command sets up before it computes: logging, JAX, hosts."""

import argparse
from collections.abc import Callable
import ctypes
import logging
import os
import sys
import time

import jax

from dualenc_jax.commands import huge_pages
from dualenc_jax.io.files import default_cache_dir
from dualenc_jax.parallel.host import Host

_LOG = logging.getLogger(__name__)
# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_M_MMAP_MAX, _M_ARENA_MAX = -4, -8
_POLL_SECONDS = 2.0


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds --multihost."""
  parser.add_argument(
      '--multihost', action='store_true',
      help='join the other hosts: on TPU pods, SLURM and Open MPI without more;'
      ' elsewhere JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and'
      ' JAX_PROCESS_ID say where',
  )


def start_logging() -> None:
  """Shows what this program logs, and warnings of others, on standard error."""
  logging.basicConfig(
      level=logging.WARNING,
      format='%(message)s',
      stream=sys.stderr,
      force=True,
  )
  logging.getLogger('dualenc_jax').setLevel(logging.INFO)
  # Orbax logs what it raises, too, with a traceback a thread; it is told once.
  logging.getLogger('absl').addFilter(_is_news)


def start(multihost: bool = False) -> None:
  """Sets up logging and JAX's compilation cache, and joins the other hosts."""
  start_logging()
  if multihost:
    jax.distributed.initialize(**_cluster_from_environment())
  if jax.default_backend() == 'cpu':
    if line := huge_pages.describe():
      _LOG.info('%s', line)
    keep_freed_memory()
  use_compilation_cache()


def host(args: argparse.Namespace) -> Host:
  """Which of the hosts that share the work this is, after `start`.

  Args:
    args: with `flags.add_hosts`, checked, and --multihost.
  """
  if args.multihost:
    return Host(jax.process_index(), jax.process_count())
  return Host(args.host_index, args.host_count)


def all_done(args: argparse.Namespace, is_done: Callable[[], bool]) -> bool:
  """Whether all hosts have done their share.

  Those that have joined wait for it: the others die with the first that ends.

  Args:
    args: as of `host`.
    is_done: what tells, from the folder that they share.
  """
  while not (done := is_done()) and args.multihost:
    time.sleep(_POLL_SECONDS)
  return done


def use_compilation_cache() -> None:
  """Keeps compiled programs between runs.

  `JAX_COMPILATION_CACHE_DIR` says where. Several devices of a CPU keep them
  there alone: in a kept program with two rings XLA's CPU client mixes up what
  these send, and the numbers are wrong (jaxlib 0.10.2).
  """
  folder = os.environ.get('JAX_COMPILATION_CACHE_DIR')
  if not folder:
    if jax.default_backend() == 'cpu' and jax.device_count() > 1:
      return
    folder = default_cache_dir() / 'compiled'
  jax.config.update('jax_compilation_cache_dir', str(folder))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.5)
  _LOG.info('Compiled programs are kept in %s.', folder)


def _is_news(record: logging.LogRecord) -> bool:
  return not record.exc_info


def keep_freed_memory() -> None:
  """Tells glibc not to give freed memory back; elsewhere does nothing.

  XLA on the CPU frees the temporaries of a step, gigabytes, and the kernel
  would fault every page of them in again in the next one: a fifth of the time.
  """
  _mallopt(_M_MMAP_MAX, 0)
  _mallopt(_M_TRIM_THRESHOLD, -1)
  _mallopt(_M_ARENA_MAX, 1)


def return_freed_memory() -> None:
  """Tells glibc to give freed tensors back at once; elsewhere does nothing.

  For commands that have one large model in memory after the other: by itself
  glibc keeps what is freed of blocks up to 32 MB.
  """
  _mallopt(_M_MMAP_THRESHOLD, 1 << 20)
  _mallopt(_M_ARENA_MAX, 2)


def _mallopt(parameter: int, value: int) -> None:
  try:
    ctypes.CDLL('libc.so.6').mallopt(parameter, value)
  except (OSError, AttributeError):
    pass


def _cluster_from_environment() -> dict[str, str | int]:
  address = os.environ.get('JAX_COORDINATOR_ADDRESS')
  if address is None:
    return {}
  return {
      'coordinator_address': address,
      'num_processes': int(os.environ['JAX_NUM_PROCESSES']),
      'process_id': int(os.environ['JAX_PROCESS_ID']),
  }
