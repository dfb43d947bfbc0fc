"""Train state and train step: from a batch on the mesh to new parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dualenc_jax.losses import Embeddings
from dualenc_jax.models import DualEncoder
from dualenc_jax.training import micro_batches
from dualenc_jax.training.optimizer import Optimizer
from dualenc_jax.training.partitioning import Partitioner

Batch = dict[str, jax.Array]


class TrainState(NamedTuple):
  """Everything that a step changes.

  Attributes:
    step: steps taken, int32 [].
    params: the model's parameters; those of the loss under 'loss'.
    opt_state: optax state.
  """

  step: jax.Array
  params: Any
  opt_state: Any


def model_params(params: Any) -> Any:
  """The parameters of the model, or anything else of that structure."""
  return {name: tree for name, tree in params.items() if name != 'loss'}


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
    batch: query_tokens [B, Lq], passage_tokens [B, Lp], query_ids and
      passage_ids [B, 2]; with hard negatives negative_tokens [B, K, Lp] and
      negative_ids [B, K, 2]. A batch of your own may have valid [B] and
      weights [B], see `Embeddings`.
    dropout_key: switches dropout on. The masks of a row depend on this key
      and the row's place in the batch alone.
    micro_batch_size: pairs encoded at once, see `micro_batches.map_rows`; None
      for all.

  Returns:
    The embeddings of the batch.
  """
  variables = {'params': model_params(params)}
  query_key, passage_key = None, None
  if dropout_key is not None:
    query_key, passage_key = jax.random.split(dropout_key)
  # A pair's passage and its hard negatives stay on the device of the pair.
  passage_tokens = batch['passage_tokens'][:, None]
  negatives = batch.get('negative_tokens')
  if negatives is not None:
    passage_tokens = jnp.concatenate([passage_tokens, negatives], axis=1)
  batch_size, candidates, length = passage_tokens.shape

  def encode(method, tokens, key, rows):
    if key is None:
      return model.apply(variables, tokens, method=method)
    return model.apply(
        variables, tokens, rows, rngs={'dropout': key}, method=method
    )

  def encode_pairs(pairs, query_tokens, passage_tokens):
    """Numbers [m], [m, Lq], [m, 1 + K, Lp] -> [m, D], [m, 1 + K, D]."""
    query = encode('encode_query', query_tokens, query_key, pairs)
    rows = pairs[:, None] * candidates + jnp.arange(candidates)[None]
    passages = encode(
        'encode_passage',
        passage_tokens.reshape(-1, length),
        passage_key,
        rows.reshape(-1),
    )
    return query, passages.reshape(-1, candidates, passages.shape[-1])

  query, passages = micro_batches.map_rows(
      encode_pairs,
      micro_batch_size,
      jnp.arange(batch_size),
      batch['query_tokens'],
      passage_tokens,
  )
  embeddings = Embeddings(
      query,
      passages[:, 0],
      query_ids=batch.get('query_ids'),
      passage_ids=batch.get('passage_ids'),
      valid=batch.get('valid'),
      weights=batch.get('weights'),
  )
  if negatives is None:
    return embeddings
  return embeddings._replace(
      negatives=passages[:, 1:],
      negative_ids=batch.get('negative_ids'),
      negative_valid=jnp.any(negatives != 0, axis=-1),
  )


def init_params(model: DualEncoder, loss: Any, seed: int) -> Any:
  """Fresh parameters, the model's still in their boxes of logical axes."""
  tokens = jnp.ones((1, 2), jnp.int32)
  params = model.init(jax.random.key(seed), tokens, tokens)['params']
  loss_params = loss.init()
  return {**params, 'loss': loss_params} if loss_params else params


def make_init(
    model: DualEncoder,
    loss: Any,
    optimizer: Optimizer,
    partitioner: Partitioner,
    seed: int,
) -> tuple[TrainState, TrainState, Callable[[], TrainState], Any]:
  """Plans the train state without computing anything.

  Returns:
    The abstract state, its shardings, a compiled function that makes the
    initial state in place on the mesh, and the optax transformation.
  """
  boxed = jax.eval_shape(lambda: init_params(model, loss, seed))
  abstract_params = nn.unbox(boxed)
  transform = optimizer.build(abstract_params)

  def init() -> TrainState:
    params = nn.unbox(init_params(model, loss, seed))
    return TrainState(
        jnp.zeros((), jnp.int32), params, transform.init(params)
    )

  abstract = jax.eval_shape(init)
  param_shardings = partitioner.param_shardings(boxed)
  shardings = TrainState(
      partitioner.replicated,
      param_shardings,
      partitioner.state_shardings(
          abstract.opt_state, abstract_params, param_shardings
      ),
  )
  return abstract, shardings, jax.jit(init, out_shardings=shardings), transform


def make_train_step(
    model: DualEncoder,
    loss: Any,
    learning_rate: Callable[[jax.Array], jax.Array],
    transform: optax.GradientTransformation,
    partitioner: Partitioner,
    shardings: TrainState,
    seed: int,
    micro_batch_size: int | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
  """Compiles (state, batch) -> (state, metrics); the old state is donated.

  Dropout of step k depends on (seed, k) alone; `micro_batch_size`, as in
  `embed`, changes no numbers. Beside the loss's metrics come `gradient_norm`,
  `learning_rate` and `gradient_squares`, the squared norm of each gradient in
  the order of `rules.leaf_paths(params)`.
  """

  def step(state: TrainState, batch: Batch):
    # Of the generators only this one draws a row's mask by its key alone.
    key = jax.random.key(seed, impl='threefry2x32')
    key = jax.random.fold_in(key, state.step)

    def loss_fn(params):
      embeddings = embed(model, params, batch, key, micro_batch_size)
      return loss(params.get('loss', {}), embeddings)

    (_, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(
        state.params
    )
    updates, opt_state = transform.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    squares = jnp.stack(
        [jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)]
    )
    metrics = {
        **metrics,
        'gradient_norm': jnp.sqrt(jnp.sum(squares)),
        'gradient_squares': squares,
        'learning_rate': jnp.asarray(learning_rate(state.step), jnp.float32),
    }
    return TrainState(state.step + 1, params, opt_state), metrics

  def scoped(state, batch):
    with partitioner.scope():
      return step(state, batch)

  return jax.jit(
      scoped,
      in_shardings=(shardings, partitioner.rows),
      out_shardings=(shardings, partitioner.replicated),
      donate_argnums=0,
  )


def non_finite_tensors(metrics: dict[str, Any], paths: list[str]) -> list[str]:
  """Names of the loss and the gradients that are not finite, host values.

  Args:
    metrics: fetched metrics of a step.
    paths: `rules.leaf_paths(params)`.
  """
  names = [] if np.isfinite(metrics['loss']) else ['the loss']
  bad = ~np.isfinite(metrics['gradient_squares'])
  return names + [
      f'the gradient of {path}' for path, b in zip(paths, bad) if b
  ]
