"""Meshes of some of the devices."""

import dataclasses
import functools

import jax

from dualenc_jax.training import Partitioner


@dataclasses.dataclass(frozen=True)
class SmallPartitioner(Partitioner):
  """A mesh of the first `devices` devices."""

  devices: int = 8

  @functools.cached_property
  def mesh(self):
    return jax.make_mesh(
        (self.devices // self.model_parallel, self.model_parallel),
        ('data', 'model'),
        axis_types=(jax.sharding.AxisType.Auto,) * 2,
        devices=jax.devices()[: self.devices],
    )
