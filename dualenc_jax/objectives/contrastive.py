"""Contrastive training of a dual encoder: batches, embeddings, their loss."""

from collections.abc import Iterator
import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from dualenc_jax import losses
from dualenc_jax.checkpoints.checkpoint_reader import TRAINED_DIMS
from dualenc_jax.data import Batches, Layout, Packed
from dualenc_jax.losses.loss import Embeddings
from dualenc_jax.models import DualEncoder
from dualenc_jax.objectives import cells, collapse, from_pairs
from dualenc_jax.objectives.objective import Key, Result, Run
from dualenc_jax.objectives.of_towers import OfTowers
from dualenc_jax.utils.errors import expect, UserError

Batch = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Contrastive(OfTowers):
  """A loss over the embeddings of pairs and their hard negatives."""

  model: DualEncoder
  loss: losses.Loss
  similarity: losses.Similarity = losses.Similarity()
  num_negatives: int = 0
  micro_batch_size: int | None = None
  layout: Layout = Packed()

  def __post_init__(self):
    losses.check('Contrastive.loss', self.loss)
    expect(
        isinstance(self.similarity, losses.Similarity),
        'Contrastive.similarity', self.similarity,
        'a Similarity, in gin @losses.Similarity()',
    )
    self.check_feeding()

  def loss_params(self) -> dict[str, Any]:
    return losses.init(self.loss, self.similarity)

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    embeddings = embed(self.model, params, batch, key, self.micro_batch_size)
    value, metrics = self.value(params.get('loss', {}), embeddings)
    return value, {
        **collapse.watched(embeddings.query, embeddings.passage), **metrics
    }

  def value(self, params: Any, embeddings: Embeddings) -> Result:
    """The loss, with its own parameters, of an embedded batch."""
    return losses.evaluate(self.loss, self.similarity, params, embeddings)

  def describe(self, run: Run) -> Iterator[str]:
    yield from super().describe(run)
    yield f'Loss: {type(self.loss).__name__}.'
    if dims := self._trained_dims:
      yield f'Trained dims: {", ".join(map(str, dims))}.'

  def describe_batches(self, run: Run, step: int) -> Iterator[str]:
    columns = from_pairs.first_columns(run.batches, step)
    losses.validate_columns(self.loss, columns)
    if self.similarity.mask_duplicates and not self.num_negatives:
      check_distinct(run.batches, step)
    yield from super().describe_batches(run, step)

  @property
  def facts(self) -> dict[str, Any]:
    dims = self._trained_dims
    return {**super().facts, **({TRAINED_DIMS: dims} if dims else {})}

  @property
  def _trained_dims(self) -> tuple[int, ...]:
    return self.loss.trained_dims(self.model.projection.features)

  def chance(self, run: Run) -> float | None:
    return self.loss.chance(run.batch_size, self.num_negatives)


def check_distinct(batches: Batches, step: int) -> None:
  """Raises UserError if no query has a negative in the batches from `step` on.

  Pairs that share a query or a passage are duplicates, which are masked out.
  """
  for number in range(step, step + 3):
    ids = batches.arrays(batches.indices(number))
    if all(
        len(np.unique(ids[name], axis=0)) > 1
        for name in ('query_ids', 'passage_ids')
    ):
      return
  raise UserError(
      'All pairs of the first batches have the same query or passage: their'
      ' negatives are masked out as duplicates, so that the loss is always 0.'
      ' Give pairs with different texts.'
  )


def embed(
    model: DualEncoder, params: Any, batch: Batch,
    dropout_key: jax.Array | None = None, micro_batch_size: int | None = None,
) -> Embeddings:
  """Encodes a batch with both towers.

  The batch has queries and passages, `TextRows` of C cells of P pairs, B = C P,
  with K hard negatives where a cell has P (1 + K) passages; for its ids and
  other columns see `Embeddings`. Dropout masks of a text depend on the key and
  the number of its pair alone, which without `numbers` is its place in the
  batch; without a key there is no dropout.
  """
  queries, passages = batch['queries'], batch['passages']
  candidates = passages.num_texts // queries.num_texts
  keys: Any = [None, None]
  if dropout_key is not None:
    keys = jax.random.split(dropout_key)

  encode = functools.partial(cells.encode_side, model)

  def encode_cells(params, numbers, queries, passages):
    """Numbers [c, P] of pairs, their texts -> [c, P, D], [c, P (1 + K), D]."""
    own = cells.numbers_of_candidates(numbers, candidates)
    return (
        encode(params, 'encode_query', queries, numbers, keys[0]),
        encode(params, 'encode_passage', passages, own, keys[1]),
    )

  query, passage = cells.map_cells(
      encode_cells, model, params, cells.numbers_of(batch), micro_batch_size,
      queries, passages,
  )
  features = query.shape[-1]
  passage = passage.reshape(-1, candidates, features)
  return Embeddings.of_batch(batch, query.reshape(-1, features), passage)
