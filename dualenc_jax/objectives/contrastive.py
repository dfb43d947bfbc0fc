"""Contrastive training of a dual encoder: batches, embeddings, their loss."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax import losses
from dualenc_jax.data import Batches, batches as batches_lib, Layout, Packed
from dualenc_jax.data.layouts import Padded, padded_shape
from dualenc_jax.errors import UserError
from dualenc_jax.inference.embedder import Embedder
from dualenc_jax.losses import blocks
from dualenc_jax.losses.loss import Embeddings, NORM_TOLERANCE
from dualenc_jax.models import describe, DualEncoder, model_params
from dualenc_jax.objectives.objective import check_whole, Objective, Run
from dualenc_jax.parallel import partitioning
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.text.text_rows import TextRows
from dualenc_jax.text.tokenizer import Vocabulary

Batch = dict[str, Any]


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
      self, params: Any, embeddings: Embeddings
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
      partitioning.check_micro_batch_size(self.micro_batch_size, run.batch_size)
      run.partitioner.check_batch_size(
          'MICRO_BATCH_SIZE', self.micro_batch_size
      )

  def batch_sizes(self, run: Run) -> range:
    sizes = super().batch_sizes(run)
    unit = math.lcm(sizes.step, self.micro_batch_size or 1)
    most = sizes.stop
    if not isinstance(self.layout, Padded):
      # The layout looks at batches of the examples that there are.
      most = sum(len(cache) for cache in run.caches) + 1
    return range(unit, most, unit)

  def describe(self, run: Run) -> Iterator[str]:
    yield (
        f'Global batch: {run.batch_size} pairs, query'
        f' {run.tokenizer.query_length} and passage'
        f' {run.tokenizer.passage_length} tokens.'
    )
    yield f'Loss: {type(self.loss).__name__}.'
    yield from blocks.describe_negatives(
        self.loss, self.similarity, run.batch_size, self.num_negatives
    )

  def describe_batches(self, run: Run, step: int) -> Iterator[str]:
    losses.check_columns(self.loss, _columns(run.batches, step))
    yield _describe_layout(run.batches, step)
    yield from blocks.describe_left(
        self.loss, self.similarity, run.batches, step
    )

  def chance(self, run: Run) -> float | None:
    chance = getattr(self.loss, 'chance', None)
    return chance and chance(run.batch_size, self.num_negatives)

  def problem(self, metrics: Mapping[str, Any]) -> str | None:
    error = metrics.get('norm_error', 0.0)
    if error <= NORM_TOLERANCE:
      return None
    return (
        f'the norm of an embedding is off 1 by {error:.3g}, so that its dot'
        ' products are no cosines. Normalise what the model returns, or set'
        ' losses.Similarity.check_norms = False.'
    )

  @property
  def facts(self) -> dict[str, Any]:
    return describe(self.model)

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


def embed(
    model: DualEncoder,
    params: Any,
    batch: Batch,
    dropout_key: jax.Array | None = None,
    micro_batch_size: int | None = None,
) -> Embeddings:
  """Encodes a batch with both towers.

  Args:
    model: the dual encoder.
    params: train parameters; those of the loss are ignored.
    batch: what `Batches` yields: queries and passages, `TextRows` of C cells of
      P pairs, B = C P, with K hard negatives where a cell has P (1 + K)
      passages; ids and other columns, see `Embeddings`.
    dropout_key: switches dropout on. The masks of a text depend on this key
      and the number of its pair alone: batch['numbers'] [B], or its place in
      the batch if there are none.
    micro_batch_size: pairs encoded at once, see `partitioning.map_rows`; None
      for all.

  Returns:
    The embeddings of the batch.
  """
  variables = {'params': model_params(params)}
  queries, passages = batch['queries'], batch['passages']
  cells, pairs = queries.num_cells, queries.num_texts
  candidates = passages.num_texts // pairs
  keys = [None, None]
  if dropout_key is not None:
    keys = jax.random.split(dropout_key)

  def encode(method, texts, key, numbers):
    """Texts of c cells, numbers [c, T] -> [c, T, D]."""

    def encode_rows(tokens, lengths, numbers):
      return model.apply(
          variables,
          tokens,
          lengths,
          None if key is None else numbers,
          rngs=None if key is None else {'dropout': key},
          method=method,
      )

    return encode_texts(encode_rows, texts, numbers)

  def encode_cells(numbers, queries, passages):
    """Numbers [c, P] of pairs, their texts -> [c, P, D], [c, P (1 + K), D]."""
    of_passages = numbers[:, :, None] * candidates
    of_passages += jnp.arange(candidates, dtype=numbers.dtype)[None, None]
    return (
        encode('encode_query', queries, keys[0], numbers),
        encode(
            'encode_passage',
            passages,
            keys[1],
            of_passages.reshape(len(numbers), -1),
        ),
    )

  if micro_batch_size is not None:
    partitioning.check_micro_batch_size(micro_batch_size, cells * pairs)
  numbers = batch.get('numbers', jnp.arange(cells * pairs, dtype=jnp.uint32))
  query, passage = partitioning.map_rows(
      encode_cells,
      None if micro_batch_size is None else micro_batch_size // pairs,
      numbers.reshape(cells, pairs),
      queries,
      passages,
  )
  features = query.shape[-1]
  passage = passage.reshape(-1, candidates, features)
  return Embeddings.of_batch(batch, query.reshape(-1, features), passage)


def encode_texts(
    encode_rows: Callable[..., jax.Array], texts: TextRows, numbers: jax.Array
) -> jax.Array:
  """Encodes the texts of c cells, whatever their layout.

  Args:
    encode_rows: a tower: tokens [R, L], lengths and dropout numbers [R, S] ->
      [R, S, D].
    texts: of the cells.
    numbers: of the texts, for dropout, uint32 [c, T].

  Returns:
    [c, T, D].
  """
  encoded = []
  for tokens, lengths, of_cell in texts.groups:
    cells, rows, segments = lengths.shape
    own = jnp.take_along_axis(
        numbers, of_cell.reshape(cells, -1), axis=1, mode='clip'
    )
    group = encode_rows(
        tokens.reshape(cells * rows, -1),
        lengths.reshape(cells * rows, segments),
        own.reshape(cells * rows, segments),
    )
    encoded.append(group.reshape(cells, rows * segments, -1))
  encoded = jnp.concatenate(encoded, axis=1)
  if texts.places is None:
    return encoded
  return jnp.take_along_axis(
      encoded, texts.places[:, :, None], axis=1, mode='clip'
  )


def _columns(batches: Batches, step: int) -> dict[str, np.ndarray]:
  """The columns of three batches from a step on, one after the other."""
  picker = batches.picker
  found = [picker.arrays(picker(s)) for s in range(step, step + 3)]
  names = [column.name for column in batches.columns]
  return {name: np.concatenate([b[name] for b in found]) for name in names}


def _describe_layout(batches: Batches, step: int) -> str:
  """A line on rows and padding of the batch of a step."""
  batch = batches(step)
  real = total = 0
  rows = {}
  for name in ('queries', 'passages'):
    groups = batch[name].groups
    real += sum(int(group.lengths.sum()) for group in groups)
    total += sum(group.tokens.size for group in groups)
    counts = [f'{g.tokens.shape[1]} x {g.tokens.shape[2]}' for g in groups]
    rows[name] = ' + '.join(counts)
  cells = f' in each of {batches.cells} cells' if batches.cells > 1 else ''
  return (
      f'Layout: {type(batches.layout).__name__}, rows x tokens{cells}: queries'
      f' {rows["queries"]}, passages {rows["passages"]};'
      f' {real / total:.0%} of the tokens are real.'
  )
