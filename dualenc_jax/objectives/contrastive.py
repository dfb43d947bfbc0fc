"""Contrastive training of a dual encoder: batches, embeddings, their loss."""

from collections.abc import Iterator
import dataclasses
from typing import Any

from dualenc_jax import losses
from dualenc_jax.checkpoints.checkpoint_reader import TRAINED_DIMS
from dualenc_jax.data import Layout, Packed
from dualenc_jax.data.columns import TEACHER_SCORES
from dualenc_jax.models import DualEncoder
from dualenc_jax.objectives import encoding, pairs
from dualenc_jax.objectives.objective import Key, Result, Run
from dualenc_jax.objectives.pairs import PairObjective
from dualenc_jax.objectives.teacher_vectors import TeacherVectors
from dualenc_jax.utils.errors import expect


@dataclasses.dataclass(frozen=True)
class Contrastive(PairObjective):
  """A loss over the embeddings of pairs and their hard negatives."""

  model: DualEncoder
  loss: losses.Loss
  similarity: losses.Similarity = losses.Similarity()
  num_negatives: int = 0
  micro_batch_size: int | None = None
  layout: Layout = Packed()
  teacher_vectors: TeacherVectors = TeacherVectors()
  reads_vectors = True

  def __post_init__(self):
    losses.check('Contrastive.loss', self.loss)
    expect(
        isinstance(self.similarity, losses.Similarity),
        'Contrastive.similarity', self.similarity,
        'a Similarity, in gin @losses.Similarity()',
    )
    self.check_options()

  def loss_params(self) -> dict[str, Any]:
    dims, student = None, self.model.projection.features
    if self.loss.reads_vectors and (teacher := self.teacher_vectors.dim):
      dims = losses.Dims(student, teacher)
    return losses.init(self.loss, self.similarity, dims)

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    embeddings = encoding.embed(
        self.model, params, batch, key, self.micro_batch_size
    )
    value, metrics = losses.evaluate(
        self.loss, self.similarity, params.get('loss', {}), embeddings
    )
    ranks = encoding.effective_ranks(embeddings.query, embeddings.passage)
    return value, {**ranks, **metrics}

  def check_batch(self, run: Run) -> None:
    super().check_batch(run)
    guards = self.similarity.guard_margin is not None
    self.teacher_vectors.check_use(
        self.loss.reads_vectors or guards,
        'GUARD_MARGIN' if guards else type(self.loss).__name__,
    )
    if TEACHER_SCORES not in run.extra_columns:
      self.loss.check_columns({})

  def describe_batches(self, run: Run, step: int) -> Iterator[str]:
    columns = pairs.first_columns(run.batches, step)
    losses.validate_columns(self.loss, columns)
    yield from super().describe_batches(run, step)

  @property
  def facts(self) -> dict[str, Any]:
    dims = self.loss.trained_dims(self.model.projection.features)
    return {**super().facts, **({TRAINED_DIMS: dims} if dims else {})}

  def chance(self, run: Run) -> float | None:
    return self.loss.chance(run.batch_size, self.num_negatives)
