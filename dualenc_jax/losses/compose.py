"""Losses made of losses."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from dualenc_jax.losses import loss as loss_lib
from dualenc_jax.losses.loss import (
  Dims,
  Embeddings,
  Loss,
  LossWrapper,
  Params,
  Result,
  Similarity,
)
from dualenc_jax.losses.temperature import LearnableTemperature
from dualenc_jax.utils.errors import expect


@dataclasses.dataclass(frozen=True)
class Sum(Loss):
  """The weighted sum of losses, of pairs (loss, weight), over one batch.

  The name of a part is its class, with its number where two share a class:
  SamToNe, PAIR_2. Its parameters and its metrics, SamToNe/loss, are kept under
  the name; metrics of the first part that are no losses also stand without it.
  Work that two parts share is done twice.
  """

  parts: Sequence[tuple[Loss, float]]

  def __post_init__(self):
    pairs = all(isinstance(x, Sequence) and len(x) == 2 for x in self.parts)
    expect(
        self.parts and pairs, 'Sum.parts', self.parts,
        'pairs (loss, weight), at least one',
    )
    for loss, _ in self.parts:
      loss_lib.check('A loss in Sum.parts', loss)

  @property
  def names(self) -> list[str]:
    names = [type(loss).__name__ for loss, _ in self.parts]
    return [
        name if names.count(name) == 1 else f'{name}_{i}'
        for i, name in enumerate(names, start=1)
    ]

  @property
  def reads_teacher(self) -> bool:
    return any(loss.reads_teacher for loss, _ in self.parts)

  @property
  def reads_vectors(self) -> bool:
    return any(loss.reads_vectors for loss, _ in self.parts)

  def init(self, dims: Dims | None = None) -> Params:
    params = [loss.init(dims) for loss, _ in self.parts]
    return {name: tree for name, tree in zip(self.names, params) if tree}

  def check_columns(self, columns: Mapping[str, np.ndarray]) -> None:
    for loss, _ in self.parts:
      loss.check_columns(columns)

  def trained_dims(self, dim: int) -> tuple[int, ...]:
    of_parts = (loss.trained_dims(dim) for loss, _ in self.parts)
    return tuple(sorted({d for dims in of_parts for d in dims}, reverse=True))

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    value: Any = 0.0
    common: dict[str, Any] = {}
    named: dict[str, Any] = {}
    for name, (loss, weight) in zip(self.names, self.parts):
      part, metrics = loss(params.get(name, {}), batch, similarity)
      value += weight * part
      metrics = {'loss': part, **metrics}
      if not named:
        common = {k: x for k, x in metrics.items() if not k.endswith('loss')}
      named |= {f'{name}/{metric}': x for metric, x in metrics.items()}
    return value, {**common, **named, 'loss': value}


@dataclasses.dataclass(frozen=True)
class AtTemperature(LossWrapper):
  """A loss at a temperature of its own; all other settings are the caller's.

  A `LearnableTemperature` is a parameter of this loss.
  """

  loss: Loss
  temperature: float | LearnableTemperature

  def __post_init__(self):
    loss_lib.check('AtTemperature.loss', self.loss)
    Similarity(self.temperature)

  def init(self, dims: Dims | None = None) -> Params:
    return loss_lib.init(self.loss, Similarity(self.temperature), dims)

  def trained_dims(self, dim: int) -> tuple[int, ...]:
    return self.loss.trained_dims(dim)

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    """Returns the loss, and metrics with the temperature."""
    similarity = dataclasses.replace(
        similarity, temperature=self.temperature
    ).resolve(params)
    value, metrics = self.loss(params, batch, similarity)
    temperature = jnp.asarray(similarity.temperature, jnp.float32)
    return value, {**metrics, 'temperature': temperature}
