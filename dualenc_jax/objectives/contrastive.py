"""Contrastive training of a dual encoder."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import math
import sys
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax import losses
from dualenc_jax.data import Batches, batches as batches_lib, Layout, Packed
from dualenc_jax.data.layouts import Padded, padded_shape
from dualenc_jax.errors import UserError
from dualenc_jax.inference.embedder import Embedder
from dualenc_jax.interop import own
from dualenc_jax.losses import metrics as metrics_lib
from dualenc_jax.models import DualEncoder, model_params
from dualenc_jax.objectives import negatives
from dualenc_jax.objectives.embedding import embed
from dualenc_jax.objectives.objective import check_whole, Objective, Run
from dualenc_jax.parallel import micro_batches
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.text.tokenizer import Vocabulary


@dataclasses.dataclass(frozen=True)
class Contrastive(Objective):
  """A loss over the embeddings of pairs and their hard negatives.

  Parameters are the model's, and those of the loss under 'loss'.

  Attributes:
    model: the dual encoder.
    loss: a loss of `dualenc_jax.losses`, or any `losses.Loss`.
    similarity: how vectors are compared, by whatever loss.
    num_negatives: K, hard negatives taken from each example.
    micro_batch_size: pairs encoded at once; None for all of the batch.
    layout: how texts are put into rows: `data.Padded()`, `data.Grouped()` or
      `data.Packed()`.
  """

  model: DualEncoder
  loss: losses.Loss
  similarity: losses.Similarity = losses.Similarity()
  num_negatives: int = 0
  micro_batch_size: int | None = None
  layout: Layout = Packed()

  def __post_init__(self):
    losses.check('Contrastive.loss', self.loss)
    if not isinstance(self.similarity, losses.Similarity):
      raise UserError(
          f'Contrastive.similarity is {self.similarity!r}; expected a'
          ' Similarity. In gin, write @losses.Similarity().'
      )
    if isinstance(self.layout, type) or not hasattr(self.layout, 'place'):
      raise UserError(
          f'Contrastive.layout is {self.layout!r}; expected a layout. In gin,'
          ' write LAYOUT = @data.Packed(), @data.Grouped() or @data.Padded().'
      )
    check_whole('Contrastive.num_negatives', self.num_negatives, 0)
    if self.micro_batch_size is not None:
      check_whole('Contrastive.micro_batch_size', self.micro_batch_size, 1)

  def init(self, key: jax.Array) -> Any:
    tokens = jnp.ones((1, 2), jnp.int32)
    params = self.model.init(key, tokens, tokens)['params']
    loss_params = losses.init(self.loss, self.similarity)
    return {**params, 'loss': loss_params} if loss_params else params

  def __call__(
      self, params: Any, batch: Any, key: jax.Array | None = None
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    embeddings = embed(self.model, params, batch, key, self.micro_batch_size)
    return self.value(params.get('loss', {}), embeddings)

  def value(
      self, params: Any, embeddings: losses.Embeddings
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss, with its own parameters, of a batch that is encoded."""
    return losses.evaluate(self.loss, self.similarity, params, embeddings)

  def batches(self, run: Run) -> Batches:
    return Batches(
        run.caches,
        run.batch_size,
        run.seed,
        run.tokenizer.query_length,
        run.tokenizer.passage_length,
        self.num_negatives,
        run.rates,
        self.layout,
        self._cells(run),
        run.extra_columns,
    )

  def abstract_batch(self, run: Run) -> Any:
    """A batch with room for all but the rarest texts.

    Of the shapes of a layout it is the second: a batch that it does not hold,
    and which is padded more, or altogether, comes once in a very long run.
    Those of the padded layout are known; for others the examples are looked at,
    and tokenised first if they are not yet.
    """
    cells = self._cells(run)
    pairs = run.batch_size // cells
    if isinstance(self.layout, Padded):
      passages = pairs * (1 + self.num_negatives)
      shapes = (
          padded_shape(pairs, run.tokenizer.query_length),
          padded_shape(passages, run.tokenizer.passage_length),
      )
    else:
      shapes = run.batches.shapes
      shapes = shapes[min(1, max(len(shapes) - 2, 0))]
    return batches_lib.abstract_batch(
        shapes,
        run.batch_size,
        cells,
        self.num_negatives,
        jax.ShapeDtypeStruct,
        run.extra_columns,
    )

  def check_mesh(self, partitioner: Partitioner) -> None:
    """The model axis splits attention by heads, so it divides their number."""
    devices = partitioner.mesh.shape['model']
    for name in ('encoder', 'passage_encoder'):
      encoder = getattr(self.model, name)
      if encoder is not None and encoder.num_heads % devices:
        raise UserError(
            f'{name} has {encoder.num_heads} heads, which the {devices} devices'
            ' on the model axis do not divide. Set MODEL_PARALLEL to a divisor'
            f' of {encoder.num_heads}.'
        )

  def check_vocabulary(self, vocabulary: Vocabulary) -> None:
    for name in ('token_embedder', 'passage_token_embedder'):
      embedder = getattr(self.model, name)
      # T5 pads its table to a multiple of 128 rows, beyond 100 extra ids.
      if embedder and not 0 <= embedder.vocab_size - vocabulary.size < 256:
        raise UserError(
            f'{name} has {embedder.vocab_size} rows but the vocabulary'
            f' {vocabulary.path} has {vocabulary.size} pieces. Expected as many'
            ' rows, or up to 255 more: set VOCAB_SIZE to'
            f' {-(-vocabulary.size // 128) * 128}, or give the vocabulary of'
            ' the model.'
        )

  def check_batch(self, run: Run) -> None:
    super().check_batch(run)
    if self.micro_batch_size is not None:
      micro_batches.check_size(self.micro_batch_size, run.batch_size)
      run.partitioner.check_batch_size(
          'MICRO_BATCH_SIZE', self.micro_batch_size
      )

  def batch_unit(self, run: Run) -> int:
    return math.lcm(super().batch_unit(run), self.micro_batch_size or 1)

  def largest_batch(self, run: Run) -> int:
    if isinstance(self.layout, Padded):
      return sys.maxsize
    # The layout looks at batches of the examples that there are.
    return sum(len(cache) for cache in run.caches)

  def describe(self, run: Run) -> Iterator[str]:
    yield (
        f'Global batch: {run.batch_size} pairs, query'
        f' {run.tokenizer.query_length} and passage'
        f' {run.tokenizer.passage_length} tokens.'
    )
    yield f'Loss: {type(self.loss).__name__}.'
    yield from negatives.describe(
        self.loss, self.similarity, run.batch_size, self.num_negatives
    )

  def describe_batches(self, run: Run, step: int) -> Iterator[str]:
    yield negatives.describe_layout(run.batches, step)
    yield from negatives.describe_left(
        self.loss, self.similarity, run.batches, step
    )

  def problem(self, metrics: Mapping[str, Any]) -> str | None:
    error = metrics.get('norm_error', 0.0)
    if error <= metrics_lib.NORM_TOLERANCE:
      return None
    return (
        f'the norm of an embedding is off 1 by {error:.3g}, so that its dot'
        ' products are no cosines. Normalise what the model returns, or set'
        ' losses.Similarity.check_norms = False.'
    )

  @property
  def facts(self) -> dict[str, Any]:
    return own.describe(self.model)

  def apart(
      self, params: Any, batch: Any
  ) -> tuple[Callable[..., Any], Any, Any, Any]:
    """The loss, of the embeddings."""
    embeddings = jax.eval_shape(
        lambda params, batch: embed(self.model, params, batch), params, batch
    )
    names = ('query', 'passage', 'negatives')
    vectors = {name: getattr(embeddings, name) for name in names}

    def value(params, vectors, rest):
      return self.value(params, rest._replace(**vectors))

    return value, params.get('loss', {}), vectors, embeddings

  def embedder(
      self, params: Any, partitioner: Partitioner, batch_size: int
  ) -> Embedder:
    """Encodes with `model_params` of a train state's parameters.

    Args:
      params: abstract parameters with their shardings.
      partitioner: the mesh.
      batch_size: most rows that a device encodes at once.
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, model_params(params))
    return Embedder(self.model, partitioner, shardings, batch_size)

  def _cells(self, run: Run) -> int:
    """C of the batch: as many a micro-batch as devices on the data axis."""
    devices, size = run.partitioner.mesh.shape['data'], run.batch_size
    return devices * (size // (self.micro_batch_size or size))
