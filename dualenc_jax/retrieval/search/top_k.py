"""The greatest scores, found through the greatest of groups of neighbours.

XLA sorts on one core of a CPU; with this it sorts only a small part.
"""

import jax
from jax import lax
import jax.numpy as jnp

# Neighbours of a group.
_GROUP = 32


def maxima(scores: jax.Array, axis: int = 1) -> jax.Array:
  """The greatest of each group along an axis, or all where they do not fit."""
  if scores.shape[axis] % _GROUP:
    return scores
  return _grouped(scores, axis).max(axis=axis + 1)


def best_of(
    scores: jax.Array, groups: int, count: int, axis: int = 1,
    greatest: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The `count` best of the groups with the greatest maxima, or of all.

  With as many groups as hits it is the best of all.

  Args:
    scores: [Q, M]; [M, Q] if `axis` is 0.
    groups: number of groups to search.
    count: at most the scores of these groups.
    axis: axis of the M scores.
    greatest: `maxima` of the scores, where known.

  Returns:
    Scores, best first, and their places, int32, [Q, count] each.
  """
  size = scores.shape[axis]
  if size < 4 * groups * _GROUP or size % _GROUP:
    return lax.top_k(_of_queries(scores, axis), min(count, size))
  if greatest is None:
    greatest = maxima(scores, axis)
  _, which = lax.top_k(_of_queries(greatest, axis), groups)
  members = jnp.take_along_axis(
      _grouped(scores, axis),
      jnp.expand_dims(_of_queries(which, axis), axis + 1),
      axis=axis,
      mode='clip',
  )
  shape = list(scores.shape)
  shape[axis] = groups * _GROUP
  members = _of_queries(members.reshape(shape), axis)
  values, place = lax.top_k(members, min(count, groups * _GROUP))
  group = jnp.take_along_axis(which, place // _GROUP, axis=1, mode='clip')
  return values, group * _GROUP + place % _GROUP


def _grouped(scores: jax.Array, axis: int) -> jax.Array:
  """The axis in two, groups and their neighbours."""
  before, after = scores.shape[:axis], scores.shape[axis + 1 :]
  return scores.reshape(*before, -1, _GROUP, *after)


def _of_queries(x: jax.Array, axis: int) -> jax.Array:
  """[Q, M] of [M, Q] where the axis is 0, and the other way round."""
  return x if axis else x.T
