"""What all objectives of a dual encoder have in common."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.inference.embedder import Embedder
from dualenc_jax.models import describe, DualEncoder, model_params
from dualenc_jax.models.cost import describe_tower
from dualenc_jax.objectives.from_pairs import encode_texts, FromPairs
from dualenc_jax.objectives.objective import Run
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.text.text_rows import TextRows


class OfTowers(FromPairs):
  """Trains the towers of a dual encoder, which makes embeddings while it does.

  Attributes:
    model: the dual encoder.
  """

  model: DualEncoder

  def init(self, key: jax.Array) -> Any:
    tokens = jnp.ones((1, 2), jnp.int32)
    return self.model.init(key, tokens, tokens)['params']

  def describe(self, run: Run) -> Iterator[str]:
    yield (
        f'Global batch: {run.batch_size} pairs, query'
        f' {run.tokenizer.query_length} and passage'
        f' {run.tokenizer.passage_length} tokens.'
    )
    for side in ('query', 'passage'):
      tokens = getattr(run.tokenizer, f'{side}_length')
      yield describe_tower(self.model, side, tokens)

  @property
  def facts(self) -> dict[str, Any]:
    return describe(self.model)

  def embedder(
      self, params: Any, partitioner: Partitioner, batch_size: int
  ) -> Embedder:
    """Encodes with `model_params` of a train state's parameters.

    Args:
      params: abstract parameters with their shardings.
      partitioner: the mesh.
      batch_size: most rows that a device encodes at once.
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, model_params(params))
    return Embedder(self.model, partitioner, shardings, batch_size)


def encode_side(
    model: DualEncoder,
    params: Any,
    method: str,
    texts: TextRows,
    numbers: jax.Array,
    key: jax.Array | None,
) -> jax.Array:
  """Encodes the texts of c cells with one tower.

  Args:
    model: the dual encoder.
    params: train parameters; those of the loss are ignored.
    method: 'encode_query' or 'encode_passage'.
    texts: of the cells.
    numbers: of the texts, for dropout, uint32 [c, T].
    key: of dropout; None for none.

  Returns:
    [c, T, D].
  """
  variables = {'params': model_params(params)}

  def encode_rows(tokens, lengths, numbers):
    return model.apply(
        variables,
        tokens,
        lengths,
        None if key is None else numbers,
        rngs=None if key is None else {'dropout': key},
        method=method,
    )

  return encode_texts(encode_rows, texts, numbers)
