"""FSDP: which parts of parameters travel between devices, and how often."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_micro_batches as cases

from dualenc_jax.models import layers
from dualenc_jax.parallel import data_axis, ring_order
from dualenc_jax.training import Partitioner

pytestmark = pytest.mark.devices(8)

FSDP = (('embed', 'data'),)


def test_gathered_as_products_want_it_and_summed_in_float32():
  text = str(
      cases.trace_step(Partitioner(1, FSDP), None, 48, dtype='bfloat16').jaxpr
  )
  gathered = re.findall(r'(bf16|f32)\[\S* = all_gather\[', text)
  # Kernels of layers and norms; the embeddings and projection are float32.
  assert gathered.count('f32') == 2
  assert gathered.count('bf16') == 7 + 3
  summed = re.findall(r'(bf16|f32)\[\S* = reduce_scatter\[', text)
  assert summed == ['f32'] * 12


def test_gradients_of_a_split_layer(monkeypatch):
  """Equal to those of a whole one, and near if they are sent in bfloat16.

  Along the lines of a cube they come to the same devices.
  """
  rng = np.random.default_rng(0)
  dense = layers.Dense(24, ('embed', 'mlp'), dtype='bfloat16')
  x, direction = rng.normal(size=(32, 16)), rng.normal(size=(32, 24))
  params = {'kernel': rng.normal(size=(16, 24)).astype(np.float32)}
  x, direction = (jnp.asarray(a, jnp.bfloat16) for a in (x, direction))

  def boxed():
    return jax.eval_shape(dense.init, jax.random.key(0), x)['params']

  def gradient(partitioner):
    @jax.jit
    def compute(params, x):
      def value(params):
        y = data_axis.map_rows(
            # Two uses, whose gradients are added before they are sent.
            lambda p, x: sum(dense.apply({'params': p}, a) for a in (x, x**2)),
            16, boxed, params, x,
        )
        return jnp.sum((jnp.sin(y) * direction).astype(jnp.float32))

      with partitioner.scope():
        return jax.grad(value)(params)

    split = partitioner.param_shardings(boxed())
    return np.asarray(
        compute(jax.device_put(params, split), partitioner.to_device(x))
        ['kernel']
    )

  plain, split, rounded = map(gradient, (
      Partitioner(), Partitioner(1, FSDP),
      Partitioner(1, FSDP, sum_dtype='bfloat16'),
  ))
  scale = np.abs(plain).max()
  assert np.abs(split - plain).max() < 1e-6 * scale
  # As oxen plough: through it.
  cube = (0, 1, 3, 2, 6, 7, 5, 4)
  lines = ring_order.make_lines([np.unravel_index(i, (2,) * 3) for i in cube])
  monkeypatch.setattr(ring_order, 'data_lines', lambda devices: lines)
  by_line = gradient(Partitioner(1, FSDP))
  assert np.abs(by_line - plain).max() < 1e-6 * scale
  assert 1e-5 * scale < np.abs(rounded - split).max() < 2**-7 * scale
