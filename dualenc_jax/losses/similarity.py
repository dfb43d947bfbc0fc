"""How vectors are compared: the settings that every loss is given alike."""

import dataclasses
import math
import numbers

import jax
import jax.numpy as jnp

from dualenc_jax.errors import UserError
from dualenc_jax.losses import log_partition


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


@dataclasses.dataclass(frozen=True)
class Similarity:
  """s(a, b) = cos(a, b) / temperature, and how a matrix of them is computed.

  A loss is given one by its caller, so that the same settings reach every loss,
  those of a user's own among them.

  Duplicates are known by the fingerprint of their tokens. With
  `mask_duplicates`, pair j is no negative for pair i, in either direction, if
  q_j = q_i or p_j = p_i (a labelled positive, not a negative); a hard negative
  equal to p_i is masked out; and a same-tower negative (SamToNe, PAIR) is
  masked out when it equals the anchor itself.

  Attributes:
    temperature: a number above 0 or `LearnableTemperature`; what a loss is
      given has a number, or a learnt one as trained so far, float32 [].
    implementation: 'dense' holds matrices of scores, B x B; 'ring' never does;
      'auto' chooses by their size. The value is the same to rounding. In code
      outside the library the mesh that the batch is sharded over must be set by
      `jax.set_mesh` or `Partitioner.scope`: without it the ring takes the batch
      to be on one device.
    tile: the most rows and columns that the ring scores at once; None for what
      `log_partition` finds fit.
    mask_duplicates: needs the fingerprints in the batch.
    check_norms: `evaluate` also returns `norm_error`, by how much the norm of
      an embedding is off one at most; a training run stops where it is off by
      more than `metrics.NORM_TOLERANCE`. It is meant for models of a user's
      own.
  """

  temperature: float | LearnableTemperature | jax.Array = 0.01
  implementation: str = 'auto'
  tile: int | None = None
  mask_duplicates: bool = True
  check_norms: bool = False

  def __post_init__(self):
    if not isinstance(self.temperature, (LearnableTemperature, jax.Array)):
      check_positive('Similarity.temperature', self.temperature)
    for field in ('mask_duplicates', 'check_norms'):
      value = getattr(self, field)
      if type(value) is not bool:
        raise UserError(
            f'Similarity.{field} is {value!r}; expected True or False.'
        )
    if self.implementation not in log_partition.IMPLEMENTATIONS:
      known = ', '.join(map(repr, log_partition.IMPLEMENTATIONS))
      raise UserError(
          f'Similarity.implementation is {self.implementation!r}; expected one'
          f' of {known}.'
      )
    if self.tile is not None and (type(self.tile) is not int or self.tile < 1):
      raise UserError(
          f'Similarity.tile is {self.tile!r}; expected a whole number above 0,'
          ' or None.'
      )

  def init(self) -> dict[str, jax.Array]:
    """The parameter of a temperature that is learnt; {} of a number."""
    if isinstance(self.temperature, LearnableTemperature):
      return self.temperature.init()
    return {}

  def at(self, params: dict[str, jax.Array]) -> 'Similarity':
    """The same with the temperature that has been learnt so far."""
    if isinstance(self.temperature, LearnableTemperature):
      return dataclasses.replace(self, temperature=self.temperature(params))
    return self
