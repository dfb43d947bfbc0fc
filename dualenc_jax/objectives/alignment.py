"""Training of a query tower to find passages that another tower embeds."""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

import jax.numpy as jnp

from dualenc_jax import losses
from dualenc_jax.data import Layout, Packed
from dualenc_jax.losses import blocks
from dualenc_jax.losses.loss import Embeddings
from dualenc_jax.models import DualEncoder, model_params
from dualenc_jax.objectives import encoding
from dualenc_jax.objectives.frozen_passages import FrozenPassages
from dualenc_jax.objectives.objective import Key, Result, Run
from dualenc_jax.objectives.pairs import PairObjective


class _OverCorpus(losses.InBatchSoftmax):
  """The softmax of each query over one set of passages, that of all."""

  def query_blocks(self) -> tuple[blocks.Block, ...]:
    return (blocks.QUERY_HARD,)


@dataclasses.dataclass(frozen=True)
class Alignment(PairObjective):
  """Stage 1 of DAFT (Leonhardt et al. 2022): the query tower alone is trained.

  The mean over pairs (q, p) of

    log sum_{d in C(q)} exp s(q, d) - s(q, p),

  where C(q) is the whole corpus without other labelled passages of q. As the
  passage tower is frozen, without dropout, the corpus is encoded once, and the
  softmax is exact at every step: no negative is stale or left out.

  With `train_projection` the shared projection is trained, too, and the passage
  tower's pooled states are kept; the paper's algorithm 1 can be read either
  way. Without it an index of passages stays valid.
  """

  model: DualEncoder
  similarity: losses.Similarity = losses.Similarity()
  train_projection: bool = False
  whole_corpus: bool = True
  states_dir: str | None = None
  micro_batch_size: int | None = None
  layout: Layout = Packed()
  num_negatives = 0
  sides = ('queries',)
  needs_start = True

  def __post_init__(self):
    self.check_options()

  @property
  def frozen_passages(self) -> FrozenPassages:
    pooled = self.train_projection
    return FrozenPassages(
        self.model, self.whole_corpus, self.states_dir,
        'pool_passage' if pooled else 'encode_passage',
    )

  def loss_params(self) -> Mapping[str, Any]:
    return self.similarity.init()

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    query = encoding.embed_queries(
        self.model, params, batch, key, self.micro_batch_size
    )
    passages = batch['states']
    if self.train_projection:
      passages = self.model.apply(
          {'params': model_params(params)}, passages, method='project_passage'
      )
    size = len(query)

    def by_query(x):
      """Deals the rows of the corpus to the queries, as hard negatives."""
      return x.reshape(size, -1, *x.shape[1:])

    embeddings = Embeddings(
        query, jnp.take(passages, batch['targets'][:, 0], axis=0),
        by_query(passages), query_ids=batch['query_ids'],
        passage_ids=batch['passage_ids'],
        negative_ids=by_query(batch['state_ids']),
        negative_valid=by_query(batch['state_valid']),
        positive_ids=batch.get('positive_ids'),
        columns={n: batch[n] for n in ('weights',) if n in batch},
    )
    value, metrics = losses.evaluate(
        _OverCorpus(bidirectional=False), self.similarity,
        params.get('loss', {}), embeddings,
    )
    ranks = encoding.effective_ranks(query, embeddings.passage)
    return value, {**ranks, **metrics}

  def chance(self, run: Run) -> float | None:
    return math.log(len(run.batches.all_passages))
