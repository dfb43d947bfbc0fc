"""Train state and train step: from a batch on the mesh to new parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dualenc_jax import losses
from dualenc_jax.models import DualEncoder
from dualenc_jax.objectives.embedding import Batch, embed
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.training.optimizer import Optimizer


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


def init_params(
    model: DualEncoder,
    loss: losses.Loss,
    similarity: losses.Similarity,
    seed: int,
) -> Any:
  """Fresh parameters, the model's still in their boxes of logical axes."""
  tokens = jnp.ones((1, 2), jnp.int32)
  params = model.init(jax.random.key(seed), tokens, tokens)['params']
  loss_params = losses.init(loss, similarity)
  return {**params, 'loss': loss_params} if loss_params else params


def make_init(
    model: DualEncoder,
    loss: losses.Loss,
    similarity: losses.Similarity,
    optimizer: Optimizer,
    partitioner: Partitioner,
    seed: int,
) -> tuple[TrainState, TrainState, Callable[[], TrainState], Any]:
  """Plans the train state without computing anything.

  Returns:
    The abstract state, its shardings, a compiled function that makes the
    initial state in place on the mesh, and the optax transformation.
  """
  boxed = jax.eval_shape(lambda: init_params(model, loss, similarity, seed))
  abstract_params = nn.unbox(boxed)
  transform = optimizer.build(abstract_params)

  def init() -> TrainState:
    params = nn.unbox(init_params(model, loss, similarity, seed))
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
    loss: losses.Loss,
    similarity: losses.Similarity,
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
      return losses.evaluate(
          loss, similarity, params.get('loss', {}), embeddings
      )

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
