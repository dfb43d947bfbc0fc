"""A temperature that is trained with the model."""

from collections.abc import Mapping
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.utils.errors import check_positive, expect

Params = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class LearnableTemperature:
  """A temperature learnt in log space and clamped.

  At a bound the gradient is 0 if a step along it would lead further out.
  Adafactor's steps are proportional to the parameter: near temperature 1, whose
  log is 0, they are small.
  """

  initial: float = 0.05
  minimum: float = 0.005
  maximum: float = 1.0

  def __post_init__(self):
    check_positive('LearnableTemperature.minimum', self.minimum)
    expect(
        self.minimum <= self.initial <= self.maximum,
        'LearnableTemperature.initial', self.initial,
        f'a value from minimum {self.minimum} to maximum {self.maximum}',
    )

  def init(self) -> dict[str, jax.Array]:
    """Returns the parameter: {'log_temperature': float32 []}."""
    return {'log_temperature': jnp.asarray(math.log(self.initial), jnp.float32)}

  def __call__(self, params: Params) -> jax.Array:
    """Returns the clamped temperature, float32 []."""
    low, high = math.log(self.minimum), math.log(self.maximum)
    return jnp.exp(_clamped(params['log_temperature'], low, high))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _clamped(x: jax.Array, low: float, high: float) -> jax.Array:
  """Clips x [] to the bounds; gradients that lead back to them pass."""
  return jnp.clip(x, low, high)


def _gradient_of_clamped(low, high, x, gradient):
  # A step is against the gradient.
  outwards = (x <= low) & (gradient > 0.0) | (x >= high) & (gradient < 0.0)
  return (jnp.where(outwards, 0.0, gradient),)


_clamped.defvjp(
    lambda x, low, high: (_clamped(x, low, high), x), _gradient_of_clamped
)
