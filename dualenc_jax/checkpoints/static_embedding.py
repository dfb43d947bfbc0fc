"""Bags of pieces as static models, of sentence-transformers and model2vec.

Without layers a token's part in an embedding depends on its id alone, so that a
table [V, D] of all ids is the model: the embedding of a text is the mean of its
tokens' rows, at norm one. Both libraries open the same folder.
"""

import dataclasses
import functools
import logging
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.checkpoints import hugging_face_tokenizer
from dualenc_jax.checkpoints.vocabulary import read_model
from dualenc_jax.checkpoints.weights import (
  EMBEDDING,
  PROJECTION,
  Weights,
)
from dualenc_jax.data.text.tokenizer import EOS
from dualenc_jax.models import T5Encoder
from dualenc_jax.utils import files, json_file
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import safetensors_file
from dualenc_jax.utils.tensor_files.tensors import Tensor

KIND = 'static embeddings'
# Names of the table in files of the two libraries.
_TABLE, _TABLES = 'embeddings', ('embeddings', 'embedding.weight')
_SCALE = 'encoder/encoder_norm/scale'
_BIAS = 'encoder/relpos_bias/rel_embedding'
_TOKENIZER = 'tokenizer.json'
# The T5 norm's, within its square root.
_EPSILON = 1e-6
# Rows that are computed at once.
_ROWS = 4096
_LOG = logging.getLogger(__name__)


def as_static(weights: Weights) -> Weights:
  """Returns the bag of a static model: a row for each piece, one length.

  Raises:
    UserError: the towers share less than all.
  """
  if not weights.is_shared:
    raise UserError(
        f'{weights} has towers that differ, and a static model is one table.'
        ' Train a bag with --gin_file=architectures/sde.gin.'
    )
  usage = weights.usage
  if (usage.query_length or 0) < (usage.passage_length or 0):
    _LOG.warning(
        'A static model has one length, %d tokens, so that queries of more than'
        ' %d have other embeddings there.',
        usage.passage_length, usage.query_length,
    )
  longest = max(usage.query_length or 0, usage.passage_length or 0) or None
  usage = dataclasses.replace(
      usage, query_length=longest, passage_length=longest
  )
  assert usage.vocabulary is not None
  # Embeddings may have more rows than there are pieces.
  pieces = len(read_model(usage.vocabulary).pieces)
  return dataclasses.replace(
      _bag(_make_table(weights)[:pieces]), path=weights.path, usage=usage,
      step=weights.step, trained_dims=weights.trained_dims,
  )


def _make_table(weights: Weights) -> np.ndarray:
  """Returns what each id adds to the sum of a text, float32 [V, D]."""
  embedding, scale = (
      weights.tensors[name].read().astype(np.float64)
      for name in (EMBEDDING, _SCALE)
  )
  maps = (t.read().astype(np.float64) for t in weights.projections())
  kernel = functools.reduce(np.matmul, maps)
  table = np.empty((len(embedding), kernel.shape[1]), np.float32)
  for start in range(0, len(table), _ROWS):
    rows = embedding[start : start + _ROWS]
    size = np.sqrt(np.mean(rows**2, axis=1, keepdims=True) + _EPSILON)
    table[start : start + _ROWS] = (rows / size * scale) @ kernel
  return table


def _bag(table: np.ndarray) -> Weights:
  """Returns the bag of a table [V, D], with embeddings of D + 1 components.

  One more component gives all rows the same norm, which the norm layer divides
  by and its scale multiplies by again; the projection leaves it out.
  """
  rows = table.astype(np.float64)
  squares = np.sum(rows**2, axis=1)
  # Nothing is lost where the longest row is longer by a little.
  most = 1.0001 * squares.max()
  embedding = np.column_stack([rows, np.sqrt(most - squares)])
  width = embedding.shape[1]
  scale = np.full(width, np.sqrt(most / width + _EPSILON))
  encoder = T5Encoder(0, 1, 1, 1)
  arrays = {
      EMBEDDING: embedding,
      _SCALE: scale,
      # Attention has it, which a bag does not have.
      _BIAS: np.zeros((1, encoder.num_buckets)),
      PROJECTION: np.eye(width, table.shape[1]),
  }
  tensors = {
      name: Tensor(name, array.shape, array.astype(np.float32).copy)
      for name, array in arrays.items()
  }
  return Weights(KIND, '', tensors, encoder)


def write(weights: Weights, folder: pathlib.Path) -> list[str]:
  """Writes the table of `as_static` and its tokenizer; returns notes."""
  embedding = weights.tensors[EMBEDDING]
  table = embedding.columns(embedding.shape[1] - 1)
  safetensors_file.write(folder / safetensors_file.FILE, {_TABLE: table})
  usage = weights.usage
  hugging_face_tokenizer.write_static(usage, folder)
  files.write_json(folder / 'config.json', {
      'model_type': 'model2vec',
      'architectures': ['StaticModel'],
      'hidden_dim': table.shape[1],
      'normalize': True,
      # It would cut by characters first.
      'max_length': None,
      'embedding_dtype': 'float32',
  })
  notes = [
      'Texts have one length for queries and passages,'
      f' {usage.query_length:,} tokens, in sentence-transformers; model2vec'
      ' reads them whole, and leaves out pieces that the vocabulary does not'
      ' know.',
      'An empty text has the vector 0, not that of the end of a text.',
  ]
  if usage.query_prefix or usage.passage_prefix:
    notes.append('model2vec knows no prompts: put them before the texts.')
  return notes


def read(folder: pathlib.Path) -> Weights:
  """Reads the module StaticEmbedding of a folder, or a model of model2vec.

  The row of the end of a text, which other programs do not add, becomes 0 where
  the folder's tokenizer does not add it, so that embeddings are the folder's.

  Raises:
    UserError: a file is damaged, or rows are shared by several pieces.
  """
  file = folder / safetensors_file.FILE
  tensors = safetensors_file.read(file)
  names = [name for name in _TABLES if name in tensors]
  if len(tensors) != 1 or not names:
    raise UserError(
        f'{file} holds {", ".join(sorted(tensors))}; expected'
        f' {" or ".join(_TABLES)} alone, a row a piece. Save the model without'
        ' quantisation of the vocabulary.'
    )
  tensor = tensors[names[0]]
  if len(tensor.shape) != 2:
    raise UserError(
        f'{tensor.where} has the shape {tensor.shape}; expected two axes.'
    )
  tokenizer = json_file.read(folder / _TOKENIZER)
  usage = hugging_face_tokenizer.read(folder)
  table = tensor.read()
  if not hugging_face_tokenizer.adds_end(tokenizer):
    table[EOS] = 0
  length = _read_length(tokenizer, folder)
  return dataclasses.replace(
      _bag(table), path=str(folder),
      usage=dataclasses.replace(
          usage, query_length=length, passage_length=length
      ),
  )


def _read_length(
    tokenizer: dict[str, Any], folder: pathlib.Path
) -> int | None:
  truncation = tokenizer.get('truncation')
  if truncation is None:
    return None
  where = f'{folder / _TOKENIZER}: truncation'
  json_file.check(truncation, {'max_length': int}, where, 'Copy it again.')
  return truncation['max_length']
