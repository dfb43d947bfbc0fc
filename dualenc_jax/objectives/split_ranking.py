"""Training of a re-ranker that reads passages and queries apart."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax import losses
from dualenc_jax.data import Layout, Packed
from dualenc_jax.data.text.tokenizer import Vocabulary
from dualenc_jax.losses import lists
from dualenc_jax.models import model_params, SplitRanker
from dualenc_jax.objectives import encoding
from dualenc_jax.objectives.objective import Key, Result
from dualenc_jax.objectives.pairs import PairObjective
from dualenc_jax.objectives.ranking import check_lists, lists_of
from dualenc_jax.utils.errors import expect


@dataclasses.dataclass(frozen=True)
class SplitRanking(PairObjective):
  """A loss over the scores that a `SplitRanker` gives lists, as of `Ranking`.

  Encoder and decoder share one key of dropout and the number of a pair.
  """

  model: SplitRanker
  loss: lists.ListLoss
  num_negatives: int = 0
  num_others: int = 0
  micro_batch_size: int | None = None
  layout: Layout = Packed()
  outputs = 'scores'
  reads_scores = False

  def __post_init__(self):
    check_lists(self)
    expect(
        isinstance(self.model, SplitRanker), 'SplitRanking.model', self.model,
        'a SplitRanker: in gin, give architectures/split_ranker.gin after the'
        ' other architectures',
    )

  def check_vocabulary(self, vocabulary: Vocabulary) -> None:
    super().check_vocabulary(vocabulary)
    vocabulary.check_ends('A split re-ranker')

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    scores = self.scores(params, batch, key)
    return losses.lists.evaluate(self.loss, lists_of(batch, scores))

  def scores(self, params: Any, batch: Any, key: Key = None) -> jax.Array:
    """Returns the scores of the lists of a batch, float32 [B, 1 + K]."""
    queries, passages = batch['queries'], batch['passages']
    candidates = passages.num_texts // queries.num_texts

    def apply(params, *args, method):
      *args, numbers = args
      return self.model.apply(
          {'params': model_params(params)}, *args,
          None if key is None else numbers,
          rngs=None if key is None else {'dropout': key}, method=method,
      )

    def score_cells(params, numbers, queries, passages):
      """Scores the lists of c cells: [c, P, 1 + K]."""

      def encode_rows(*rows):
        return apply(params, *rows, method='encode_passage')

      of_passages = encoding.number_candidates(numbers, candidates)
      states = encoding.encode_texts(encode_rows, passages, of_passages)
      tokens = encoding.encode_texts(_unpack, queries, numbers)
      cells, pairs = numbers.shape
      scores = apply(
          params, tokens.reshape(cells * pairs, -1),
          states.reshape(cells * pairs, candidates, -1),
          of_passages.reshape(cells * pairs, candidates), method='score',
      )
      return scores.reshape(cells, pairs, candidates)

    scores = encoding.map_cells(
        score_cells, self.model, params, batch['numbers'],
        self.micro_batch_size, queries, passages,
    )
    return scores.reshape(-1, candidates)


def _unpack(
    tokens: jax.Array, lengths: jax.Array, numbers: jax.Array
) -> jax.Array:
  """Returns the tokens of each text of rows, padded: [R, L] -> [R, S, L]."""
  del numbers
  length = tokens.shape[1]
  place = jnp.arange(length, dtype=jnp.int32)[None, None]
  first = jnp.cumsum(lengths, axis=1, dtype=jnp.int32) - lengths
  place_in_row = jnp.minimum(first[:, :, None] + place, length - 1)
  own = jnp.take_along_axis(tokens[:, None], place_in_row, axis=2)
  return jnp.where(place < lengths[:, :, None], own, 0)
