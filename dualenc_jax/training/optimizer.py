"""An optax transformation with rules for freezing and learning rates."""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any

import jax
import optax

from dualenc_jax.errors import UserError
from dualenc_jax.parallel import partitioning


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """optax, plus regular-expression rules over parameter paths.

  A rule must match whole paths ('encoder/layers_0/mlp/wo/kernel') and at least
  one of them.

  Attributes:
    transform: any optax optimizer, its learning rate included.
    learning_rate: the schedule that `transform` uses, for the log.
    freeze: parameters that are never updated and have no optimizer state.
    multipliers: pairs of an expression and a factor on the learning rate; the
      first that matches counts, and 1 where none does.
  """

  transform: optax.GradientTransformation
  learning_rate: Callable[[jax.Array], jax.Array]
  freeze: Sequence[str] = ()
  multipliers: Sequence[tuple[str, float]] = ()

  def __post_init__(self):
    try:
      first = float(self.learning_rate(0))
    except (TypeError, ValueError) as e:
      raise UserError(
          f'LEARNING_RATE and its schedule give no number at step 0: {e}.'
      ) from e
    if not (math.isfinite(first) and first >= 0.0):
      raise UserError(
          f'The learning rate is {first} at step 0; expected a finite number, 0'
          ' or more.'
      )
    for rule in self.multipliers:
      if isinstance(rule, str) or len(rule) != 2:
        raise UserError(
            f'LR_MULTIPLIERS holds {rule!r}; expected pairs of an expression'
            " and a factor, (('projection/.*', 10.0),)."
        )

  def build(self, params: Any) -> optax.GradientTransformation:
    """The transformation for (possibly abstract) parameters.

    Raises:
      UserError: a rule matches no parameter.
    """
    paths = partitioning.leaf_paths(params)
    treedef = jax.tree.structure(params)
    frozen = partitioning.match(
        'FREEZE', [(pattern, True) for pattern in self.freeze], paths
    )
    factors = partitioning.match('LR_MULTIPLIERS', self.multipliers, paths)

    if len(frozen) == len(paths):
      raise UserError('FREEZE matches every parameter; nothing would train.')
    transform = self.transform
    if factors:
      scales = treedef.unflatten(factors.get(path, 1.0) for path in paths)
      transform = optax.chain(transform, _scale_by(scales))
    if frozen:
      labels = treedef.unflatten(
          'frozen' if path in frozen else 'trained' for path in paths
      )
      transform = optax.multi_transform(
          {'trained': transform, 'frozen': optax.set_to_zero()}, labels
      )
    return transform


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
