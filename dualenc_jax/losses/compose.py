"""Losses made of losses."""

from collections.abc import Sequence
import dataclasses
import math
import numbers

import jax
import jax.numpy as jnp

from dualenc_jax.errors import UserError
from dualenc_jax.losses import loss as loss_lib
from dualenc_jax.losses.blocks import Block
from dualenc_jax.losses.embeddings import Embeddings
from dualenc_jax.losses.similarity import LearnableTemperature, Similarity


@dataclasses.dataclass(frozen=True)
class Sum:
  """The weighted sum of losses over one batch.

  A part is called by its class, and by its number too where two are of one
  class: SamToNe, PAIR_2. Parameters of a part are kept under its name. So are
  its metrics, SamToNe/loss; those of the first part that are no losses stand
  without a name, too. Each part is computed on its own: what two of them have
  in common is computed twice.

  Attributes:
    parts: pairs (loss, weight).
  """

  parts: Sequence[tuple[loss_lib.Loss, float]]

  def __post_init__(self):
    if not self.parts:
      raise UserError('Sum.parts is empty; expected pairs (loss, weight).')
    for part in self.parts:
      if not isinstance(part, Sequence) or len(part) != 2:
        raise UserError(
            f'Sum.parts has {part!r}; expected a pair (loss, weight).'
        )
      loss, weight = part
      loss_lib.check('A loss in Sum.parts', loss)
      if not isinstance(weight, numbers.Real) or not math.isfinite(weight):
        raise UserError(
            f'The weight of {type(loss).__name__} in Sum.parts is {weight!r};'
            ' expected a finite number.'
        )

  @property
  def names(self) -> list[str]:
    """The names of the parts."""
    names = [type(loss).__name__ for loss, _ in self.parts]
    return [
        name if names.count(name) == 1 else f'{name}_{i}'
        for i, name in enumerate(names, start=1)
    ]

  def init(self) -> loss_lib.Params:
    """Parameters of the parts by the parts' names."""
    params = {
        name: loss.init()
        for name, (loss, _) in zip(self.names, self.parts, strict=True)
    }
    return {name: tree for name, tree in params.items() if tree}

  def query_blocks(self) -> tuple[Block, ...]:
    """Negatives of the queries in any part."""
    parts = (loss_lib.query_blocks(loss) for loss, _ in self.parts)
    return tuple(dict.fromkeys(block for blocks in parts for block in blocks))

  def __call__(
      self,
      params: loss_lib.Params,
      batch: Embeddings,
      similarity: Similarity,
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Computes all parts; see `Loss`."""
    value, first, named = 0.0, None, {}
    for name, (loss, weight) in zip(self.names, self.parts, strict=True):
      part, metrics = loss(params.get(name, {}), batch, similarity)
      value += weight * part
      first = metrics if first is None else first
      named |= {f'{name}/{metric}': x for metric, x in metrics.items()}
    common = {k: x for k, x in first.items() if not k.endswith('loss')}
    return value, {**common, **named, 'loss': value}


@dataclasses.dataclass(frozen=True)
class AtTemperature:
  """A loss at a temperature of its own; all else is as its caller says.

  Attributes:
    loss: any loss.
    temperature: a number above 0, or `LearnableTemperature`, which is a
      parameter of this loss then.
  """

  loss: loss_lib.Loss
  temperature: float | LearnableTemperature

  def __post_init__(self):
    loss_lib.check('AtTemperature.loss', self.loss)
    Similarity(self.temperature)

  def init(self) -> loss_lib.Params:
    """Parameters of the loss, and of a temperature that is learnt."""
    return loss_lib.init(self.loss, Similarity(self.temperature))

  def query_blocks(self) -> tuple[Block, ...]:
    """Negatives of the queries."""
    return loss_lib.query_blocks(self.loss)

  def __call__(
      self,
      params: loss_lib.Params,
      batch: Embeddings,
      similarity: Similarity,
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Computes the loss, and logs the temperature; see `Loss`."""
    similarity = dataclasses.replace(
        similarity, temperature=self.temperature
    ).at(params)
    value, metrics = self.loss(params, batch, similarity)
    temperature = jnp.asarray(similarity.temperature, jnp.float32)
    return value, {**metrics, 'temperature': temperature}
