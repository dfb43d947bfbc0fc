"""LambdaRank-weighted pairs against plain loops in float64."""

import differences
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dualenc_jax.losses.code_ranking import lambda_rank, Ranked

QUERIES, RELEVANT, OTHERS, TEMPERATURE = 5, 3, 7, 0.3


def case(seed=0):
  rng = np.random.default_rng(seed)
  ranks = np.stack(
      [1 + rng.permutation(RELEVANT + OTHERS) for _ in range(QUERIES)]
  )
  scores = rng.normal(size=(QUERIES, RELEVANT + OTHERS)).astype(np.float32)
  valid = rng.random(scores.shape) < 0.7
  # No relevant passage, no other, all of both.
  valid[0, :RELEVANT], valid[1, RELEVANT:], valid[2] = False, False, True
  return [
      Ranked(scores[:, part], ranks[:, part].astype(np.int32), valid[:, part])
      for part in (slice(RELEVANT), slice(RELEVANT, None))
  ]


def reference(relevant, others, cut):
  def weight(rank):
    return 1 / rank if rank <= cut else 0.0

  found = []
  for q in range(QUERIES):
    terms = []
    for i in np.flatnonzero(relevant.valid[q]):
      for j in np.flatnonzero(others.valid[q]):
        margin = float(others.scores[q, j]) - float(relevant.scores[q, i])
        gain = weight(others.ranks[q, j]) - weight(relevant.ranks[q, i])
        terms.append(np.log1p(np.exp(margin / TEMPERATURE)) * abs(gain))
    found.append(np.mean(terms) if terms else 0.0)
  return np.array(found)


@pytest.mark.parametrize('cut', [1, 4, 200])
def test_value(cut):
  relevant, others = case()
  found = lambda_rank(relevant, others, cut, TEMPERATURE)
  expected = reference(relevant, others, cut)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
  assert expected[0] == expected[1] == 0 < expected[2]


def test_gradient_is_that_of_finite_differences():
  relevant, others = case(1)

  def value(own, other):
    return jnp.sum(
        lambda_rank(
            relevant._replace(scores=own), others._replace(scores=other), 4,
            TEMPERATURE,
        )
    )

  scores = relevant.scores, others.scores
  found = jax.grad(value, argnums=(0, 1))(*map(jnp.asarray, scores))
  for side, gradient in enumerate(found):

    def total(x, side=side):
      both = [x if i == side else y for i, y in enumerate(scores)]
      sides = relevant._replace(scores=both[0]), others._replace(scores=both[1])
      return reference(*sides, 4).sum()

    expected = differences.central(total, scores[side], 1e-5)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def test_margins_of_any_size_are_finite():
  relevant, others = case()
  far = others._replace(scores=others.scores * np.float32(1e20))
  found = lambda_rank(relevant, far, 200, TEMPERATURE)
  assert np.isfinite(found).all()
