"""Arrays of all hosts, gathered over one device of each."""

import functools
from typing import Any

import jax
import numpy as np

from dualenc_jax.parallel import hosts


def mesh() -> jax.sharding.Mesh:
  """A mesh of one device of each host, in the order of their numbers."""
  firsts: dict[int, jax.Device] = {}
  for device in jax.devices():
    firsts.setdefault(device.process_index, device)
  return jax.sharding.Mesh(
      np.array([firsts[i] for i in sorted(firsts)]), ('host',)
  )


def gather(own: np.ndarray) -> np.ndarray:
  """Gathers arrays of equal shape, one of each host: [hosts, ...].

  They have a dtype of 32 bits. All hosts must call it in the same order.
  """
  return _collect(0, own)


def from_first(own: np.ndarray) -> np.ndarray:
  """Returns the first host's array, of the same shape on all; see `gather`."""
  return _collect(1, own)


def _collect(program: int, own: np.ndarray) -> np.ndarray:
  # Collectives of CPUs and GPUs give up where a host is late.
  hosts.wait_for_all()
  each, *programs = _programs()
  # As integers all bits come over.
  found = programs[program](
      jax.make_array_from_process_local_data(each, own.view(np.int32)[None])
  )
  return np.asarray(found.addressable_data(0)).view(own.dtype)


@functools.cache
def _programs() -> tuple[Any, ...]:
  """The sharding [hosts, ...], and programs for all arrays and the first."""
  over = mesh()
  each, all_ = (
      jax.sharding.NamedSharding(over, jax.sharding.PartitionSpec(*axes))
      for axes in (('host',), ())
  )
  return (
      each,
      jax.jit(lambda x: x, out_shardings=all_),
      jax.jit(lambda x: x[0], out_shardings=all_),
  )
