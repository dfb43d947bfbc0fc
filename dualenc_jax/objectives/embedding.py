"""From a batch, in whatever layout, to the embeddings of both towers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dualenc_jax.losses import Embeddings
from dualenc_jax.models import DualEncoder, model_params
from dualenc_jax.parallel import micro_batches
from dualenc_jax.text.text_rows import TextRows

Batch = dict[str, Any]


def embed(
    model: DualEncoder,
    params: Any,
    batch: Batch,
    dropout_key: jax.Array | None = None,
    micro_batch_size: int | None = None,
) -> Embeddings:
  """Encodes a batch with both towers.

  Args:
    model: the dual encoder.
    params: train parameters; those of the loss are ignored.
    batch: what `Batches` yields: queries and passages, `TextRows` of C cells of
      P pairs, B = C P, with K hard negatives where a cell has P (1 + K)
      passages; ids and other columns, see `Embeddings`.
    dropout_key: switches dropout on. The masks of a text depend on this key
      and the number of its pair alone: batch['numbers'] [B], or its place in
      the batch if there are none.
    micro_batch_size: pairs encoded at once, see `micro_batches.map_rows`; None
      for all.

  Returns:
    The embeddings of the batch.
  """
  variables = {'params': model_params(params)}
  queries, passages = batch['queries'], batch['passages']
  cells, pairs = queries.num_cells, queries.num_texts
  candidates = passages.num_texts // pairs
  keys = [None, None]
  if dropout_key is not None:
    keys = jax.random.split(dropout_key)

  def encode(method, texts, key, numbers):
    """Texts of c cells, numbers [c, T] -> [c, T, D]."""

    def encode_rows(tokens, lengths, numbers):
      if key is None:
        return model.apply(variables, tokens, lengths, method=method)
      return model.apply(
          variables,
          tokens,
          lengths,
          numbers,
          rngs={'dropout': key},
          method=method,
      )

    return encode_texts(encode_rows, texts, numbers)

  def encode_cells(numbers, queries, passages):
    """Numbers [c, P] of pairs, their texts -> [c, P, D], [c, P (1 + K), D]."""
    of_passages = numbers[:, :, None] * candidates
    of_passages += jnp.arange(candidates, dtype=numbers.dtype)[None, None]
    return (
        encode('encode_query', queries, keys[0], numbers),
        encode(
            'encode_passage',
            passages,
            keys[1],
            of_passages.reshape(len(numbers), -1),
        ),
    )

  if micro_batch_size is not None:
    micro_batches.check_size(micro_batch_size, cells * pairs)
  numbers = batch.get('numbers', jnp.arange(cells * pairs, dtype=jnp.uint32))
  query, passage = micro_batches.map_rows(
      encode_cells,
      None if micro_batch_size is None else micro_batch_size // pairs,
      numbers.reshape(cells, pairs),
      queries,
      passages,
  )
  features = query.shape[-1]
  passage = passage.reshape(-1, candidates, features)
  return Embeddings.of_batch(batch, query.reshape(-1, features), passage)


def encode_texts(
    encode_rows: Callable[..., jax.Array], texts: TextRows, numbers: jax.Array
) -> jax.Array:
  """Encodes the texts of c cells, whatever their layout.

  Args:
    encode_rows: a tower: tokens [R, L], lengths and dropout numbers [R, S] ->
      [R, S, D].
    texts: of the cells.
    numbers: of the texts, for dropout, uint32 [c, T].

  Returns:
    [c, T, D].
  """
  encoded = []
  for tokens, lengths, of_cell in texts.groups:
    cells, rows, segments = lengths.shape
    own = jnp.take_along_axis(
        numbers, of_cell.reshape(cells, -1), axis=1, mode='clip'
    )
    group = encode_rows(
        tokens.reshape(cells * rows, -1),
        lengths.reshape(cells * rows, segments),
        own.reshape(cells * rows, segments),
    )
    encoded.append(group.reshape(cells, rows * segments, -1))
  encoded = jnp.concatenate(encoded, axis=1)
  if texts.places is None:
    return encoded
  return jnp.take_along_axis(
      encoded, texts.places[:, :, None], axis=1, mode='clip'
  )
