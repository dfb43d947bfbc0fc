"""The temperature of the similarities: a number, or learnt."""

import dataclasses
import math
import numbers

import jax
import jax.numpy as jnp

from dualenc_jax.errors import UserError


def check_positive(name: str, value: float) -> None:
  number = isinstance(value, numbers.Real) and not isinstance(value, bool)
  if not (number and math.isfinite(value) and value > 0.0):
    raise UserError(f'{name} is {value!r}; expected a finite number above 0.')


@dataclasses.dataclass(frozen=True)
class LearnableTemperature:
  """A temperature learnt in log space and clamped.

  Its gradient is 0 beyond a bound, so once it has crossed one it stays there.

  Attributes:
    initial: value at the start.
    minimum: lower bound; the paper's fixed temperature is 0.01.
    maximum: upper bound.
  """

  initial: float = 0.05
  minimum: float = 0.005
  maximum: float = 1.0

  def __post_init__(self):
    for field in ('initial', 'minimum', 'maximum'):
      check_positive(f'LearnableTemperature.{field}', getattr(self, field))
    if not self.minimum <= self.initial <= self.maximum:
      raise UserError(
          f'LearnableTemperature.initial is {self.initial}; expected a value'
          f' from minimum {self.minimum} to maximum {self.maximum}.'
      )

  def init(self) -> dict[str, jax.Array]:
    """The parameter: {'log_temperature': float32 []}."""
    return {'log_temperature': jnp.asarray(math.log(self.initial), jnp.float32)}

  def __call__(self, params: dict[str, jax.Array]) -> jax.Array:
    """The clamped temperature, float32 []."""
    low, high = math.log(self.minimum), math.log(self.maximum)
    return jnp.exp(jnp.clip(params['log_temperature'], low, high))
