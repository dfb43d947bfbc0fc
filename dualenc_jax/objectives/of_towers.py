"""The base class of objectives of a dual encoder."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.models import describe, DualEncoder, model_params
from dualenc_jax.models.dual_encoder import describe_towers
from dualenc_jax.objectives import cells
from dualenc_jax.objectives.from_pairs import FromPairs
from dualenc_jax.objectives.objective import Run
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.retrieval.encoding.embedder import Embedder


class OfTowers(FromPairs):
  """An objective over the towers of a dual encoder.

  Parameters are the model's, and those of the loss under 'loss'.
  """

  model: DualEncoder

  def init(self, key: jax.Array) -> Any:
    tokens = jnp.ones((1, 2), jnp.int32)
    params = self.model.init(key, tokens, tokens)['params']
    own = self.loss_params()
    return {**params, 'loss': own} if own else params

  def loss_params(self) -> Mapping[str, Any]:
    similarity = getattr(self, 'similarity', None)
    return similarity.init() if similarity else {}

  def describe(self, run: Run) -> Iterator[str]:
    lengths = run.tokenizer.query_length, run.tokenizer.passage_length
    yield (
        f'Global batch: {run.batch_size} pairs, query {lengths[0]} and passage'
        f' {lengths[1]} tokens.'
    )
    yield from describe_towers(self.model, *lengths)

  @property
  def facts(self) -> dict[str, Any]:
    return describe(self.model)

  def embedder(
      self, params: Any, partitioner: Partitioner, batch_size: int = 256
  ) -> Embedder:
    """An embedder for parameters on the shardings of `params`.

    A device encodes at most `batch_size` rows at once.
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, model_params(params))
    return Embedder(self.model, partitioner, shardings, batch_size)

  def encoded_queries(
      self, params: Any, batch: Mapping[str, Any], key: jax.Array | None
  ) -> jax.Array:
    """The batch's queries, float32 [B, D], a micro-batch at a time."""

    def encode_cells(params, numbers, queries):
      return cells.encode_side(
          self.model, params, 'encode_query', queries, numbers, key
      )

    return self.of_queries(encode_cells, params, batch)

  def of_queries(self, encode_cells: Any, params: Any, batch: Any) -> Any:
    """(params, numbers [c, P], queries) -> arrays [c, P, ...]: [B, ...]."""
    found = cells.map_cells(
        encode_cells, self.model, params, cells.numbers_of(batch),
        self.micro_batch_size, batch['queries'],
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)
