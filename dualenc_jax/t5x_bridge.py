"""Our model, loss and tasks under T5X; the only module that imports t5x."""

from collections.abc import Mapping, Sequence
import functools
from typing import Any

from clu import metrics as clu_metrics
from flax import core, linen as nn, traverse_util
from flax.linen import partitioning as flax_partitioning
import jax
import jax.numpy as jnp
from t5x import metrics as t5x_metrics, models, optimizers

from dualenc_jax.data import Dataset, layouts, seqio_adapter, Tokenizer
from dualenc_jax.losses import Embeddings
from dualenc_jax.objectives import Contrastive
from dualenc_jax.objectives.encoding import Batch, embed
from dualenc_jax.parallel import partitioning
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.files import default_cache_dir

Features = Mapping[str, Any]

# T5X has no rule for our axis of embeddings. On the mesh and in Adafactor `kv`
# is its equal: never split, the columns of a matrix.
_T5X_AXES = {'embedding_dim': 'kv'}


class DualEncoderModel(models.BaseTransformerModel):
  """Contrastive training as T5X's trainer takes a model.

  Batches are those of `PairConverter`, of features inputs (the query), targets
  (the passage) and negatives. Parameters have the names of our own trainer.
  """

  def __init__(
      self, objective: Contrastive,
      input_vocabulary: seqio_adapter.SeqioVocabulary,
      output_vocabulary: seqio_adapter.SeqioVocabulary,
      optimizer_def: optimizers.OptimizerDefType, freeze: Sequence[str] = (),
  ):
    """Creates the model.

    Args:
      objective: the objective to train. T5X's own `num_microbatches` must stay
        1 or None; the objective has a `micro_batch_size`.
      input_vocabulary: of the queries.
      output_vocabulary: of the passages.
      optimizer_def: T5X's optimizer.
      freeze: regular expressions over whole paths of parameters that get no
        gradient; an optimizer without weight decay leaves them unchanged.
    """
    module = objective.model
    own = module.passage_token_embedder or module.token_embedder
    for name, embedder, vocabulary in (
        ('queries', module.token_embedder, input_vocabulary),
        ('passages', own, output_vocabulary),
    ):
      if embedder.vocab_size < vocabulary.vocab_size:
        raise UserError(
            f'The token embedder of the {name} has {embedder.vocab_size} rows,'
            f' but their vocabulary has {vocabulary.vocab_size} pieces. Set'
            ' VOCAB_SIZE to at least as many.'
        )
    self.FEATURE_CONVERTER_CLS = functools.partial(  # T5X's name.
        seqio_adapter.PairConverter, num_negatives=objective.num_negatives
    )
    self._objective = objective
    self._freeze = freeze
    self._batch_size: int | None = None
    super().__init__(module, input_vocabulary, output_vocabulary, optimizer_def)

  def get_initial_variables(
      self, rng: jax.Array, input_shapes: Mapping[str, Sequence[int]],
      input_types: Mapping[str, Any] | None = None,
  ) -> core.FrozenDict:
    """Fresh parameters and, in 'params_axes', their logical axes."""
    del input_types
    # The loss must see a batch of this size whole.
    self._batch_size = input_shapes['query_tokens'][0]
    boxed = self._objective.init(rng)
    params = nn.unbox(boxed)
    self._frozen(params)
    return core.freeze({'params': params, 'params_axes': _axes(boxed)})

  def loss_fn(
      self, params: Any, batch: Features, dropout_rng: jax.Array | None
  ) -> tuple[jax.Array, dict[str, clu_metrics.Metric]]:
    """The loss of a global batch, and its metrics."""
    size = batch['query_tokens'].shape[0]
    if dropout_rng is not None and self._batch_size not in (None, size):
      raise UserError(
          f'The loss sees {size} pairs of a batch of {self._batch_size}: with'
          ' Trainer.num_microbatches the other parts would not be negatives.'
          ' Set it to None, and MICRO_BATCH_SIZE instead.'
      )
    frozen = self._frozen(params)
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: jax.lax.stop_gradient(x)
        if partitioning.path_string(path) in frozen
        else x,
        params,
    )
    key = None
    if dropout_rng is not None:
      # The generator of T5X's key may make masks that depend on their place.
      bits = jax.random.bits(dropout_rng, (2,), jnp.uint32)
      key = jax.random.wrap_key_data(bits, impl='threefry2x32')
    value, metrics = self._objective(params, to_batch(batch), key)
    averages = {
        name: clu_metrics.Average.from_model_output(metric[None])
        for name, metric in metrics.items()
    }
    return value, averages | {
        'timing/seqs_per_second': t5x_metrics.TimeRate.from_model_output(size),
        'timing/steps_per_second': t5x_metrics.StepsPerTime.from_model_output(),
    }

  def predict_batch_with_aux(
      self, params: Any, batch: Features, rng: jax.Array | None = None
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Embeddings, float32 [B, 2, D]: of the query, of the passage."""
    del rng
    embeddings = self._embed(params, batch)
    return jnp.stack([embeddings.query, embeddings.passage], axis=1), {}

  def score_batch(
      self, params: Any, batch: Features, return_intermediates: bool = False
  ) -> jax.Array:
    """Cosines of the pairs, float32 [B]."""
    if return_intermediates:
      raise UserError('A dual encoder records no intermediates to return.')
    embeddings = self._embed(params, batch)
    return jnp.sum(embeddings.query * embeddings.passage, axis=-1)

  def _compute_logits(
      self, params: Any, batch: Features, dropout_rng: jax.Array | None = None
  ) -> jax.Array:
    """Cosines of all queries and all passages, float32 [B, B]."""
    del dropout_rng
    embeddings = self._embed(params, batch)
    return jnp.dot(embeddings.query, embeddings.passage.T, precision='highest')

  def _embed(self, params: Any, batch: Features) -> Embeddings:
    return embed(self._objective.model, params, to_batch(batch))

  def _frozen(self, params: Any) -> Mapping[str, bool]:
    """Paths of the parameters that get no gradient."""
    rules = [(pattern, True) for pattern in self._freeze]
    paths = partitioning.leaf_paths(params)
    return partitioning.match_rules('freeze', rules, paths)


def register(
    task: Dataset, tokenizer: Tokenizer, cache_dir: str | None = None
) -> str:
  """Registers one of our tasks with seqio; the name for `DatasetConfig`.

  Its tokens are those of the token cache that our own trainer would use.
  """
  if not isinstance(task, Dataset) or len(task.parts()) > 1:
    raise UserError(
        f'The task {task.label!r} is a mixture; expected a task with texts.'
        ' Register a mixture of tokenised tasks with seqio, and give its name.'
    )
  name = f'dualenc_{task.task_name}'
  folder = cache_dir or default_cache_dir() / 'tokens'
  seqio_adapter.register(
      name, lambda: task, task.splits(), tokenizer, folder
  )
  return name


def to_batch(features: Features) -> Batch:
  """The batch of `embed` from the features of `PairConverter`."""
  passages, ids = features['passage_tokens'], features['passage_ids']
  batch = {
      'queries': layouts.padded_rows(features['query_tokens'][:, None]),
      'passages': layouts.padded_rows(passages),
      'query_ids': features['query_ids'],
      'passage_ids': ids[:, 0],
  }
  if ids.shape[1] > 1:
    batch['negative_ids'] = ids[:, 1:]
    # Every text has an EOS.
    batch['negative_valid'] = passages[:, 1:, 0] != 0
  return batch


def _axes(boxed: Any) -> dict[str, Any]:
  """Logical axes of parameters as T5X takes them, from their boxes."""
  specs = traverse_util.flatten_dict(nn.get_partition_spec(boxed))
  return traverse_util.unflatten_dict({
      (*path[:-1], f'{path[-1]}_axes'): flax_partitioning.AxisMetadata(
          tuple(_T5X_AXES.get(axis, axis) for axis in spec)
      )
      for path, spec in specs.items()
  })
