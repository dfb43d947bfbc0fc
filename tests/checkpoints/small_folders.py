"""A tiny dual encoder in every form that `dualenc convert` writes."""

import pathlib

import small_vocabulary
import tiny_weights

from dualenc_jax.checkpoints import conversion
from dualenc_jax.checkpoints.weights import Usage, Weights
from dualenc_jax.models import DualEncoder, Projection, T5Encoder, TokenEmbedder
from dualenc_jax.utils import files

DEEP = '{"a":' * 100_000 + '1' + '}' * 100_000
ZARR = 'checkpoint_7/target.token_embedder.embedding'
FORMS = 'hf', 'sentence_transformers', 't5x'


def weights(folder: pathlib.Path) -> Weights:
  """Random ones, of 22 tensors; the vocabulary lies in the folder."""
  vocabulary = small_vocabulary.write(folder / 'spiece.model')
  model = DualEncoder(
      TokenEmbedder(small_vocabulary.SIZE, 8), T5Encoder(2, 2, 4, 8),
      Projection(6),
  )
  usage = Usage(vocabulary, None, 16, 40, 'q: ', 'p: ')
  return tiny_weights.random(model, usage)


def write(folder: pathlib.Path) -> None:
  """Writes a folder for each of `FORMS`."""
  made = weights(folder)
  for name in FORMS:
    form, out = conversion.FORMS[name], folder / name
    out.mkdir()
    form.write(made, out)
    if form.usage_in_file:
      files.write_json(out / 'dualenc.json', made.usage.facts())
      made.usage.save_vocabulary(out)
