"""A query tower learns the embeddings that another tower gives queries."""

from collections.abc import Iterator, Sequence
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.data import Layout, Packed
from dualenc_jax.errors import UserError
from dualenc_jax.models import DualEncoder
from dualenc_jax.objectives import collapse
from dualenc_jax.objectives.objective import Run
from dualenc_jax.objectives.of_towers import (
  check_apart,
  encode_queries,
  encode_side,
  OfTowers,
  passage_tower,
)

DISTANCES = ('cosine', 'l2')
# Of the root, whose derivative at 0 is none.
_EPSILON = 1e-12


@dataclasses.dataclass(frozen=True)
class Matching(OfTowers):
  """Embedding matching (EmbedDistill, Kim et al. 2023), of queries alone.

  The mean over queries q of 1 - cos(E_Q(q), E_P(q)), or of
  ||E_Q(q) - E_P(q)||_2, where E_P, the passage tower, is the teacher: frozen,
  without dropout. So is the projection that they share. Passages take no part,
  and an index of theirs stays what it is.

  Attributes:
    model: a dual encoder whose query tower has an encoder of its own.
    distance: 'cosine' or 'l2'.
    micro_batch_size: queries encoded at once; None for all of the batch.
    layout: how texts are put into rows.
  """

  model: DualEncoder
  distance: str = 'cosine'
  micro_batch_size: int | None = None
  layout: Layout = Packed()
  num_negatives = 0
  sides = ('queries',)
  needs_passages = False
  needs_start = True

  def __post_init__(self):
    self.check_feeding()
    if self.distance not in DISTANCES:
      raise UserError(
          f'Matching.distance (DISTANCE) is {self.distance!r}; expected one of'
          f' {", ".join(DISTANCES)}.'
      )
    check_apart('Matching', self.model)

  @property
  def frozen(self) -> Sequence[str]:
    return passage_tower(self.model)

  def __call__(
      self, params: Any, batch: Any, key: jax.Array | None = None
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    def encode_cells(params, numbers, queries):
      own = encode_side(
          self.model, params, 'encode_query', queries, numbers, key
      )
      teacher = encode_side(
          self.model, params, 'encode_passage', queries, numbers, None
      )
      return own, jax.lax.stop_gradient(teacher)

    own, teacher = encode_queries(
        self.model, encode_cells, params, batch, self.micro_batch_size
    )
    cosines = jnp.sum(own * teacher, axis=-1)
    distances = 1.0 - cosines
    if self.distance == 'l2':
      square = jnp.sum(jnp.square(own - teacher), axis=-1)
      distances = jnp.sqrt(square + _EPSILON)
    loss = jnp.mean(distances)
    metrics = {'loss': loss, 'cosine': jnp.mean(cosines)}
    # Of queries both, as the passage tower embeds nothing else here.
    return loss, {**collapse.watched(own, teacher), **metrics}

  def describe(self, run: Run) -> Iterator[str]:
    yield from super().describe(run)
    yield (
        f'Matching: {self.distance}, of queries; the passage tower is the'
        ' teacher.'
    )
