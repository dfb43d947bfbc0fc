"""Training of a query tower on the embeddings another tower gives queries."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.data import Layout, Packed
from dualenc_jax.models import DualEncoder
from dualenc_jax.objectives import encoding
from dualenc_jax.objectives.frozen_passages import (
  check_separate_encoders,
  passage_tower,
)
from dualenc_jax.objectives.objective import Key, Result
from dualenc_jax.objectives.pairs import PairObjective


@dataclasses.dataclass(frozen=True)
class Matching(PairObjective):
  """Embedding matching (EmbedDistill, Kim et al. 2023), of queries alone.

  The mean over queries q of 1 - cos(E_Q(q), E_P(q)), where E_P, the passage
  tower, is the teacher: frozen, without dropout, as is the shared projection.
  Passages take no part, and an index of them stays valid.
  """

  model: DualEncoder
  micro_batch_size: int | None = None
  layout: Layout = Packed()
  num_negatives = 0
  sides = ('queries',)
  needs_passages = False
  needs_start = True

  def __post_init__(self):
    self.check_options()
    check_separate_encoders('Matching', self.model)

  @property
  def frozen(self) -> Sequence[str]:
    return passage_tower(self.model)

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    def encode_cells(params, numbers, queries):
      student = encoding.encode_side(
          self.model, params, 'encode_query', queries, numbers, key
      )
      teacher = encoding.encode_side(
          self.model, params, 'encode_passage', queries, numbers, None
      )
      return student, jax.lax.stop_gradient(teacher)

    student, teacher = encoding.map_queries(
        encode_cells, self.model, params, batch, self.micro_batch_size
    )
    cosines = jnp.sum(student * teacher, axis=-1)
    loss = jnp.mean(1.0 - cosines)
    metrics = {'loss': loss, 'cosine': jnp.mean(cosines)}
    # Both towers embed queries: passages take no part.
    return loss, {**encoding.effective_ranks(student, teacher), **metrics}
