"""Slices of TPUs by name, and what the compiler knows of them."""

import jax
import numpy as np
import pytest

from dualenc_jax.forecast import gpus, slices
from dualenc_jax.training import Partitioner
from dualenc_jax.utils.errors import UserError


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('v5e', 'the compiler refuses it: .*Expected the chips of each'),
        ('v5:4x4', "no such TPU or GPU as 'v5'.*Did you mean 'v5"),
        ('v5e:3x3', 'the compiler refuses it: .*not divisible'),
    ],
)
def test_unknown_slices(name, message):
  with pytest.raises(UserError, match=f'--topology={name}.*{message}'):
    slices.find_slice(name)


@pytest.mark.parametrize(
    ('name', 'devices', 'kind', 'model'),
    [
        ('v5e:1x1', 1, 'TPU v5 lite', 1),
        ('v6e:2x4', 8, 'TPU v6 lite', 1),
        ('v5e:8x8', 64, 'TPU v5 lite', 1),
        ('v5e:16x16', 256, 'TPU v5 lite', 4),
        ('v5p:4x4x4', 64, 'TPU v5', 2),
    ],
)
def test_devices(name, devices, kind, model):
  """Both axes together go from wire to wire; of a large flat slice, each row.

  The compiler refuses sums over its axes in other orders.
  """
  found = slices.find_slice(name)
  assert {device.device_kind for device in found.devices} == {kind}
  mesh = slices.on_slice(Partitioner(model), found).mesh
  assert mesh.shape == {'data': devices // model, 'model': model}
  places = np.array([[d.coords for d in row] for row in mesh.devices])
  if devices == 256:
    hops = np.diff(places, axis=1)
  else:
    around = places.reshape(devices, -1)
    hops = around - np.roll(around, 1, axis=0)
  assert np.all(np.abs(hops).sum(axis=-1) == (devices > 1))
  assert jax.default_backend() == 'cpu'


@pytest.mark.parametrize('number', ['12', '0', '2x4', ''])
def test_numbers_of_gpus(number):
  with pytest.raises(UserError, match='h200:.* has no number of GPUs.*h200:8'):
    gpus.make_devices('h200', number)
