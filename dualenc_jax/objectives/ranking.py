"""Training of a cross-encoder: lists of a positive and hard negatives."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax import losses
from dualenc_jax.data import Layout, Packed
from dualenc_jax.data.text.template import Template, TokenTemplate
from dualenc_jax.losses import lists
from dualenc_jax.models import CrossEncoder, describe, model_params
from dualenc_jax.objectives import encoding
from dualenc_jax.objectives.objective import Key, Result, Run
from dualenc_jax.objectives.pairs import PairObjective
from dualenc_jax.utils.errors import expect, UserError


@dataclasses.dataclass(frozen=True)
class Ranking(PairObjective):
  """A loss over the scores of a query's passage and its hard negatives.

  The template makes one text of a query and a passage; a micro-batch has
  `micro_batch_size` lists.
  """

  model: CrossEncoder
  loss: lists.ListLoss
  template: Template = Template()
  num_negatives: int = 0
  num_others: int = 0
  micro_batch_size: int | None = None
  layout: Layout = Packed()
  outputs = 'scores'
  reads_scores = False

  def __post_init__(self):
    check_lists(self)
    expect(
        isinstance(self.template, Template), 'Ranking.template', self.template,
        'a Template, in gin @data.Template()',
    )

  def token_template(self, run: Run) -> TokenTemplate:
    return self.template.tokens(run.tokenizer)

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    scores = self.scores(params, batch, key)
    return losses.lists.evaluate(self.loss, lists_of(batch, scores))

  def scores(self, params: Any, batch: Any, key: Key = None) -> jax.Array:
    """Returns the scores of the lists of a batch, float32 [B, 1 + K]."""
    pairs, size = batch['pairs'], batch['numbers'].shape[0]
    candidates = pairs.num_cells * pairs.num_texts // size

    def score_cells(params, numbers, pairs):
      """Scores the lists of c cells: [c, P (1 + K)]."""

      def score_rows(tokens, lengths, numbers):
        scores = self.model.apply(
            {'params': model_params(params)}, tokens, lengths,
            None if key is None else numbers,
            rngs=None if key is None else {'dropout': key},
        )
        return scores[:, :, None]

      numbers = encoding.number_candidates(numbers, candidates)
      return encoding.encode_texts(score_rows, pairs, numbers)[:, :, 0]

    scores = encoding.map_cells(
        score_cells, self.model, params, batch['numbers'],
        self.micro_batch_size, pairs,
    )
    return scores.reshape(size, candidates)

  @property
  def facts(self) -> dict[str, Any]:
    template = dataclasses.asdict(self.template)
    return {**describe(self.model), 'template': template}


def check_lists(objective: Any) -> None:
  """Raises UserError unless an objective has a loss over lists, and lists."""
  objective.check_options()
  loss = objective.loss
  if isinstance(loss, type) or hasattr(loss, 'init'):
    name = (loss if isinstance(loss, type) else type(loss)).__name__
    raise UserError(
        f'{type(objective).__name__}.loss is {name}; expected a loss over'
        ' lists, as, in gin, LOSS = @losses.Pointwise().'
    )
  if not objective.num_negatives + objective.num_others:
    raise UserError(
        'A cross-encoder learns from negatives: set NUM_NEGATIVES to 1 or'
        ' more, or NUM_OTHERS for passages of other pairs of the batch.'
    )


def lists_of(batch: Any, scores: jax.Array) -> lists.Lists:
  """Returns the lists of a batch; no passage of a query is its negative."""
  equal = batch['negative_ids'] == batch['passage_ids'][:, None]
  same = jnp.all(equal, axis=-1)
  if 'positive_ids' in batch:
    several = batch['positive_ids'][:, None]
    same |= jnp.any(
        jnp.all(batch['negative_ids'][:, :, None] == several, axis=-1), axis=-1
    )
  valid = batch['negative_valid'] & ~same
  first = jnp.ones((len(scores), 1), bool)
  return lists.Lists(
      scores, jnp.concatenate([first, valid], axis=1), batch.get('weights')
  )
