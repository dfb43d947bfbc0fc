"""Distillation: losses on a teacher's scores of a query's own candidates."""

from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.data.columns import TEACHER_SCORES
from dualenc_jax.losses.loss import (
  Embeddings,
  Loss,
  mean,
  Params,
  Result,
  Similarity,
)
from dualenc_jax.losses.score_matrix import MASKED
from dualenc_jax.utils.errors import check_one_of, check_positive, UserError

KINDS = ('logits', 'probabilities', 'cosines')
# Probabilities are kept so far from 0 and 1 that their logits are finite.
_EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class _Distillation(Loss):
  """A loss over the passage of a query and its own hard negatives.

  The batch has the column `teacher_scores` [B, 1 + K], the passage's first.
  Candidates without a score (NaN) do not count, nor do pairs whose passage, or
  all of whose negatives, have none.

  Attributes:
    teacher: 'logits', 'probabilities', whose logits are used, or 'cosines'.
    teacher_temperature: divides the teacher's scores; the temperature of the
      `Similarity` divides the student's.
  """

  teacher: str = 'logits'
  teacher_temperature: float = 1.0

  def __post_init__(self):
    name = type(self).__name__
    check_one_of(f'{name}.teacher', self.teacher, KINDS)
    check_positive(f'{name}.teacher_temperature', self.teacher_temperature)

  @property
  def reads_teacher(self) -> bool:
    return True

  def check_columns(self, columns: Mapping[str, np.ndarray]) -> None:
    name = type(self).__name__
    if TEACHER_SCORES.name not in columns:
      raise UserError(
          f"{name} learns from a teacher's scores, but the training data has"
          ' none. Name their columns by POSITIVE_SCORES_COLUMN and'
          ' NEGATIVE_SCORES_COLUMN, or their file by BEIR_SCORES or'
          ' MSMARCO_SCORES.'
      )
    scores = columns[TEACHER_SCORES.name]
    known = ~np.isnan(scores)
    lists = known[:, 0] & (known.sum(axis=1) > 1)
    if not lists.any():
      raise UserError(
          f'{name}: none of the first {len(scores):,} examples has scores of'
          ' its passage and of a hard negative. Set NUM_NEGATIVES to 1 or more,'
          " and give the teacher's scores."
      )
    chosen = np.where(known, scores, scores[:, :1])[lists]
    if not np.ptp(chosen, axis=1).any():
      raise UserError(
          f'{name}: the teacher gives all candidates of a query the same score,'
          f' {chosen[0, 0]:g}: flat labels teach nothing.'
      )
    least, most = scores[known].min(), scores[known].max()
    if self.teacher == 'logits' and least >= 0.0 and most <= 1.0:
      raise UserError(
          f'{name}: all scores of the teacher are {least:g} to {most:g}, like'
          ' probabilities, not logits. Set --gin.TEACHER=probabilities, or'
          ' cosines if they are.'
      )
    if self.teacher == 'probabilities' and (least < 0.0 or most > 1.0):
      raise UserError(
          f'{name}: the teacher has scores of {least:g} to {most:g}, which are'
          ' not probabilities. Set --gin.TEACHER=logits.'
      )

  def _lists(self, batch: Embeddings, similarity: Similarity) -> '_Lists':
    if batch.negatives is None or not batch.num_negatives:
      raise UserError(
          f'{type(self).__name__} has nothing to compare a passage with: set'
          ' NUM_NEGATIVES to 1 or more.'
      )
    candidates = jnp.concatenate(
        [batch.passage[:, None], batch.negatives], axis=1
    )
    student = jnp.einsum(
        'bd,bcd->bc', batch.query, candidates, precision='highest'
    )
    teacher = batch.column(TEACHER_SCORES.name)
    counted = ~jnp.isnan(teacher)
    if batch.negative_valid is not None:
      counted = counted.at[:, 1:].set(counted[:, 1:] & batch.negative_valid)
    taught = counted[:, 0] & jnp.any(counted[:, 1:], axis=1)
    teacher = jnp.where(counted, teacher, 0.0)
    if self.teacher == 'probabilities':
      teacher = jnp.clip(teacher, _EPSILON, 1.0 - _EPSILON)
      teacher = jnp.log(teacher) - jnp.log1p(-teacher)
    return _Lists(
        student / similarity.temperature, teacher / self.teacher_temperature,
        counted, taught.astype(jnp.float32),
    )


class _Lists(NamedTuple):
  """The lists of B pairs, [B, 1 + K] each.

  `counted` is False, and `teacher` 0, without a score or a hard negative;
  `taught` is 1.0 for a pair that has a list, float32 [B].
  """

  student: jax.Array
  teacher: jax.Array
  counted: jax.Array
  taught: jax.Array

  def masked(self, scores: jax.Array) -> jax.Array:
    return jnp.where(self.counted, scores, MASKED)

  def result(self, batch: Embeddings, values: jax.Array) -> Result:
    """Averages values [B] over the pairs with a list; adds metrics."""
    share = mean(batch, self.taught)

    def over_taught(x: jax.Array) -> jax.Array:
      return mean(batch, self.taught * x) / jnp.where(share == 0.0, 1.0, share)

    best = (
        jnp.argmax(self.masked(scores), axis=1)
        for scores in (self.student, self.teacher)
    )
    agreement = jnp.equal(*best).astype(jnp.float32)
    value = over_taught(values)
    return value, {
        'loss': value,
        'taught_fraction': share,
        'teacher_agreement': over_taught(agreement),
    }


class Distill(_Distillation):
  """KL divergence of the student's list from the teacher's (ListKD).

  The mean over pairs i of

    sum_c t_ic (log t_ic - log s_ic),  s_i = softmax_c s(q_i, c),
    t_i = softmax_c(teacher score of c / teacher_temperature),

  over the passage and the hard negatives c of pair i.
  """

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    lists = self._lists(batch, similarity)
    student, teacher = (
        jax.nn.log_softmax(lists.masked(scores), axis=1)
        for scores in (lists.student, lists.teacher)
    )
    divergence = jnp.exp(teacher) * (teacher - student)
    divergence = jnp.sum(jnp.where(lists.counted, divergence, 0.0), axis=1)
    return lists.result(batch, divergence)


class MarginMSE(_Distillation):
  """Squared error of the margins of passage over negative (Hofstätter 2020).

  The mean over pairs i, and over its hard negatives k, of

    (s(q_i, p_i) - s(q_i, n_ik) - (t(q_i, p_i) - t(q_i, n_ik)))^2.

  Cosines differ by 2 at most, and a cross-encoder's logits by 20: take a
  temperature of 0.05, `losses.AtTemperature` for this loss alone.
  """

  def __call__(
      self, params: Params, batch: Embeddings, similarity: Similarity
  ) -> Result:
    lists = self._lists(batch, similarity)
    values = margin_errors(lists.student, lists.teacher, lists.counted[:, 1:])
    return lists.result(batch, values)


def margin_errors(
    student: jax.Array, teacher: jax.Array, counted: jax.Array
) -> jax.Array:
  """Returns the mean over k of squared errors of margins, [B]; 0 without any.

  Scores are [B, 1 + K], the passage's first; `counted` is bool [B, K].
  """
  difference = student - teacher
  error = jnp.square(difference[:, :1] - difference[:, 1:])
  total = jnp.sum(jnp.where(counted, error, 0.0), axis=1)
  return total / jnp.maximum(jnp.sum(counted, axis=1), 1)
