"""What all hosts of a run do at the same step."""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.run.hooks import Wish


class Agreement:
  """The greatest wish of all hosts, once a step.

  On one host it is that host's own. On several it is that of the step before:
  devices work it out behind that step, so that nobody waits; each host must
  ask at each step.
  """

  def __init__(self, wish: Callable[[], Wish]):
    """`wish`: of this host."""
    self._own = wish
    self._pending = None

  def __call__(self) -> Wish:
    if jax.process_count() == 1:
      return self._own()
    before, self._pending = self._pending, _greatest(self._own())
    found = Wish.GO_ON if before is None else Wish(int(before))
    if found is not Wish.GO_ON:
      # That of now was made before anybody knew of this one.
      self._pending = None
    return found


def _greatest(wish: Wish) -> jax.Array:
  """The greatest of all hosts' wishes, on its way."""
  program, sharding, device = _program()
  own = jax.device_put(np.full(1, wish, np.int32), device)
  return program(
      jax.make_array_from_single_device_arrays(
          (jax.process_count(),), sharding, [own]
      )
  )


@functools.cache
def _program():
  firsts = {}
  for device in jax.devices():
    firsts.setdefault(device.process_index, device)
  hosts = [firsts[index] for index in sorted(firsts)]
  mesh = jax.sharding.Mesh(np.array(hosts), ('host',))
  spec = jax.sharding.PartitionSpec
  each = jax.sharding.NamedSharding(mesh, spec('host'))
  one = jax.sharding.NamedSharding(mesh, spec())
  return (
      jax.jit(jnp.max, out_shardings=one), each, firsts[jax.process_index()]
  )
