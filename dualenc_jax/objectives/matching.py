"""A query tower learns the embeddings that another tower gives queries."""

from collections.abc import Iterator
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.data import Layout, Packed
from dualenc_jax.errors import UserError
from dualenc_jax.models import DualEncoder
from dualenc_jax.objectives.objective import Run
from dualenc_jax.objectives.of_towers import encode_side, OfTowers
from dualenc_jax.parallel import partitioning

DISTANCES = ('cosine', 'l2')
# Of the root, whose derivative at 0 is none.
_EPSILON = 1e-12


@dataclasses.dataclass(frozen=True)
class Matching(OfTowers):
  """Embedding matching (EmbedDistill, Kim et al. 2023), of queries alone.

  The mean over queries q of 1 - cos(E_Q(q), E_P(q)), or of
  ||E_Q(q) - E_P(q)||_2, where E_P, the passage tower, is the teacher: constant,
  without dropout. Passages take no part, and an index of theirs stays what it
  is while the projection is frozen (FREEZE).

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

  def __post_init__(self):
    self.check_feeding()
    if self.distance not in DISTANCES:
      raise UserError(
          f'Matching.distance (DISTANCE) is {self.distance!r}; expected one of'
          f' {", ".join(DISTANCES)}.'
      )
    if self.model.passage_encoder is None:
      raise UserError(
          'Matching teaches the query tower what the passage tower knows, and'
          ' the two share their encoder. Give'
          ' --gin_file=architectures/light_query.gin.'
      )

  def __call__(
      self, params: Any, batch: Any, key: jax.Array | None = None
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    queries = batch['queries']
    cells, pairs = queries.num_cells, queries.num_texts
    size, micro = cells * pairs, self.micro_batch_size

    def encode_cells(numbers, queries):
      own = encode_side(
          self.model, params, 'encode_query', queries, numbers, key
      )
      teacher = encode_side(
          self.model, params, 'encode_passage', queries, numbers, None
      )
      return own, jax.lax.stop_gradient(teacher)

    if micro is not None:
      partitioning.check_micro_batch_size(micro, size)
    numbers = batch.get('numbers', jnp.arange(size, dtype=jnp.uint32))
    own, teacher = partitioning.map_rows(
        encode_cells,
        None if micro is None else micro // pairs,
        numbers.reshape(cells, pairs),
        queries,
    )
    cosines = jnp.sum(own * teacher, axis=-1)
    distances = 1.0 - cosines
    if self.distance == 'l2':
      square = jnp.sum(jnp.square(own - teacher), axis=-1)
      distances = jnp.sqrt(square + _EPSILON)
    loss = jnp.mean(distances)
    return loss, {'loss': loss, 'cosine': jnp.mean(cosines)}

  def describe(self, run: Run) -> Iterator[str]:
    yield from super().describe(run)
    yield (
        f'Matching: {self.distance}, of queries; the passage tower is the'
        ' teacher.'
    )
