"""Blocks of negatives by name: which tower is scored against which."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dualenc_jax.errors import UserError
from dualenc_jax.losses import log_partition as log_partition_lib
from dualenc_jax.losses.embeddings import Embeddings
from dualenc_jax.losses.score_matrix import Form
from dualenc_jax.losses.score_matrix import Partition
from dualenc_jax.losses.score_matrix import Side


class Block(NamedTuple):
  """The negatives of one tower's anchors among one tower's candidates.

  Attributes:
    anchors: 'query' or 'passage'.
    candidates: 'query', 'passage' or 'negatives', the hard negatives.
  """

  anchors: str
  candidates: str

  @property
  def name(self) -> str:
    """What such negatives are called."""
    if self.candidates == 'negatives':
      return 'hard'
    return 'same-tower' if self.anchors == self.candidates else 'in-batch'

  def size(self, batch_size: int, num_negatives: int) -> int:
    """How many an anchor has here before any masking by value."""
    if self.candidates == 'negatives':
      return batch_size * num_negatives
    return batch_size - 1


QUERY_PASSAGES = Block('query', 'passage')
QUERY_QUERIES = Block('query', 'query')
QUERY_HARD = Block('query', 'negatives')
PASSAGE_QUERIES = Block('passage', 'query')
PASSAGE_PASSAGES = Block('passage', 'passage')
PASSAGE_HARD = Block('passage', 'negatives')

# The rows of a matrix stay where they are and its columns travel, so the hard
# negatives, of which there are most, come first.
_ORDER = ('negatives', 'query', 'passage')


def partitions(
    batch: Embeddings,
    blocks: Iterable[Block],
    temperature: jax.Array | float,
    mask_duplicates: bool,
    totals: bool = False,
    **options: Any,
) -> Mapping[Block, Partition]:
  """Log-partitions of blocks; two directions of one matrix are computed once.

  Args:
    batch: the embeddings of B pairs with K hard negatives.
    blocks: those of hard negatives are left out where the batch has none.
    temperature: divides the cosines.
    mask_duplicates: mask out what the fingerprints tell to be no negative.
    totals: the sums of the scores are wanted.
    **options: `implementation` and `tile` of `log_partition`.

  Returns:
    {block: statistics float32 [B] of its anchors}.

  Raises:
    UserError: `mask_duplicates` and there are no fingerprints.
  """
  blocks = {b for b in blocks if getattr(batch, b.candidates) is not None}
  result = {}
  for pair in sorted({tuple(sorted(b, key=_ORDER.index)) for b in blocks}):
    by_row, by_column = Block(*pair), Block(*reversed(pair))
    symmetric = by_row == by_column
    rows, columns = _sides(batch, pair, mask_duplicates)
    form = Form(
        symmetric=symmetric,
        aligned='negatives' not in pair,
        rows=by_row in blocks,
        columns=by_column in blocks,
        totals=totals,
    )
    of_rows, of_columns = log_partition_lib.log_partition(
        form, rows, None if symmetric else columns, temperature, **options
    )
    result.update({by_row: of_rows, by_column: of_columns} if not symmetric
                  else {by_row: of_rows})
  return {block: result[block] for block in blocks}


def _sides(
    batch: Embeddings, pair: tuple[str, str], mask_duplicates: bool
) -> tuple[Side, Side]:
  """Rows and columns of the matrix of two towers, with its duplicate rule."""
  # Of two whole pairs it is enough that either text is the same; within a
  # tower the text itself must be; a hard negative must be the passage.
  known = {
      ('query', 'passage'): (('query', 'passage'), ('query', 'passage')),
      ('query', 'query'): (('query',), ('query',)),
      ('passage', 'passage'): (('passage',), ('passage',)),
      ('negatives', 'query'): (('negatives',), ('passage',)),
      ('negatives', 'passage'): (('negatives',), ('passage',)),
  }[pair]
  return tuple(
      _side(batch, tower, ids if mask_duplicates else ())
      for tower, ids in zip(pair, known)
  )


def _side(batch: Embeddings, tower: str, ids: Iterable[str]) -> Side:
  vectors, valid = getattr(batch, tower), batch.valid
  if tower == 'negatives':
    valid = _negatives_valid(batch)
    vectors = vectors.reshape(-1, vectors.shape[-1])
  return Side(vectors, tuple(_ids(batch, name) for name in ids), valid)


def _negatives_valid(batch: Embeddings) -> jax.Array | None:
  valid = batch.negative_valid
  if batch.valid is not None:
    real = jnp.broadcast_to(batch.valid[:, None], batch.negatives.shape[:2])
    valid = real if valid is None else valid & real
  return None if valid is None else valid.reshape(-1)


def _ids(batch: Embeddings, tower: str) -> jax.Array:
  field = {'negatives': 'negative_ids'}.get(tower, f'{tower}_ids')
  ids = getattr(batch, field)
  if ids is None:
    raise UserError(
        f'mask_duplicates is on but the batch has no {field}. Give the'
        ' fingerprints of the tokens, or set mask_duplicates = False.'
    )
  return ids.reshape(-1, 2)
