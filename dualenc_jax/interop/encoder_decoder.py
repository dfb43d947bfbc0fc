"""T5s with their decoders: rankers and generators as they were released."""

from collections.abc import Mapping
import dataclasses
import hashlib
import os
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.interop import opening
from dualenc_jax.interop.weights import infer_encoder, SIZES, Weights
from dualenc_jax.io import machine
from dualenc_jax.models import T5Decoder
from dualenc_jax.models.t5_encoder import RelativePositionBias
from dualenc_jax.tensor_files.tensors import Tensor
from dualenc_jax.text.tokenizer import Tokenizer

_HEAD = 'decoder/logits_dense/kernel'


def read(path: str | os.PathLike[str]) -> tuple[Weights, dict[str, Tensor]]:
  """A checkpoint as of `opening.read`, and its decoder and head by our names.

  Of an encoder alone the latter are {}. 'decoder/logits_dense/kernel' is not
  there where logits are by the token embeddings, over sqrt(E).

  Args:
    path: of a model_dir, a T5X checkpoint or a Hugging Face folder.
  """
  reader, decoder = opening.reader_of(path), {}
  if hasattr(reader, 'decoder'):
    where = path if '://' in str(path) else pathlib.Path(path).expanduser()
    decoder = reader.decoder(where)
  weights = opening.read(path)
  if not decoder:
    return weights, {}
  left_out = {
      name: reason
      for name, reason in weights.left_out.items()
      if reason not in ('decoder', 'head')
  }
  return dataclasses.replace(weights, left_out=left_out), decoder


def decoder_of(weights: Weights, decoder: Mapping[str, Tensor]) -> T5Decoder:
  """The stack of the sizes of what `read` returned.

  Raises:
    UserError: its positions are in another number of buckets than 32.
  """
  sizes = infer_encoder(decoder, weights.encoder.activations, 'decoder')
  usual = RelativePositionBias.num_buckets
  if sizes.num_buckets != usual:
    raise UserError(
        f'{weights.path} has {sizes.num_buckets} buckets of relative positions'
        f' in its decoder; expected {usual}, which is all that the decoder of'
        ' this library has. Its encoder alone can be read.'
    )
  head = decoder.get(_HEAD)
  return T5Decoder(
      weights.tensors['token_embedder/embedding'].shape[1],
      vocab_size=head and head.shape[1],
      **{name: getattr(sizes, name) for name in SIZES},
  )


def provenance(
    weights: Weights,
    tensors: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    dtype: str,
) -> dict[str, Any]:
  """What the outputs of a released model depend on, as JSON."""
  return {
      'checkpoint': pathlib.Path(weights.path).name,
      'checkpoint_kind': weights.kind,
      'checkpoint_step': weights.step,
      'run_id': _digest(tensors),
      'vocabulary': tokenizer.vocabulary.sha256,
      'query_length': tokenizer.query_length,
      'passage_length': tokenizer.passage_length,
      'query_prefix': tokenizer.query_prefix,
      'passage_prefix': tokenizer.passage_prefix,
      'dtype': dtype,
      'versions': machine.versions(),
  }


def _digest(tensors: Mapping[str, Tensor]) -> str:
  """Tells models of one form apart."""
  found = hashlib.sha256()
  for name in sorted(tensors):
    found.update(np.ascontiguousarray(tensors[name].read()))
  return found.hexdigest()[:32]
