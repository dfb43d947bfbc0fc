"""Clipping, freezing and learning-rate multipliers."""

import math
import re

import jax
import numpy as np
import optax
import pytest

from dualenc_jax.parallel.partitioning import leaf_paths
from dualenc_jax.training import Optimizer
from dualenc_jax.utils.errors import UserError

SCHEDULE = optax.linear_schedule(1e-2, 0.0, 5)


def make_params(seed=0):
  rng = np.random.default_rng(seed)
  shapes = {
      'wide': {'kernel': (12, 19)}, 'tall': {'kernel': (25, 13)},
      'norm': {'scale': (64,)}, 'tiny': {'scale': (4,)},
  }
  return jax.tree.map(
      lambda shape: rng.normal(0, 0.3, shape).astype(np.float32), shapes,
      is_leaf=lambda x: isinstance(x, tuple),
  )


PARAMS, GRADIENTS = make_params(0), make_params(1)


def first_updates(optimizer, frozen=()):
  transform = optimizer.build(PARAMS, frozen)
  # So that equal products are rounded alike in programs that differ.
  update = jax.jit(
      transform.update, compiler_options={'xla_cpu_use_fusion_emitters': True}
  )
  return update(GRADIENTS, transform.init(PARAMS), PARAMS)[0]


def test_clipping_is_to_the_norm_of_all_that_trains_together():
  trained = {k: v for k, v in GRADIENTS.items() if k != 'wide'}
  norm = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64))
                     for g in jax.tree.leaves(trained)))
  for clip_norm in (norm / 3, norm * 3):
    updates = first_updates(Optimizer(
        optax.sgd(2.0), SCHEDULE, freeze=('wide/.*',), clip_norm=clip_norm
    ))
    factor = min(1, clip_norm / norm)
    for name, tensors in trained.items():
      for kind, gradient in tensors.items():
        np.testing.assert_allclose(
            updates[name][kind], -2 * factor * gradient, rtol=1e-5
        )


def test_what_the_objective_freezes_may_be_frozen_again():
  mine = Optimizer(optax.sgd(1.0), SCHEDULE, freeze=('wide/.*',))
  updates = first_updates(mine, ('wide/.*', 'w.*'))
  assert not np.any(updates['wide']['kernel'])
  assert np.any(updates['tall']['kernel'])


def test_nothing_is_kept_of_what_is_frozen():
  frozen = Optimizer(optax.adam(1.0), SCHEDULE, freeze=('wide/.*',))
  kept = leaf_paths(frozen.build(PARAMS).init(PARAMS))
  assert any('tall' in path for path in kept)
  assert not any('wide' in path for path in kept)


@pytest.mark.parametrize(
    'given, message',
    [
        ({'learning_rate': lambda step: 'abc'}, 'give no number'),
        ({'learning_rate': lambda step: math.nan}, 'is nan; expected .*'),
        ({'clip_norm': 0}, 'CLIP_NORM is 0; expected a number above'),
        ({'freeze': ('.*',)}, 'FREEZE matches every parameter'),
        ({'freeze': ('wid/kernel',)}, "FREEZE: .*'wid/kernel'.*wide/kernel"),
        *(
            (
                {'multipliers': (('.*', 1.0), rule)},
                re.escape(f'LR_MULTIPLIERS holds {rule!r}; expected pairs'),
            )
            for rule in ('wide/.*', ('wide/.*', -1), ('wide/.*', True))
        ),
    ],
)
def test_what_cannot_be(given, message):
  given = {'learning_rate': SCHEDULE, **given}
  with pytest.raises(UserError, match=message):
    Optimizer(optax.sgd(SCHEDULE), **given).build(PARAMS)


def test_multipliers_scale_updates_exactly():
  want = first_updates(Optimizer(optax.adafactor(SCHEDULE), SCHEDULE))
  # The second rule comes too late for 'wide'.
  rules = ('wide/.*', 0.25), ('.*/kernel', 3.0), ('tiny/.*', 0.0)
  got = first_updates(
      Optimizer(optax.adafactor(SCHEDULE), SCHEDULE, multipliers=rules)
  )
  for name, factor in dict(wide=0.25, tall=3.0, norm=1.0, tiny=0.0).items():
    for kind, update in want[name].items():
      assert np.any(update != 0)
      np.testing.assert_array_equal(
          got[name][kind], update * np.float32(factor), err_msg=name
      )
