"""Losses made of losses."""

from collections.abc import Mapping, Sequence
import dataclasses
import numbers

import jax.numpy as jnp
import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.losses import loss as loss_lib
from dualenc_jax.losses.blocks import Block, query_blocks
from dualenc_jax.losses.loss import Embeddings, Loss, Params, Result
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

  parts: Sequence[tuple[Loss, float]]

  def __post_init__(self):
    for part in self.parts or ((),):
      match part:
        case (loss, numbers.Real()):
          loss_lib.check('A loss in Sum.parts', loss)
        case _:
          raise UserError(
              f'Sum.parts has {part!r}; expected pairs (loss, weight), at least'
              ' one.'
          )

  @property
  def names(self) -> list[str]:
    """The names of the parts."""
    names = [type(loss).__name__ for loss, _ in self.parts]
    return [
        name if names.count(name) == 1 else f'{name}_{i}'
        for i, name in enumerate(names, start=1)
    ]

  def init(self) -> Params:
    """Parameters of the parts by the parts' names."""
    params = {n: loss.init() for n, (loss, _) in zip(self.names, self.parts)}
    return {name: tree for name, tree in params.items() if tree}

  def check_columns(self, columns: Mapping[str, np.ndarray]) -> None:
    """Asks every part; see `loss.check_columns`."""
    for loss, _ in self.parts:
      getattr(loss, 'check_columns', lambda columns: None)(columns)

  def query_blocks(self) -> tuple[Block, ...]:
    """Negatives of the queries in any part."""
    parts = (query_blocks(loss) for loss, _ in self.parts)
    return tuple(dict.fromkeys(block for blocks in parts for block in blocks))

  def trained_dims(self, dim: int) -> tuple[int, ...]:
    """Those of any part, the largest first."""
    found = {
        d for loss, _ in self.parts for d in loss_lib.trained_dims(loss, dim)
    }
    return tuple(sorted(found, reverse=True))

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    """Computes all parts; see `Loss`."""
    value, common, named = 0.0, {}, {}
    for name, (loss, weight) in zip(self.names, self.parts):
      part, metrics = loss(params.get(name, {}), batch, similarity)
      value += weight * part
      metrics = {'loss': part, **metrics}
      if not named:
        common = {k: x for k, x in metrics.items() if not k.endswith('loss')}
      named |= {f'{name}/{metric}': x for metric, x in metrics.items()}
    return value, {**common, **named, 'loss': value}


@dataclasses.dataclass(frozen=True)
class AtTemperature:
  """A loss at a temperature of its own; all else is as its caller says.

  Attributes:
    loss: any loss.
    temperature: a number above 0, or `LearnableTemperature`, which is a
      parameter of this loss then.
  """

  loss: Loss
  temperature: float | LearnableTemperature

  def __post_init__(self):
    loss_lib.check('AtTemperature.loss', self.loss)
    Similarity(self.temperature)

  def init(self) -> Params:
    """Parameters of the loss, and of a temperature that is learnt."""
    return loss_lib.init(self.loss, Similarity(self.temperature))

  def check_columns(self, columns: Mapping[str, np.ndarray]) -> None:
    """Asks the loss; see `loss.check_columns`."""
    getattr(self.loss, 'check_columns', lambda columns: None)(columns)

  def query_blocks(self) -> tuple[Block, ...]:
    """Negatives of the queries."""
    return query_blocks(self.loss)

  def trained_dims(self, dim: int) -> tuple[int, ...]:
    """Those of the loss."""
    return loss_lib.trained_dims(self.loss, dim)

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    """Computes the loss, and logs the temperature; see `Loss`."""
    similarity = dataclasses.replace(
        similarity, temperature=self.temperature
    ).at(params)
    value, metrics = self.loss(params, batch, similarity)
    temperature = jnp.asarray(similarity.temperature, jnp.float32)
    return value, {**metrics, 'temperature': temperature}
