"""How many negatives a query has, and how its texts lie, in a few lines."""

from collections.abc import Callable, Iterator

import numpy as np

from dualenc_jax import losses
from dualenc_jax.data.batches import Batches
from dualenc_jax.errors import UserError
from dualenc_jax.losses import duplicates
from dualenc_jax.losses.blocks import Block


def describe(
    loss: losses.Loss,
    similarity: losses.Similarity,
    batch_size: int,
    num_negatives: int,
) -> Iterator[str]:
  """A line on the negatives per query, as many as the batch has places for."""
  size = batch_size, num_negatives
  counts = _count(loss, size, lambda block: block.size(*size))
  if counts:
    parts = ', '.join(f'{count:,} {name}' for name, count in counts.items())
    less = ', less duplicates' if similarity.mask_duplicates else ''
    yield f'Negatives per query: {sum(counts.values()):,} ({parts}){less}.'


def describe_layout(batches: Batches, step: int) -> str:
  """A line on rows and padding of the batch of a step."""
  batch = batches(step)
  real = total = 0
  rows = {}
  for name in ('queries', 'passages'):
    groups = batch[name].groups
    real += sum(int(group.lengths.sum()) for group in groups)
    total += sum(group.tokens.size for group in groups)
    counts = [f'{g.tokens.shape[1]} x {g.tokens.shape[2]}' for g in groups]
    rows[name] = ' + '.join(counts)
  cells = f' in each of {batches.cells} cells' if batches.cells > 1 else ''
  return (
      f'Layout: {type(batches.layout).__name__}, rows x tokens{cells}: queries'
      f' {rows["queries"]}, passages {rows["passages"]};'
      f' {real / total:.0%} of the tokens are real.'
  )


def describe_left(
    loss: losses.Loss,
    similarity: losses.Similarity,
    batches: Batches,
    step: int,
) -> Iterator[str]:
  """A line on the negatives per query of the batches from `step` on.

  It is exact for these: ten of them, or fewer of more than 100,000 pairs.
  Nothing for a loss that does not say which blocks it has.

  Raises:
    UserError: no query of these batches has any negative.
  """
  if not losses.query_blocks(loss):
    return
  steps = range(step, step + max(1, min(10, 1_000_000 // batches.batch_size)))
  texts = [
      duplicates.Fingerprints(**batches.picker.fingerprints(s)) for s in steps
  ]
  mask = similarity.mask_duplicates
  counts = _count(
      loss,
      (batches.batch_size, batches.num_negatives),
      lambda block: np.mean(
          [duplicates.mean_negatives(block, text, mask) for text in texts]
      ),
  )
  seen = f'in {len(steps)} batch{"es" * (len(steps) > 1)}'
  if not sum(counts.values()):
    raise UserError(
        f'All negatives of all queries {seen} are masked out as duplicates, so'
        ' that the loss is 0 whatever the model does. Expected pairs with'
        ' different texts; look at the queries and passages of the task.'
    )
  parts = ', '.join(f'{count:,.1f} {name}' for name, count in counts.items())
  yield (
      f'{"After duplicates" if mask else "Real ones"}, {seen}:'
      f' {sum(counts.values()):,.1f} negatives per query ({parts}).'
  )


def _count(
    loss: losses.Loss, size: tuple[int, int], count: Callable[[Block], float]
) -> dict[str, float]:
  """Negatives of a query by name, of a batch of this size (B, K)."""
  counts = {}
  for block in losses.query_blocks(loss):
    if block.size(*size):
      counts[block.name] = counts.get(block.name, 0) + count(block)
  return counts
