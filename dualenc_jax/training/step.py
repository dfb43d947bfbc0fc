"""Optimizer and train step: from a batch on the mesh to new parameters."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import itertools
import math
import re
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import optax

from dualenc_jax.data.columns import STEP
from dualenc_jax.models import layers
from dualenc_jax.objectives import Objective
from dualenc_jax.parallel import partitioning
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.training.lora import Lora
from dualenc_jax.utils.errors import expect, UserError

# Parts of a run after which a description looks at the learning rate.
_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """A transformation of optax with rules over parameter paths.

  A rule is a regular expression, which must match whole paths
  ('encoder/layers_0/mlp/wo/kernel') and at least one of them.

  Attributes:
    transform: the transformation, its learning rate included.
    learning_rate: the schedule that `transform` uses, for the log.
    freeze: parameters that are never updated and have no optimizer state.
    multipliers: pairs of an expression and a factor on the learning rate; the
      first that matches counts, and 1 where none does.
    clip_norm: largest norm of the gradient of all trained parameters together,
      which is scaled down to it; None leaves it as it is.
  """

  transform: optax.GradientTransformation
  learning_rate: Callable[[Any], Any]
  freeze: Sequence[str] = ()
  multipliers: Sequence[tuple[str, float]] = ()
  clip_norm: float | None = None

  def __post_init__(self):
    expect(
        hasattr(self.transform, 'update'), 'Optimizer.transform',
        self.transform, 'one of optax, in gin @optax.adafactor()',
    )
    try:
      first = float(self.learning_rate(0))
    except (TypeError, ValueError) as e:
      raise UserError(
          f'LEARNING_RATE and its schedule give no number at step 0: {e}.'
          ' Expected numbers, such as LEARNING_RATE = 1e-3.'
      ) from e
    expect(
        math.isfinite(first) and first >= 0.0, 'The learning rate', first,
        'a finite number, 0 or more, at step 0',
    )
    expect(
        self.clip_norm is None or self.clip_norm > 0, 'CLIP_NORM',
        self.clip_norm, 'a number above 0, or None',
    )
    for rule in self.multipliers:
      if not _is_multiplier(rule):
        raise UserError(
            f'LR_MULTIPLIERS holds {rule!r}; expected pairs of expression and'
            " finite factor, 0 or more: (('projection/.*', 10.0),)."
        )

  def describe(self, steps: int) -> str:
    """Returns the course of the learning rate over so many steps, in words."""
    places = [steps * i // _SHOWN for i in range(_SHOWN + 1)]
    rates = [float(self.learning_rate(step)) for step in places]
    turns = [rates[0], max(rates), rates[-1]]
    # Warm-up of optax begins and ends a trifle above 0.
    shown = [f'{rate:.3g}' if rate > 1e-6 * turns[1] else '0' for rate in turns]
    ways = (rate for rate, _ in itertools.groupby(shown))
    return f'learning rate {" to ".join(ways)}'

  def build(
      self, params: Any, frozen: Sequence[str] = ()
  ) -> optax.GradientTransformation:
    """Returns the transformation of optax for parameters.

    Args:
      params: the parameters, possibly abstract.
      frozen: expressions of the objective, which `freeze` may repeat.

    Raises:
      UserError: a rule matches no parameter, or has no effect.
    """
    paths = partitioning.leaf_paths(params)
    treedef = jax.tree.structure(params)
    fixed = self.frozen_paths(paths, frozen)
    factors = partitioning.match_rules(
        'LR_MULTIPLIERS', self.multipliers, paths
    )

    if len(fixed) == len(paths):
      raise UserError('FREEZE matches every parameter; nothing would train.')
    transform = self.transform
    if self.clip_norm is not None:
      transform = optax.chain(
          optax.clip_by_global_norm(self.clip_norm), transform
      )
    if factors:
      scales = jax.tree.unflatten(
          treedef, [factors.get(path, 1.0) for path in paths]
      )
      transform = optax.chain(transform, _scale_by(scales))
    if fixed:
      labels = jax.tree.unflatten(
          treedef, ['frozen' if path in fixed else 'trained' for path in paths]
      )
      transform = optax.multi_transform(
          {'trained': transform, 'frozen': optax.set_to_zero()}, labels
      )
    return transform

  def frozen_paths(
      self, paths: Sequence[str], frozen: Sequence[str]
  ) -> set[str]:
    """Returns the paths of parameters that are not trained, as in `build`."""
    return {
        path
        for patterns in (self.freeze, *((pattern,) for pattern in frozen))
        for path in partitioning.match_rules(
            'FREEZE', [(pattern, True) for pattern in patterns], paths
        )
    }


class TrainState(NamedTuple):
  """All that a step needs, and changes except the base.

  The memory of most objectives is (), and so is the base, parameters that stay,
  of runs without LoRA.
  """

  step: Any
  params: Any
  opt_state: Any
  memory: Any = ()
  base: Any = ()


class Plan(NamedTuple):
  """Shapes, shardings and functions of a run, without numbers.

  Attributes:
    abstract: the state, of ShapeDtypeStruct with shardings.
    init: makes the state on the mesh, without a base.
    train_step: (state, batch) -> (state, metrics), which donates the state.
    lora: the adapters of the run, if it has some.
  """

  abstract: TrainState
  init: Callable[[], TrainState]
  train_step: Callable[[TrainState, Any], tuple[TrainState, dict[str, Any]]]
  lora: Lora | None = None

  def all_params(self, state: TrainState) -> Any:
    """Returns what the objective takes: the base, too; maybe abstract."""
    if self.lora is None:
      return state.params
    return self.lora.combine(state.base, state.params)


def plan(
    objective: Objective, optimizer: Optimizer, partitioner: Partitioner,
    seed: int, memory: Any = (), lora: Lora | None = None,
) -> Plan:
  """Traces parameters and optimizer state; computes nothing.

  Dropout of step k depends on (seed, k) alone. A batch that is a mapping also
  gets k as `step`. Metrics of a step are those of the objective, and

    gradient_norm, learning_rate: float32 [].
    gradient_squares: the squared norm of each gradient, in the order of
      `partitioning.leaf_paths(params)`.
    finite: whether each new parameter is finite, in the same order.

  Args:
    objective: the objective.
    optimizer: the optimizer.
    partitioner: the mesh and its rules.
    seed: seed of parameters and dropout.
    memory: the objective's, abstract; at first it is zeros.
    lora: adapters, of a rank, to train in place of their kernels.

  Raises:
    UserError: sizes that do not divide, rules that match nothing.
  """
  key = functools.partial(jax.random.key, seed)
  # Traced once, for its shapes and as a part of `init`.
  make_params = jax.jit(lambda: objective.init(key()))
  boxed = whole = jax.eval_shape(make_params)
  base: Any = ()
  frozen = objective.frozen
  if lora is not None:
    paths = partitioning.leaf_paths(nn.unbox(whole))
    fixed = optimizer.frozen_paths(paths, frozen)
    lora.check_optimizer(optimizer.transform)
    base, boxed = lora.split(lambda: objective.init(key()), whole, fixed)
    optimizer = dataclasses.replace(optimizer, freeze=())
    own = partitioning.leaf_paths(nn.unbox(boxed))
    frozen = [re.escape(path) for path in sorted(fixed & {*own})]
  abstract_params = nn.unbox(boxed)
  transform = optimizer.build(abstract_params, frozen)

  def init() -> TrainState:
    params = nn.unbox(make_params())
    if lora is not None:
      params = lora.init(
          jax.random.fold_in(key(), 1), params, abstract_params
      )
    return TrainState(
        jnp.zeros((), jnp.int32),
        params,
        transform.init(params),
        jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), memory),
    )

  def train_step(state: TrainState, batch: Any):
    # Only this generator draws a row's mask by its key alone.
    dropout = jax.random.fold_in(key(impl='threefry2x32'), state.step)
    if isinstance(batch, Mapping):
      batch = {STEP: state.step, **batch}

    def value(params):
      if lora is not None:
        params = lora.combine(state.base, params)
      with layers.use_adapter_dropout(lora.dropout if lora else 0.0):
        value, *rest = objective.step(params, state.memory, batch, dropout)
      return value, rest

    (loss, (metrics, memory)), grads = jax.value_and_grad(value, has_aux=True)(
        state.params
    )
    metrics = {'loss': loss, **metrics}
    # Each device updates its part, and the new parameters are gathered.
    grads, old = (
        jax.lax.with_sharding_constraint(tree, updated_at)
        for tree in (grads, state.params)
    )
    updates, opt_state = transform.update(grads, state.opt_state, old)
    params = optax.apply_updates(old, updates)
    squares = jnp.stack(
        [jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)]
    )
    finite = jnp.stack(
        [jnp.all(jnp.isfinite(p)) for p in jax.tree.leaves(params)]
    )
    rate = jnp.asarray(optimizer.learning_rate(state.step), jnp.float32)
    metrics = {
        **metrics,
        'gradient_norm': jnp.sqrt(jnp.sum(squares)),
        'gradient_squares': squares,
        'finite': finite,
        'learning_rate': rate,
    }
    state = TrainState(
        state.step + 1, params, opt_state, memory, state.base
    )
    return state, metrics

  def scoped_step(state, batch):
    with partitioner.scope():
      return train_step(state, batch)

  abstract = jax.eval_shape(init)
  param_shardings = partitioner.param_shardings(boxed)
  updated_at = partitioner.update_shardings(abstract_params, param_shardings)
  shardings = TrainState(
      partitioner.replicated,
      param_shardings,
      partitioner.state_shardings(
          abstract.opt_state, abstract_params, updated_at
      ),
      jax.tree.map(lambda _: partitioner.rows, memory),
  )
  make_state = jax.jit(init, out_shardings=shardings)
  if lora is not None:
    abstract = abstract._replace(base=nn.unbox(base))
    shardings = shardings._replace(base=partitioner.param_shardings(base))
  return Plan(
      add_shardings(abstract, shardings),
      make_state,
      jax.jit(
          scoped_step, in_shardings=(shardings, partitioner.rows),
          out_shardings=(shardings, partitioner.replicated), donate_argnums=0,
      ),
      lora,
  )


def _is_multiplier(rule: Any) -> bool:
  """Returns whether it is a pair of an expression and a finite factor >= 0."""
  match rule:
    case [str(), bool()]:
      return False
    case [str(), int() | float() as factor]:
      return math.isfinite(factor) and factor >= 0
  return False


def _scale_by(scales: Any) -> optax.GradientTransformation:
  """Multiplies every update by its own number."""

  def update(updates, params=None):
    del params
    return jax.tree.map(
        lambda u, s: u if isinstance(u, optax.MaskedNode) else u * s,
        updates,
        scales,
        is_leaf=lambda x: isinstance(x, optax.MaskedNode),
    )

  return optax.stateless(update)


def add_shardings(abstract: Any, shardings: Any) -> Any:
  """Returns abstract arrays with these shardings."""
  return jax.tree.map(
      lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s),
      abstract,
      shardings,
  )
