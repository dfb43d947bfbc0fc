"""Train state and train step: from a batch on the mesh to new parameters."""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dualenc_jax.objectives import Objective
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.training.optimizer import Optimizer


class TrainState(NamedTuple):
  """Everything that a step changes.

  Attributes:
    step: steps taken, int32 [].
    params: the objective's.
    opt_state: optax state.
  """

  step: jax.Array
  params: Any
  opt_state: Any


class Plan(NamedTuple):
  """Training, planned: shapes, shardings and functions, no numbers yet.

  Attributes:
    abstract: the train state as ShapeDtypeStruct with shardings.
    init: makes the initial state in place on the mesh.
    train_step: (state, batch) -> (state, metrics); donates the state.
  """

  abstract: TrainState
  init: Callable[[], TrainState]
  train_step: Callable[[TrainState, Any], tuple[TrainState, dict[str, Any]]]


def plan(
    objective: Objective,
    optimizer: Optimizer,
    partitioner: Partitioner,
    seed: int,
) -> Plan:
  """Traces parameters and optimizer state; computes nothing.

  Dropout of step k depends on (seed, k) alone. Beside the objective's metrics
  come `gradient_norm`, `learning_rate` and `gradient_squares`, the squared norm
  of each gradient in the order of `partitioning.leaf_paths(params)`.

  Raises:
    UserError: sizes that do not divide, rules that match nothing.
  """
  key = functools.partial(jax.random.key, seed)
  boxed = jax.eval_shape(lambda: objective.init(key()))
  abstract_params = nn.unbox(boxed)
  transform = optimizer.build(abstract_params)

  def init() -> TrainState:
    params = nn.unbox(objective.init(key()))
    return TrainState(
        jnp.zeros((), jnp.int32), params, transform.init(params)
    )

  def train_step(state: TrainState, batch: Any):
    # Of the generators only this one draws a row's mask by its key alone.
    dropout = jax.random.fold_in(key(impl='threefry2x32'), state.step)

    def value(params):
      return objective(params, batch, dropout)

    (_, metrics), grads = jax.value_and_grad(value, has_aux=True)(state.params)
    updates, opt_state = transform.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    squares = jnp.stack(
        [jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)]
    )
    rate = jnp.asarray(optimizer.learning_rate(state.step), jnp.float32)
    metrics = {
        **metrics,
        'gradient_norm': jnp.sqrt(jnp.sum(squares)),
        'gradient_squares': squares,
        'learning_rate': rate,
    }
    return TrainState(state.step + 1, params, opt_state), metrics

  def scoped_step(state, batch):
    with partitioner.scope():
      return train_step(state, batch)

  abstract = jax.eval_shape(init)
  param_shardings = partitioner.param_shardings(boxed)
  shardings = TrainState(
      partitioner.replicated,
      param_shardings,
      partitioner.state_shardings(
          abstract.opt_state, abstract_params, param_shardings
      ),
  )
  return Plan(
      with_shardings(abstract, shardings),
      jax.jit(init, out_shardings=shardings),
      jax.jit(
          scoped_step,
          in_shardings=(shardings, partitioner.rows),
          out_shardings=(shardings, partitioner.replicated),
          donate_argnums=0,
      ),
  )


def with_shardings(abstract: Any, shardings: Any) -> Any:
  """Abstract arrays that say where they live."""
  return jax.tree.map(
      lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s),
      abstract,
      shardings,
  )


def non_finite_tensors(metrics: dict[str, Any], paths: list[str]) -> list[str]:
  """Names of the loss and the gradients that are not finite, host values.

  Args:
    metrics: fetched metrics of a step.
    paths: `partitioning.leaf_paths(params)`.
  """
  names = [] if np.isfinite(metrics['loss']) else ['the loss']
  bad = ~np.isfinite(metrics['gradient_squares'])
  return names + [
      f'the gradient of {path}' for path, b in zip(paths, bad) if b
  ]
