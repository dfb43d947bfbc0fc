"""The texts of a batch through a model, cell by cell.

Shapes: c of a batch's C cells, which have P pairs and T texts each, B = C P;
R rows of S texts and L tokens.
"""

from collections.abc import Callable, Mapping
import functools
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.data.layouts import TextRows
from dualenc_jax.models import abstract_params, DualEncoder, model_params
from dualenc_jax.parallel import micro_batches


def numbers_of(batch: Mapping[str, Any]) -> jax.Array:
  """The numbers of a batch's pairs, uint32 [B], or else their places in it."""
  queries = batch['queries']
  size = queries.num_cells * queries.num_texts
  return batch.get('numbers', jnp.arange(size, dtype=jnp.uint32))


def numbers_of_candidates(numbers: jax.Array, count: int) -> jax.Array:
  """Numbers [c, P] of pairs -> those of their candidates, [c, P count]."""
  found = numbers[:, :, None] * count
  found += jnp.arange(count, dtype=numbers.dtype)[None, None]
  return found.reshape(len(numbers), -1)


def map_cells(
    function: Callable[..., Any], model: Any, params: Any, numbers: jax.Array,
    micro_batch_size: int | None, texts: TextRows, *trees: Any,
) -> Any:
  """Runs function(params, numbers [c, P], texts, *trees) over C cells.

  `numbers` uint32 [B] are those of the pairs, B = C P; other arrays, [C, ...].
  """
  cells, size = texts.num_cells, len(numbers)
  at_once = None
  if micro_batch_size is not None:
    micro_batches.check_micro_batch_size(micro_batch_size, size)
    at_once = micro_batch_size // (size // cells)
  return micro_batches.map_rows(
      function, at_once, functools.partial(abstract_params, model), params,
      numbers.reshape(cells, -1), texts, *trees,
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

  def encode_rows(tokens, lengths, numbers):
    return model.apply(
        variables, tokens, lengths, None if key is None else numbers,
        rngs=None if key is None else {'dropout': key}, method=method,
    )

  return encode_texts(encode_rows, texts, numbers)


def encode_texts(
    encode_rows: Callable[..., jax.Array], texts: TextRows, numbers: jax.Array
) -> jax.Array:
  """Encodes the texts of c cells, whatever their layout: [c, T, D].

  `encode_rows` maps tokens [R, L], lengths and dropout numbers [R, S] to
  [R, S, D]; `numbers` uint32 [c, T] are those of the texts.
  """
  cells, rows, segments = texts.lengths.shape
  own = jnp.take_along_axis(
      numbers, texts.texts.reshape(cells, -1), axis=1, mode='clip'
  )
  encoded = encode_rows(
      texts.tokens.reshape(cells * rows, -1),
      texts.lengths.reshape(cells * rows, segments),
      own.reshape(cells * rows, segments),
  ).reshape(cells, rows * segments, -1)
  if texts.places is None:
    return encoded
  return jnp.take_along_axis(
      encoded, texts.places[:, :, None], axis=1, mode='clip'
  )
