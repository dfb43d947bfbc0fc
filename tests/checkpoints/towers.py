"""Embeds texts with the towers of a `Weights`."""

import functools

from flax import traverse_util
import jax
import numpy as np

from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary


def embed(weights, texts, vocabulary=None):
  """Vectors of texts as queries and as passages: two of float32 [n, D]."""
  usage, model = weights.usage, weights.model()
  tokenizer = Tokenizer(
      Vocabulary(str(vocabulary or usage.vocabulary)), usage.query_length,
      usage.passage_length, usage.query_prefix, usage.passage_prefix,
  )
  params = traverse_util.unflatten_dict(
      {name: tensor.read() for name, tensor in weights.tensors.items()}, sep='/'
  )
  sides = (
      (tokenizer.encode_queries(texts), 'encode_query'),
      (tokenizer.encode_passages(texts), 'encode_passage'),
  )
  every = np.arange(len(texts))
  longest = max(usage.query_length, usage.passage_length)
  return [
      np.asarray(_embed(model, method, params, rows.padded(every, longest)))
      for rows, method in sides
  ]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _embed(model, method, params, tokens):
  return model.apply({'params': params}, tokens, method=method)
