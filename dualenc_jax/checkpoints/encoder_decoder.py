"""T5 checkpoints with their decoders: released rankers and generators."""

from collections.abc import Mapping
import dataclasses
import hashlib
import os
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.checkpoints import model_dirs, opening
from dualenc_jax.checkpoints.weights import (
  EMBEDDING,
  infer_encoder,
  SIZES,
  Weights,
)
from dualenc_jax.data.text.tokenizer import Tokenizer
from dualenc_jax.models import T5Decoder
from dualenc_jax.models.t5_encoder import RelativePositionBias
from dualenc_jax.utils import machine
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor


def read(path: str | os.PathLike[str]) -> tuple[Weights, dict[str, Tensor]]:
  """A checkpoint as of `opening.read`, and its decoder and head by our names.

  Of an encoder alone the latter are {}. 'decoder/logits_dense/kernel' does not
  exist where logits are by the token embeddings, over sqrt(E).
  """
  reader, decoder = opening.reader_of(path), {}
  if hasattr(reader, 'decoder'):
    where = path if '://' in str(path) else pathlib.Path(path).expanduser()
    decoder = reader.decoder(where)
  weights = opening.read(path)
  left_out = {
      name: reason
      for name, reason in weights.left_out.items()
      if not decoder or reason not in ('decoder', 'head')
  }
  return dataclasses.replace(weights, left_out=left_out), decoder


def decoder_of(weights: Weights, decoder: Mapping[str, Tensor]) -> T5Decoder:
  """The stack of the sizes of what `read` returned."""
  sizes = infer_encoder(decoder, weights.encoder.activations, 'decoder')
  usual = RelativePositionBias.num_buckets
  if sizes.num_buckets != usual:
    raise UserError(
        f'{weights.path} has {sizes.num_buckets} buckets of relative positions'
        f' in its decoder; expected {usual}, which is all that the decoder of'
        ' this library has. Its encoder alone can be read.'
    )
  head = decoder.get('decoder/logits_dense/kernel')
  return T5Decoder(
      weights.tensors[EMBEDDING].shape[1],
      vocab_size=head.shape[1] if head else None,
      **{name: getattr(sizes, name) for name in SIZES},
  )


def provenance(
    weights: Weights, tensors: Mapping[str, Tensor], tokenizer: Tokenizer,
    dtype: str,
) -> dict[str, Any]:
  """The facts that outputs of a released model depend on, as JSON."""
  digest = hashlib.sha256()
  for name in sorted(tensors):
    digest.update(np.ascontiguousarray(tensors[name].read()).data)
  return {
      'checkpoint': pathlib.Path(weights.path).name,
      'checkpoint_kind': weights.kind,
      'checkpoint_step': weights.step,
      # Differs between models of one form.
      'run_id': digest.hexdigest()[:32],
      **model_dirs.texts_of(tokenizer),
      'dtype': dtype,
      'versions': machine.versions(),
  }
