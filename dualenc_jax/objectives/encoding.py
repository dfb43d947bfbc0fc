"""The texts of a batch through a model, cell by cell.

Shapes: c of a batch's C cells, which have P pairs and T texts each, B = C P;
R rows of S texts and L tokens. Dropout masks of a text depend on the key and on
its number alone.
"""

from collections.abc import Callable, Mapping
import functools
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.data.layouts import TextRows
from dualenc_jax.losses import Embeddings
from dualenc_jax.models import abstract_params, DualEncoder, model_params
from dualenc_jax.models.dual_encoder import take_places
from dualenc_jax.parallel import data_axis

Batch = Mapping[str, Any]


def embed(
    model: DualEncoder, params: Any, batch: Batch,
    dropout_key: jax.Array | None = None, micro_batch_size: int | None = None,
) -> Embeddings:
  """Encodes a batch with both towers.

  The batch has queries and passages, `TextRows` of C cells of P pairs, with K
  hard negatives where a cell has P (1 + K) passages; for its ids and other
  columns see `Embeddings`. Without a key there is no dropout.
  """
  queries, passages = batch['queries'], batch['passages']
  candidates = passages.num_texts // queries.num_texts
  keys: Any = [None, None]
  if dropout_key is not None:
    keys = jax.random.split(dropout_key)
  encode = functools.partial(encode_side, model)

  def encode_cells(params, numbers, queries, passages):
    """Encodes c cells: [c, P, D] and [c, P (1 + K), D]."""
    of_passages = number_candidates(numbers, candidates)
    return (
        encode(params, 'encode_query', queries, numbers, keys[0]),
        encode(params, 'encode_passage', passages, of_passages, keys[1]),
    )

  query, passage = map_cells(
      encode_cells, model, params, _numbers(batch), micro_batch_size, queries,
      passages,
  )
  features = query.shape[-1]
  passage = passage.reshape(-1, candidates, features)
  return Embeddings.from_batch(batch, query.reshape(-1, features), passage)


def embed_queries(
    model: DualEncoder, params: Any, batch: Batch, key: jax.Array | None,
    micro_batch_size: int | None,
) -> jax.Array:
  """Encodes the queries of a batch, float32 [B, D]."""

  def encode_cells(params, numbers, queries):
    return encode_side(model, params, 'encode_query', queries, numbers, key)

  return map_queries(encode_cells, model, params, batch, micro_batch_size)


def map_queries(
    encode_cells: Callable[..., Any], model: DualEncoder, params: Any,
    batch: Batch, micro_batch_size: int | None,
) -> Any:
  """Maps (params, numbers [c, P], queries) -> [c, P, ...] over C cells.

  Returns arrays [B, ...].
  """
  arrays = map_cells(
      encode_cells, model, params, _numbers(batch), micro_batch_size,
      batch['queries'],
  )
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), arrays)


def map_cells(
    function: Callable[..., Any], model: Any, params: Any, numbers: jax.Array,
    micro_batch_size: int | None, texts: TextRows, *trees: Any,
) -> Any:
  """Runs function(params, numbers [c, P], texts, *trees) over C cells.

  `numbers` uint32 [B] are those of the pairs; other arrays are [C, ...].
  """
  cells, size = texts.num_cells, len(numbers)
  at_once = None
  if micro_batch_size is not None:
    data_axis.check_micro_batch_size(micro_batch_size, size)
    at_once = micro_batch_size // (size // cells)
  return data_axis.map_rows(
      function, at_once, functools.partial(abstract_params, model, params),
      params, numbers.reshape(cells, -1), texts, *trees,
  )


def encode_side(
    model: DualEncoder, params: Any, method: str, texts: TextRows,
    numbers: jax.Array, key: jax.Array | None,
) -> jax.Array:
  """Encodes the texts of c cells by 'encode_query' or 'encode_passage'.

  `numbers` of the texts, uint32 [c, T], are for dropout; a key of None switches
  it off. Returns [c, T, D].
  """
  variables = {'params': model_params(params)}
  tokens, lengths, of_segments = _flat_rows(texts, numbers)
  encoded: Any = model.apply(
      variables, tokens, lengths, None if key is None else of_segments,
      texts.places, method=method,
      rngs=None if key is None else {'dropout': key},
  )
  return encoded.reshape(*numbers.shape, -1)


def encode_texts(
    encode_rows: Callable[..., jax.Array], texts: TextRows, numbers: jax.Array
) -> jax.Array:
  """Encodes the texts of c cells, in any layout: [c, T, D].

  `encode_rows` maps tokens [R, L], lengths and dropout numbers [R, S] to
  [R, S, D]; `numbers` uint32 [c, T] are those of the texts.
  """
  encoded = encode_rows(*_flat_rows(texts, numbers))
  if texts.places is None:
    return encoded.reshape(*numbers.shape, -1)
  return take_places(encoded, texts.places)


def _flat_rows(
    texts: TextRows, numbers: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Tokens [R, L] of all cells, lengths and numbers [R, S]."""
  cells, rows, segments = texts.lengths.shape
  of_segments = jnp.take_along_axis(
      numbers, texts.texts.reshape(cells, -1), axis=1, mode='clip'
  )
  return (
      texts.tokens.reshape(cells * rows, -1),
      texts.lengths.reshape(cells * rows, segments),
      of_segments.reshape(cells * rows, segments),
  )


def effective_ranks(
    query: jax.Array, passage: jax.Array
) -> dict[str, jax.Array]:
  """Returns the effective ranks of embeddings [B, D] of both towers.

  It is the participation ratio of the second moments C = X^T X / B,
  (tr C)^2 / sum_ij C_ij^2: 1 if all are one vector, D if all directions are
  alike. Devices send each other sums of [D, D] alone.
  """
  metrics = {}
  for name, vectors in ('query', query), ('passage', passage):
    vectors = jax.lax.stop_gradient(vectors).astype(jnp.float32)
    moments = vectors.T @ vectors
    metrics[f'{name}_rank'] = jnp.square(jnp.trace(moments)) / jnp.sum(
        jnp.square(moments)
    )
  return metrics


def number_candidates(numbers: jax.Array, count: int) -> jax.Array:
  """Returns the numbers of candidates, [c, P count], of pairs [c, P]."""
  candidates = numbers[:, :, None] * count
  candidates += jnp.arange(count, dtype=numbers.dtype)[None, None]
  return candidates.reshape(len(numbers), -1)


def _numbers(batch: Batch) -> jax.Array:
  """Returns the numbers of a batch's pairs, [B]; by default their places."""
  queries = batch['queries']
  size = queries.num_cells * queries.num_texts
  return batch.get('numbers', jnp.arange(size, dtype=jnp.uint32))
