"""Random T5s with their decoders, as transformers and T5X write them."""

import shutil

import hugging_face_models
import numpy as np
import t5x_files

from dualenc_jax.interop import encoder_decoder

# feed_forward_proj, and whether the head is the token embeddings.
VERSIONS = {'1.0': ('relu', True), '1.1': ('gated-gelu', False)}


def make(version, rows):
  """transformers' model of a version of T5."""
  feed_forward, tied = VERSIONS[version]
  model = hugging_face_models.model if tied else hugging_face_models.untied
  return model(
      'T5ForConditionalGeneration', feed_forward=feed_forward, vocab_size=rows,
      decoder_start_token_id=0,
  )


def write_hugging_face(theirs, spiece, folder):
  """As transformers does, the vocabulary beside it; returns the folder."""
  theirs.save_pretrained(folder)
  shutil.copy(spiece, folder / 'spiece.model')
  return folder


def write_t5x(hugging_face, folder):
  """The tensors of such a folder as T5X does; returns the checkpoint."""
  weights, decoder = encoder_decoder.read(hugging_face)
  arrays = {n: t.read() for n, t in (weights.tensors | decoder).items()}
  made = folder / 'checkpoint_1004000'
  t5x_files.write_legacy(made, arrays, {'step': np.int32(1004000)})
  return made
