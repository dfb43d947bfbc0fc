"""The primitive of every loss: log-partitions over blocks of candidates.

A block holds candidates that all anchors are scored against and is made of
negatives only: the positive's own row, duplicates and padding are masked out.
A anchors, C candidates of a block, D embedding dim.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Finite, so that an anchor without any negative has a gradient of zero and
# not NaN; exp() of it against any real score is exactly zero.
_MASKED = -1e30


class Block(NamedTuple):
  """Candidates, and which of them are no negative of which anchor.

  Attributes:
    name: what these negatives are called in the log.
    candidates: float32 [C, D].
    aligned: candidate i belongs to anchor i and is masked out for it.
    same_ids: pairs of (anchor ids [A, 2], candidate ids [C, 2]); wherever the
      two are equal in any of the pairs, the candidate is masked out.
    valid: bool [C], False at padding candidates; None if all are real.
  """

  name: str
  candidates: jax.Array
  aligned: bool
  same_ids: Sequence[tuple[jax.Array, jax.Array]] = ()
  valid: jax.Array | None = None

  @property
  def size(self) -> int:
    """How many negatives an anchor has here before any masking by value."""
    return self.candidates.shape[0] - int(self.aligned)


class Partition(NamedTuple):
  """Statistics of the negatives' scores of each anchor, all float32 [A].

  Attributes:
    lse: log of the sum of exp(score).
    total: sum of the scores.
    count: number of negatives.
    maximum: largest score.
  """

  lse: jax.Array
  total: jax.Array
  count: jax.Array
  maximum: jax.Array


def similarities(anchors: jax.Array, candidates: jax.Array) -> jax.Array:
  """Dot products [A, D] x [C, D] -> float32 [A, C], at highest precision.

  At temperature 0.01 a bf16 cosine is off by about 0.4 logit.
  """
  return jnp.einsum(
      'ad,cd->ac',
      anchors.astype(jnp.float32),
      candidates.astype(jnp.float32),
      precision='highest',
  )


def _negative_mask(block: Block, num_anchors: int) -> jax.Array:
  """bool [A, C], True where the candidate is a negative of the anchor."""
  num_candidates = block.candidates.shape[0]
  mask = jnp.ones((num_anchors, num_candidates), bool)
  if block.aligned:
    mask &= ~jnp.eye(num_anchors, num_candidates, dtype=bool)
  for anchor_ids, candidate_ids in block.same_ids:
    same = anchor_ids[:, None, :] == candidate_ids[None, :, :]
    mask &= ~jnp.all(same, axis=-1)
  if block.valid is not None:
    mask &= block.valid[None, :]
  return mask


def block_partition(
    anchors: jax.Array, block: Block, temperature: jax.Array | float
) -> Partition:
  """Statistics of one block's negatives for each anchor, [A, D] -> [A]."""
  mask = _negative_mask(block, anchors.shape[0])
  scores = similarities(anchors, block.candidates) / temperature
  masked = jnp.where(mask, scores, _MASKED)
  return Partition(
      lse=jax.nn.logsumexp(masked, axis=1),
      total=jnp.sum(jnp.where(mask, scores, 0.0), axis=1),
      count=jnp.sum(mask, axis=1).astype(jnp.float32),
      maximum=jnp.max(masked, axis=1),
  )


def combine(partitions: Sequence[Partition]) -> Partition:
  """The partition over the union of blocks."""
  stacked = Partition(*(jnp.stack(leaves) for leaves in zip(*partitions)))
  return Partition(
      lse=jax.nn.logsumexp(stacked.lse, axis=0),
      total=jnp.sum(stacked.total, axis=0),
      count=jnp.sum(stacked.count, axis=0),
      maximum=jnp.max(stacked.maximum, axis=0),
  )
