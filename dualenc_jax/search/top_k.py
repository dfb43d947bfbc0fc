"""The greatest of many scores, by way of those of groups of neighbours.

XLA sorts on one core of a CPU; this leaves it a small part.
"""

import jax
from jax import lax
import jax.numpy as jnp

# Neighbours of a group.
_GROUP = 32


def maxima(scores: jax.Array) -> jax.Array:
  """The greatest of each group, or all scores where groups do not fit."""
  queries, size = scores.shape
  if size % _GROUP:
    return scores
  return scores.reshape(queries, size // _GROUP, _GROUP).max(axis=2)


def best_of(
    scores: jax.Array, groups: int, count: int
) -> tuple[jax.Array, jax.Array]:
  """The `count` best of the groups with the greatest maxima, or of all.

  With as many groups as hits it is the best of all.

  Args:
    scores: [Q, M].
    groups: how many are looked at.
    count: at most as many scores as these have.

  Returns:
    Scores, best first, and their places, int32, [Q, count] each.
  """
  queries, size = scores.shape
  if size < 4 * groups * _GROUP or size % _GROUP:
    return lax.top_k(scores, min(count, size))
  _, which = lax.top_k(maxima(scores), groups)
  members = jnp.take_along_axis(
      scores.reshape(queries, size // _GROUP, _GROUP),
      which[:, :, None],
      axis=1,
      mode='clip',
  )
  members = members.reshape(queries, groups * _GROUP)
  values, place = lax.top_k(members, min(count, groups * _GROUP))
  group = jnp.take_along_axis(which, place // _GROUP, axis=1, mode='clip')
  return values, group * _GROUP + place % _GROUP
