"""What all objectives of a dual encoder have in common."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.errors import UserError
from dualenc_jax.inference.embedder import Embedder
from dualenc_jax.losses.loss import NORM_TOLERANCE
from dualenc_jax.models import (
    abstract_params,
    describe,
    DualEncoder,
    model_params,
)
from dualenc_jax.models.cost import describe_towers
from dualenc_jax.objectives.from_pairs import encode_texts, FromPairs
from dualenc_jax.objectives.objective import Run
from dualenc_jax.parallel import micro_batches
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
    yield from describe_towers(
        self.model, run.tokenizer.query_length, run.tokenizer.passage_length
    )

  def problem(self, metrics: Mapping[str, Any]) -> str | None:
    error = metrics.get('norm_error', 0.0)
    if error <= NORM_TOLERANCE:
      return None
    return (
        f'the norm of an embedding is off 1 by {error:.3g}, so that its dot'
        ' products are no cosines. Normalise what the model returns, or set'
        ' losses.Similarity.check_norms = False.'
    )

  @property
  def facts(self) -> dict[str, Any]:
    return describe(self.model)

  def embedder(
      self, params: Any, partitioner: Partitioner, batch_size: int
  ) -> Embedder:
    """Encodes with `model_params` of a train state's parameters.

    Args:
      params: parameters with their shardings; only these are looked at.
      partitioner: the mesh.
      batch_size: most rows that a device encodes at once.
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, model_params(params))
    return Embedder(self.model, partitioner, shardings, batch_size)

  def encoded_queries(
      self, params: Any, batch: Mapping[str, Any], key: jax.Array | None
  ) -> jax.Array:
    """The batch's queries, float32 [B, D], a micro-batch at a time.

    Args:
      params: train parameters; those of the loss are ignored.
      batch: of B pairs.
      key: of dropout; None for none.
    """

    def encode_cells(params, numbers, queries):
      return encode_side(
          self.model, params, 'encode_query', queries, numbers, key
      )

    return encode_queries(
        self.model, encode_cells, params, batch, self.micro_batch_size
    )


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


def encode_queries(
    model: DualEncoder,
    encode_cells: Callable[..., Any],
    params: Any,
    batch: dict[str, Any],
    micro_batch_size: int | None,
) -> Any:
  """Runs a function of queries over a batch, a micro-batch at a time.

  Args:
    model: whose parameters are trained.
    encode_cells: parameters, numbers uint32 [c, P] of pairs and their queries
      -> arrays [c, P, ...].
    params: its parameters.
    batch: of C cells of P queries, B = C P.
    micro_batch_size: queries at once; None for all.

  Returns:
    Its arrays, [B, ...].
  """
  queries = batch['queries']
  cells, pairs = queries.num_cells, queries.num_texts
  if micro_batch_size is not None:
    micro_batches.check_micro_batch_size(micro_batch_size, cells * pairs)
  numbers = batch.get('numbers', jnp.arange(cells * pairs, dtype=jnp.uint32))
  found = micro_batches.map_rows(
      encode_cells,
      None if micro_batch_size is None else micro_batch_size // pairs,
      functools.partial(abstract_params, model),
      params,
      numbers.reshape(cells, pairs),
      queries,
  )
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)


def check_apart(what: str, model: DualEncoder) -> None:
  """Raises UserError unless queries have an encoder of their own."""
  if model.passage_encoder is None:
    raise UserError(
        f'{what} trains the query tower alone, and the towers share their'
        ' encoder. Give --gin_file=architectures/light_query.gin.'
    )


def passage_tower(model: DualEncoder) -> Sequence[str]:
  """Rules over all parameters of passages, those that are shared among them."""
  shared = [
      f'{part}/.*'
      for part in ('token_embedder', 'projection')
      if getattr(model, f'passage_{part}') is None
  ]
  return 'passage_.*', *shared
