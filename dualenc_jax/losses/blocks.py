"""Blocks of negatives by name, and the matrices of scores they come from."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax

from dualenc_jax.errors import UserError
from dualenc_jax.losses import log_partition
from dualenc_jax.losses.embeddings import Embeddings
from dualenc_jax.losses.score_matrix import Matrix, Partition, Tags
from dualenc_jax.losses.similarity import Similarity


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
    similarity: Similarity,
    totals: bool = False,
) -> Mapping[Block, Partition]:
  """Log-partitions of blocks; two directions of one matrix are computed once.

  Args:
    batch: the embeddings of B pairs with K hard negatives.
    blocks: those of hard negatives are left out where the batch has none.
    similarity: how they are computed, its temperature as trained so far.
    totals: the sums of the scores are wanted.

  Returns:
    {block: statistics float32 [B] of its anchors}.

  Raises:
    UserError: duplicates are to be masked and the batch has no fingerprints.
  """
  if not batch.num_negatives:
    blocks = [b for b in blocks if b.candidates != 'negatives']
  blocks = set(blocks)
  # In this order fewer gradients wait for the next matrix.
  pairs = sorted(
      {tuple(sorted(block, key=_ORDER.index)) for block in blocks},
      key=lambda pair: [_ORDER.index(tower) for tower in pair],
      reverse=True,
  )
  matrices = [
      Matrix(
          *pair,
          aligned='negatives' not in pair,
          of_rows=pair in blocks,
          of_columns=pair[::-1] in blocks and pair[0] != pair[1],
      )
      for pair in pairs
  ]
  names = {name for pair in pairs for name in pair}
  found = log_partition.log_partitions(
      matrices,
      {name: _vectors(batch, name) for name in names},
      [_tags(batch, pair, similarity.mask_duplicates) for pair in pairs],
      similarity.temperature,
      totals,
      similarity.implementation,
      similarity.tile,
  )
  result = {}
  for pair, (of_rows, of_columns) in zip(pairs, found, strict=True):
    result[Block(*pair[::-1])] = of_columns
    result[Block(*pair)] = of_rows
  return {block: result[block] for block in blocks}


def _vectors(batch: Embeddings, tower: str) -> jax.Array:
  vectors = getattr(batch, tower)
  return vectors.reshape(-1, vectors.shape[-1])


def _tags(
    batch: Embeddings, pair: tuple[str, str], mask_duplicates: bool
) -> tuple[Tags, Tags]:
  """Tags of rows and columns of the matrix of two towers."""
  # What is masked out: another pair that shares the query or the passage; in
  # the anchor's own tower the same text; a hard negative that is the passage.
  if pair == ('query', 'passage'):
    ids = pair, pair
  elif 'negatives' in pair:
    ids = ('negative',), ('passage',)
  else:
    ids = pair[:1], pair[:1]
  valid = {}
  if batch.negative_valid is not None:
    valid['negatives'] = batch.negative_valid.reshape(-1)
  return tuple(
      Tags(
          tuple(_ids(batch, name) for name in names if mask_duplicates),
          valid.get(tower),
      )
      for tower, names in zip(pair, ids, strict=True)
  )


def _ids(batch: Embeddings, text: str) -> tuple[jax.Array, jax.Array]:
  ids = getattr(batch, f'{text}_ids')
  if ids is None:
    raise UserError(
        f'mask_duplicates is on but the batch has no {text}_ids. Give the'
        ' fingerprints of the tokens, or set mask_duplicates = False.'
    )
  # Word by word: XLA on the CPU compares those eight times as fast.
  return ids[..., 0].reshape(-1), ids[..., 1].reshape(-1)
