"""Losses of a cross-encoder, over the scores of lists of candidates.

A list is the passage of a query and its hard negatives. The losses are those of
RankT5 (Zhuang et al. 2022) and Rax, weighted means over the lists.
"""

import dataclasses
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dualenc_jax.losses.loss import Result, weighted_mean
from dualenc_jax.losses.score_matrix import MASKED


class Lists(NamedTuple):
  """B lists of G candidates, the positive first: logits float32 [B, G].

  `valid` is False where a list is shorter or repeats its positive; `weights`
  float32 [B] are None for equal ones.
  """

  scores: jax.Array
  valid: jax.Array
  weights: jax.Array | None = None

  def mean(self, values: jax.Array) -> jax.Array:
    """Returns the mean of values [B] over the lists."""
    return weighted_mean(values, self.weights)


class ListLoss(Protocol):
  """A loss over lists; no base class is needed."""

  def __call__(self, lists: Lists) -> jax.Array:
    """Returns the value, float32 []."""


@dataclasses.dataclass(frozen=True)
class Pointwise:
  """Cross-entropy of each candidate's probability, sigmoid(score).

  The mean over lists of the mean over their candidates of

    log(1 + exp(-f)) of the positive,  log(1 + exp(f)) of a negative.

  The scores are logits of a probability, to which thresholds can apply.
  """

  def __call__(self, lists: Lists) -> jax.Array:
    sign = jnp.ones_like(lists.scores).at[:, 0].set(-1.0)
    entropy = jnp.where(lists.valid, jax.nn.softplus(sign * lists.scores), 0.0)
    return lists.mean(jnp.sum(entropy, 1) / jnp.sum(lists.valid, 1))


@dataclasses.dataclass(frozen=True)
class Listwise:
  """Softmax cross-entropy of the positive among its list, or PolyLoss.

    -log p + poly (1 - p),  p = exp f_0 / sum_c exp f_c

  `poly` is 1 in RankT5. A constant added to the scores of a list changes
  nothing: they rank, and are no logits until they are calibrated.
  """

  poly: float = 0.0

  def __call__(self, lists: Lists) -> jax.Array:
    masked = jnp.where(lists.valid, lists.scores, MASKED)
    log_p = jax.nn.log_softmax(masked, axis=1)[:, 0]
    return lists.mean(-log_p + self.poly * (1.0 - jnp.exp(log_p)))


@dataclasses.dataclass(frozen=True)
class Pairwise:
  """Logistic loss of each negative against its positive (RankNet).

    sum_k log(1 + exp(-(f_0 - f_k)))
  """

  def __call__(self, lists: Lists) -> jax.Array:
    losses = jax.nn.softplus(lists.scores[:, 1:] - lists.scores[:, :1])
    return lists.mean(jnp.sum(jnp.where(lists.valid[:, 1:], losses, 0.0), 1))


def evaluate(loss: ListLoss, lists: Lists) -> Result:
  """Computes a loss, and the metrics of any lists.

  The accuracy is the share of lists whose positive alone is first.
  """
  scores, valid = lists.scores.astype(jnp.float32), lists.valid
  lists = lists._replace(scores=scores)
  value = loss(lists)
  best = jnp.max(jnp.where(valid[:, 1:], scores[:, 1:], MASKED), axis=1)
  negatives = jnp.sum(valid[:, 1:], axis=1)
  of_negatives = jnp.sum(jnp.where(valid[:, 1:], scores[:, 1:], 0.0), axis=1)
  return value, {
      'loss': value,
      'accuracy': lists.mean((scores[:, 0] > best).astype(jnp.float32)),
      'list_length': lists.mean(1.0 + negatives),
      'positive_score': lists.mean(scores[:, 0]),
      'negative_score': lists.mean(of_negatives / jnp.maximum(negatives, 1)),
  }
