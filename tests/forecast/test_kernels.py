"""Cycles of kernels, for which the compiler is asked once more."""

import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.forecast import kernels, slices
from dualenc_jax.forecast.schedule import Schedule
from dualenc_jax.models import dot_product_attention
from dualenc_jax.training import Partitioner

PROGRAM = (
    pathlib.Path(__file__).parents[1] / 'data/scheduled.hlo'
).read_text()


def test_a_kernel_that_does_not_say_its_steps_is_told():
  text = PROGRAM.replace('"steps":"4"', '"of":"another"')
  found = kernels.timed(text, slices.find('v5e:1x1'))
  assert (found.kernels, found.unknown) == (set(), {'own_kernel'})
  assert Schedule(found.text).cycles() == Schedule(PROGRAM).cycles()


@pytest.mark.slow
def test_a_kernel_that_does_not_compile():
  with pytest.raises(UserError, match='the size of the kernels .*own_ke'):
    kernels.timed(PROGRAM, slices.find('v5e:1x1'))


@pytest.mark.slow
def test_a_kernel_takes_as_long_as_its_grid_has_steps():
  on = slices.find('v5e:1x1')
  partitioner = slices.on_slice(Partitioner(), on)

  def step(query, bias, mask):
    with partitioner.scope():
      return dot_product_attention(query, query, query, bias, mask)

  def cycles(rows, length):
    shapes = (rows, length, 2, 64), (1, 2, length, length), (rows, 1, 1, length)
    program = jax.jit(step, in_shardings=partitioner.replicated).lower(*(
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in zip(shapes, (jnp.bfloat16, jnp.float32, bool))
    )).compile()
    found = kernels.timed(program.as_text(), on)
    assert found.kernels == {'attention_forward'}
    assert not found.unknown
    assert len(re.findall('kernel={"estimated_cycles', found.text)) == 1
    return sum(
        operation.cycles for operation, _ in Schedule(found.text).operations()
        if 'attention_forward' in operation.name
    )

  few, many, long = cycles(2, 64), cycles(6, 64), cycles(2, 256)
  assert many == pytest.approx(3 * few, rel=0.05)
  # A product of 64 x 64 x 128 alone is 8 cycles of the four units.
  assert 2 * 2 * 2 * 8 < few < long < 2 * 10_000
