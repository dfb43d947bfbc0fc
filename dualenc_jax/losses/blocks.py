"""Blocks of negatives: their log-partitions, and counts of negatives."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from dualenc_jax.data.batches import Batches
from dualenc_jax.losses.loss import Embeddings, Loss, positive_similarity
from dualenc_jax.losses.score_matrix import Matrix, Partition, Tags
from dualenc_jax.losses.similarity import log_partitions, Similarity
from dualenc_jax.utils.errors import UserError


class Block(NamedTuple):
  """The negatives of one tower's anchors among one tower's candidates.

  `anchors` is 'query' or 'passage'; `candidates` may also be 'negatives', the
  hard negatives.
  """

  anchors: str
  candidates: str

  @property
  def name(self) -> str:
    """The kind of these negatives: 'hard', 'same-tower' or 'in-batch'."""
    if self.candidates == 'negatives':
      return 'hard'
    return 'same-tower' if self.anchors == self.candidates else 'in-batch'

  def size(self, batch_size: int, num_negatives: int) -> int:
    """The negatives of an anchor, before any are masked out."""
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
    batch: Embeddings, blocks: Iterable[Block], similarity: Similarity,
    totals: bool = False,
) -> Mapping[Block, Partition]:
  """Log-partitions [B] of blocks; both ways of a matrix share its scores."""
  if not batch.num_negatives:
    blocks = [b for b in blocks if b.candidates != 'negatives']
  blocks = set(blocks)
  # In this order fewer gradients wait for the next matrix.
  pairs: list[Any] = sorted(
      {tuple(sorted(block, key=_ORDER.index)) for block in blocks},
      key=lambda pair: [_ORDER.index(tower) for tower in pair], reverse=True,
  )
  matrices = [
      Matrix(
          pair[0], pair[1], aligned='negatives' not in pair,
          of_rows=pair in blocks,
          of_columns=pair[::-1] in blocks and pair[0] != pair[1],
      ) for pair in pairs
  ]
  found = log_partitions(
      matrices,
      {name: _vectors(batch, name) for pair in pairs for name in pair},
      [_tags(batch, pair, similarity) for pair in pairs],
      similarity.temperature, totals, similarity.implementation,
      similarity.tile,
  )
  result: dict[Block, Any] = {}
  for pair, (of_rows, of_columns) in zip(pairs, found, strict=True):
    result[Block(*pair[::-1])] = of_columns
    result[Block(*pair)] = of_rows
  return {block: result[block] for block in blocks}


def _vectors(batch: Embeddings, tower: str) -> jax.Array:
  vectors = getattr(batch, tower)
  return vectors.reshape(-1, vectors.shape[-1])


def _tags(
    batch: Embeddings, pair: tuple[str, str], similarity: Similarity
) -> tuple[Tags, Tags]:
  """Tags of rows and columns of the matrix of two towers."""
  # What is masked out: another pair that shares the query or the passage; in
  # the anchor's own tower the same text; a hard negative that is the passage.
  if pair == ('query', 'passage'):
    ids: Any = pair, pair
  elif 'negatives' in pair:
    ids = ('negative',), ('passage',)
  else:
    ids = pair[:1], pair[:1]
  valid, texts, positives, limits = {}, {}, {}, {}
  if batch.negative_valid is not None:
    valid['negatives'] = batch.negative_valid.reshape(-1)
  if similarity.mask_duplicates and batch.positive_ids is not None:
    several = batch.positive_ids[..., 0], batch.positive_ids[..., 1]
    positives = {'query': several, 'passage': several}
    texts = {
        tower: _ids(batch, name)
        for tower, name in (('passage', 'passage'), ('negatives', 'negative'))
        if tower in pair
    }
  if similarity.false_negative_margin is not None:
    cosines = jax.lax.stop_gradient(positive_similarity(batch))
    limit = cosines + similarity.false_negative_margin
    limit /= jax.lax.stop_gradient(similarity.temperature)
    limits = {'query': limit, 'passage': limit}
  masked = similarity.mask_duplicates
  rows, columns = (
      Tags(
          tuple(_ids(batch, name) for name in names if masked),
          valid.get(tower), texts.get(tower), positives.get(tower),
          limits.get(tower),
      )
      for tower, names in zip(pair, ids, strict=True)
  )
  return rows, columns


def _ids(batch: Embeddings, text: str) -> tuple[jax.Array, jax.Array]:
  ids = getattr(batch, f'{text}_ids')
  if ids is None:
    raise UserError(
        f'mask_duplicates is on but the batch has no {text}_ids. Give the'
        ' fingerprints of the tokens, or set mask_duplicates = False.'
    )
  # Word by word: XLA on the CPU compares those eight times as fast.
  return ids[..., 0].reshape(-1), ids[..., 1].reshape(-1)


def query_blocks(loss: Loss) -> tuple[Block, ...]:
  """The negatives of the queries; () if the loss does not define them."""
  return getattr(loss, 'query_blocks', tuple)()


class Fingerprints(NamedTuple):
  """The texts of B pairs as uint64: [B], hard negatives [B, K].

  `positives` [B, P] are other passages of a query, or its own again.
  """

  query: np.ndarray
  passage: np.ndarray
  negatives: np.ndarray
  negative_valid: np.ndarray
  positives: np.ndarray


def mean_negatives(
    block: Block, texts: Fingerprints, mask_duplicates: bool
) -> float:
  """The mean number of an anchor's negatives in `block`; no array is B x B.

  Between passages the other passages of a query count, although the loss masks
  them out.
  """
  size = len(texts.query)
  anchors = getattr(texts, block.anchors)
  if block.candidates == 'negatives':
    hard = texts.negatives[texts.negative_valid]
    if not mask_duplicates:
      return float(len(hard))
    same = _occurrences(_several(texts), hard)
    same[:, 1:][_stands_in(texts)] = 0
    return float(np.mean(len(hard) - same.sum(axis=1)))
  if not mask_duplicates:
    return float(size - 1)
  if block.anchors == block.candidates:
    return float(np.mean(size - _occurrences(anchors, anchors)))
  # Pairs with the same query or the same passage: all with either, less those
  # with both, which were counted twice.
  query, passage = (
      np.unique(x, return_inverse=True)[1] for x in (texts.query, texts.passage)
  )
  both = query * size + passage
  same = (
      _occurrences(texts.query, texts.query)
      + _occurrences(texts.passage, texts.passage) - _occurrences(both, both)
  )
  if texts.positives.shape[1]:
    # Then other passages of the query that other queries have, too.
    number = np.unique(_several(texts), return_inverse=True)[1]
    number = number.reshape(size, -1)
    own, others = number[:, 0], number[:, 1:]
    span = number.max() + 1
    elsewhere = _occurrences(others, own) - _occurrences(
        query[:, None] * span + others, query * span + own
    )
    elsewhere[_stands_in(texts)] = 0
    same = same + elsewhere.sum(axis=1)
  return float(np.mean(size - same))


def _several(texts: Fingerprints) -> np.ndarray:
  """Each query's passage and its others, [B, 1 + P]."""
  return np.concatenate([texts.passage[:, None], texts.positives], axis=1)


