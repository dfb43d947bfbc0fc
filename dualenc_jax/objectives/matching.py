"""Training of a query tower on the embeddings another tower gives queries."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.data import Layout, Packed
from dualenc_jax.data.columns import TEACHER_VECTORS
from dualenc_jax.losses.loss import weighted_mean
from dualenc_jax.models import DualEncoder
from dualenc_jax.objectives import encoding
from dualenc_jax.objectives.frozen_passages import (
  check_separate_encoders,
  passage_tower,
)
from dualenc_jax.objectives.objective import Key, Result, Run
from dualenc_jax.objectives.pairs import PairObjective
from dualenc_jax.objectives.teacher_vectors import TeacherVectors
from dualenc_jax.utils.errors import UserError


@dataclasses.dataclass(frozen=True)
class Matching(PairObjective):
  """Embedding matching (EmbedDistill, Kim et al. 2023), of queries alone.

  The mean over queries q of 1 - cos(E_Q(q), t(q)). Without vectors t is E_P,
  the passage tower: frozen, without dropout, as is the shared projection.
  Passages take no part, and an index of them stays valid.

  With vectors of another model for queries, these are t(q), and queries without
  one have no weight. E_Q is of the dimension of the vectors, so that it can
  search the index of that model. A passage tower of its own stays as it is.
  """

  model: DualEncoder
  micro_batch_size: int | None = None
  layout: Layout = Packed()
  teacher_vectors: TeacherVectors = TeacherVectors()
  num_negatives = 0
  sides = ('queries',)
  needs_passages = False
  reads_vectors = True

  def __post_init__(self):
    self.check_options()
    if not self.teacher_vectors.sides:
      check_separate_encoders('Matching', self.model)
    elif self.teacher_vectors.sides != ('queries',):
      raise UserError(
          'TEACHER_PASSAGES is given, but Matching learns queries alone. Leave'
          ' it out; for passages, too, train with'
          ' --gin_file=losses/embed_distill.gin.'
      )

  @property
  def needs_start(self) -> bool:
    return not self.teacher_vectors.sides

  @property
  def frozen(self) -> Sequence[str]:
    if self.teacher_vectors.sides:
      own = self.model.passage_encoder is not None
      return ('passage_.*',) if own else ()
    return passage_tower(self.model)

  def check_batch(self, run: Run) -> None:
    super().check_batch(run)
    dim, wanted = self.model.projection.features, self.teacher_vectors.dim
    if wanted not in (None, dim):
      raise UserError(
          f'TEACHER_QUERIES has vectors of {wanted} components, and the model'
          f' embeddings of {dim}. Set'
          f' --gin.models.Projection.features={wanted}.'
      )

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    if self.teacher_vectors.sides:
      return self._match_vectors(params, batch, key)

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

  def _match_vectors(self, params: Any, batch: Any, key: Key) -> Result:
    student = encoding.embed_queries(
        self.model, params, batch, key, self.micro_batch_size
    )
    teacher = batch[TEACHER_VECTORS['queries']]
    cosines = jnp.sum(student.astype(jnp.float32) * teacher, axis=-1)
    known = jnp.any(teacher != 0.0, axis=-1).astype(jnp.float32)
    weights = known * batch.get('weights', 1.0)
    loss = weighted_mean(1.0 - cosines, weights)
    return loss, {
        **encoding.effective_ranks(student, teacher),
        'loss': loss,
        'cosine': weighted_mean(cosines, weights),
        'taught_fraction': jnp.mean(known),
    }
