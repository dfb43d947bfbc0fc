"""Training of a generator: T5 reads a passage and writes its query."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.checkpoints.checkpoint_reader import GENERATOR
from dualenc_jax.data import Batches, Layout, Packed, Vocabulary
from dualenc_jax.models import describe, model_params, Seq2Seq
from dualenc_jax.models.layers import Segments
from dualenc_jax.models.seq2seq import token_losses
from dualenc_jax.objectives.encoding import map_cells
from dualenc_jax.objectives.objective import Key, Result, Run
from dualenc_jax.objectives.pairs import PairObjective
from dualenc_jax.utils.errors import UserError


@dataclasses.dataclass(frozen=True)
class Generation(PairObjective):
  """Cross-entropy of queries given their passages, as docT5query is trained.

  The passage is read, and the query written, with EOS as its last token
  (Nogueira and Lin 2019). The loss is a mean over all target tokens of the
  global batch, so neither rows nor micro-batches nor devices change it. Logits
  [R, T, V] exist for a micro-batch at a time; `z_loss` keeps them near 0.
  """

  model: Seq2Seq
  z_loss: float = 1e-4
  micro_batch_size: int | None = None
  layout: Layout = Packed()
  outputs = 'queries'
  num_negatives = 0
  joint_rows = True
  reads_scores = False

  def __post_init__(self):
    self.check_options()
    if not isinstance(self.model, Seq2Seq):
      raise UserError(
          f'Generation.model is a {type(self.model).__name__}; expected an'
          ' encoder-decoder. In gin, give architectures/encoder_decoder.gin'
          ' after the other architectures.'
      )

  def check_vocabulary(self, vocabulary: Vocabulary) -> None:
    super().check_vocabulary(vocabulary)
    vocabulary.check_ends('A generator')

  def batches(self, run: Run) -> Batches:
    for cache in run.caches:
      if not cache.query_tokens.lengths.all():
        raise UserError(
            f"Split train of {cache.header['task']} has passages without"
            ' queries, which a generator needs. Train it on a task of pairs.'
        )
    return super().batches(run)

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    sources = batch['passages']
    cells, size = sources.num_cells, batch['numbers'].shape[0]
    weights = batch.get('weights', jnp.ones(size, jnp.float32))

    def sum_cells(params, numbers, sources, targets, weights):
      """Maps numbers [c, P], rows and weights [c, P] to [c, 3]."""
      count, rows, _ = targets.lengths.shape
      texts = targets.texts.reshape(count, -1)
      of_segments = (
          jnp.take_along_axis(x, texts, axis=1, mode='clip')
          for x in (numbers, weights)
      )
      sums = self._sum_rows(
          {'params': model_params(params)},
          *(_flat(x) for x in (sources.tokens, targets.tokens)),
          *(_flat(x) for x in (sources.lengths, targets.lengths)),
          *(x.reshape(count * rows, -1) for x in of_segments), key,
      )
      return jnp.sum(sums.reshape(count, rows, -1), axis=1)

    sums = map_cells(
        sum_cells, self.model, params, batch['numbers'], self.micro_batch_size,
        sources, batch['queries'], weights.reshape(cells, -1),
    )
    loss, correct, tokens = jnp.sum(sums, axis=0)
    # The loss is 0 if all pairs weigh nothing.
    tokens = jnp.maximum(tokens, 1e-9)
    return loss / tokens, {
        'loss': loss / tokens,
        'token_accuracy': correct / tokens,
        'tokens': tokens,
    }

  def _sum_rows(
      self, variables, sources, targets, source_lengths, target_lengths,
      numbers, weights, key,
  ):
    """Returns sums over the tokens: losses, correct ones, weights: [R, 3]."""
    logits = self.model.apply(
        variables, sources, targets, source_lengths, target_lengths,
        None if key is None else numbers,
        rngs=None if key is None else {'dropout': key},
    )
    slots = Segments.from_lengths(targets.shape[1], target_lengths).slots
    # Tokens beyond the last text weigh nothing.
    weights = jnp.pad(weights, ((0, 0), (0, 1)))
    weights = jnp.take_along_axis(weights, slots, axis=1)
    losses = token_losses(logits, targets, self.z_loss)
    correct = jnp.argmax(logits, axis=-1) == targets
    counted = losses, correct.astype(jnp.float32), 1.0
    return jnp.stack([jnp.sum(x * weights, axis=1) for x in counted], axis=1)

  @property
  def facts(self) -> dict[str, Any]:
    return {**describe(self.model), GENERATOR: True}


def _flat(x: jax.Array) -> jax.Array:
  """Joins the rows of all cells: [c, R, ...] -> [c R, ...]."""
  return x.reshape(-1, x.shape[-1])