def _stands_in(texts: Fingerprints) -> np.ndarray:
  """Where the others are the own passage again: bool [B, P]."""
  return texts.positives == texts.passage[:, None]


def _occurrences(values: np.ndarray, among: np.ndarray) -> np.ndarray:
  """How often each value is found, int64 like `values`."""
  among = np.sort(among)
  first = np.searchsorted(among, values, side='left')
  return np.searchsorted(among, values, side='right') - first


def describe_negatives(
    loss: Loss, similarity: Similarity, batch_size: int, num_negatives: int
) -> Iterator[str]:
  """Yields a line on the negatives per query, before any are masked out."""
  size = batch_size, num_negatives
  counts = _count(loss, size, lambda block: block.size(*size))
  if counts:
    parts = ', '.join(f'{count:,} {name}' for name, count in counts.items())
    less = ', less duplicates' if similarity.mask_duplicates else ''
    yield f'Negatives per query: {sum(counts.values()):,} ({parts}){less}.'


def describe_left(
    loss: Loss, similarity: Similarity, batches: Batches, step: int
) -> Iterator[str]:
  """Yields a line on the negatives per query in the batches from `step` on.

  The mean is exact, over ten batches, or fewer of more than 100,000 pairs.
  Raises UserError where no query has a negative.
  """
  if not query_blocks(loss):
    return
  steps = range(step, step + max(1, min(10, 1_000_000 // batches.batch_size)))
  texts = [Fingerprints(**batches.picker.fingerprints(s)) for s in steps]
  mask = similarity.mask_duplicates
  counts = _count(
      loss, (batches.batch_size, batches.num_negatives),
      lambda b: float(np.mean([mean_negatives(b, t, mask) for t in texts])),
  )
  seen = f'in {len(steps)} batch{"es" * (len(steps) > 1)}'
  if not sum(counts.values()):
    raise UserError(
        f'All negatives of all queries {seen} are masked out as duplicates, so'
        ' the loss is always 0. Expected pairs with different texts: check the'
        ' queries and passages of the task.'
    )
  parts = ', '.join(f'{count:,.1f} {name}' for name, count in counts.items())
  yield (
      f'{"After duplicates" if mask else "Real ones"}, {seen}:'
      f' {sum(counts.values()):,.1f} negatives per query ({parts}).'
  )


def _count(
    loss: Loss, size: tuple[int, int], count: Callable[[Block], float]
) -> dict[str, float]:
  """Negatives of a query by name, of a batch of this size (B, K)."""
  counts: dict[str, float] = {}
  for block in query_blocks(loss):
    if block.size(*size):
      counts[block.name] = counts.get(block.name, 0) + count(block)
  return counts
