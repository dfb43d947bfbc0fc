"""Random T5s with their decoders, of transformers."""

import hugging_face_models

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
