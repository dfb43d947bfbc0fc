"""Contrastive training of a dual encoder: batches, embeddings, their loss."""

from collections.abc import Iterator
import dataclasses
from typing import Any

from dualenc_jax import losses
from dualenc_jax.checkpoints.checkpoint_reader import TRAINED_DIMS
from dualenc_jax.data import Layout, Packed
from dualenc_jax.losses.loss import Embeddings
from dualenc_jax.models import DualEncoder
from dualenc_jax.objectives import collapse, encoding, pairs
from dualenc_jax.objectives.objective import Key, Result, Run
from dualenc_jax.objectives.pairs import PairObjective
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

  def __post_init__(self):
    losses.check('Contrastive.loss', self.loss)
    expect(
        isinstance(self.similarity, losses.Similarity),
        'Contrastive.similarity', self.similarity,
        'a Similarity, in gin @losses.Similarity()',
    )
    self.check_options()

  def loss_params(self) -> dict[str, Any]:
    return losses.init(self.loss, self.similarity)

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    embeddings = encoding.embed(
        self.model, params, batch, key, self.micro_batch_size
    )
    value, metrics = self.value(params.get('loss', {}), embeddings)
    return value, {
        **collapse.watched(embeddings.query, embeddings.passage), **metrics
    }

  def value(self, params: Any, embeddings: Embeddings) -> Result:
    """The loss, with its own parameters, of an embedded batch."""
    return losses.evaluate(self.loss, self.similarity, params, embeddings)

  def describe(self, run: Run) -> Iterator[str]:
    yield from super().describe(run)
    yield f'Loss: {type(self.loss).__name__}.'
    if dims := self._trained_dims:
      yield f'Trained dims: {", ".join(map(str, dims))}.'

  def describe_batches(self, run: Run, step: int) -> Iterator[str]:
    columns = pairs.first_columns(run.batches, step)
    losses.validate_columns(self.loss, columns)
    yield from super().describe_batches(run, step)

  @property
  def facts(self) -> dict[str, Any]:
    dims = self._trained_dims
    return {**super().facts, **({TRAINED_DIMS: dims} if dims else {})}

  @property
  def _trained_dims(self) -> tuple[int, ...]:
    return self.loss.trained_dims(self.model.projection.features)

  def chance(self, run: Run) -> float | None:
    return self.loss.chance(run.batch_size, self.num_negatives)
