"""What a run will be, in a few lines, before it starts."""

from collections.abc import Callable, Iterator

import jax
import numpy as np

from dualenc_jax.data.batches import Batches
from dualenc_jax.errors import UserError
from dualenc_jax.losses import duplicates, query_blocks
from dualenc_jax.losses.blocks import Block
from dualenc_jax.run import plan as plan_lib
from dualenc_jax.run.experiment import Experiment


def describe(experiment: Experiment, plan: plan_lib.Plan) -> Iterator[str]:
  """Lines on devices, parameters, batch and negatives."""
  mesh = experiment.partitioner.mesh
  devices = mesh.devices.flatten()
  yield (
      f'Devices: {devices.size} {devices[0].device_kind} on'
      f' {jax.process_count()} host(s), mesh data {mesh.shape["data"]} x model'
      f' {mesh.shape["model"]}.'
  )
  yield (
      f'Parameters: {plan_lib.count_params(plan):,} in'
      f' {len(plan_lib.param_paths(plan))} arrays.'
  )
  tokenizer = experiment.tokenizer
  yield (
      f'Global batch: {experiment.batch_size} pairs, query'
      f' {tokenizer.query_length} and passage {tokenizer.passage_length}'
      f' tokens, {experiment.steps} steps.'
  )
  yield f'Loss: {type(experiment.loss).__name__}.'
  if query_blocks(experiment.loss):
    size = experiment.batch_size, experiment.num_negatives
    counts = _negatives(experiment, lambda block: block.size(*size))
    parts = ', '.join(f'{count:,} {name}' for name, count in counts.items())
    less = ', less duplicates' if experiment.similarity.mask_duplicates else ''
    yield f'Negatives per query: {sum(counts.values()):,} ({parts}){less}.'


def of_data(
    experiment: Experiment, batches: Batches, step: int
) -> Iterator[str]:
  """Lines on the batches from `step` on: layout, and negatives left.

  Raises:
    UserError: no query of these batches has any negative.
  """
  yield layout(batches, step)
  yield from negatives_left(experiment, batches, step)


def layout(batches: Batches, step: int) -> str:
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


def negatives_left(
    experiment: Experiment, batches: Batches, step: int
) -> Iterator[str]:
  """A line on the negatives per query of the batches from `step` on.

  It is exact for these: ten of them, or fewer of more than 100,000 pairs.
  Nothing for a loss that does not say which blocks it uses.

  Raises:
    UserError: no query of these batches has any negative.
  """
  if not query_blocks(experiment.loss):
    return
  steps = range(step, step + max(1, min(10, 1_000_000 // batches.batch_size)))
  texts = [
      duplicates.Fingerprints(**batches.picker.fingerprints(s)) for s in steps
  ]
  mask = experiment.similarity.mask_duplicates
  counts = _negatives(
      experiment,
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


def _negatives(
    experiment: Experiment, count: Callable[[Block], float]
) -> dict[str, float]:
  """Negatives of a query by name."""
  counts = {}
  for block in query_blocks(experiment.loss):
    if block.size(experiment.batch_size, experiment.num_negatives):
      counts[block.name] = counts.get(block.name, 0) + count(block)
  return counts
