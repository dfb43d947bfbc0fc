"""A tiny dual encoder in every form that `dualenc convert` writes."""

import pathlib

import numpy as np
import small_vocabulary

from dualenc_jax.interop import conversion
from dualenc_jax.interop.weights import shapes_of, Usage, Weights
from dualenc_jax.io import files
from dualenc_jax.models import DualEncoder, Projection, T5Encoder, TokenEmbedder
from dualenc_jax.tensor_files.tensors import Tensor

DEEP = '{"a":' * 100_000 + '1' + '}' * 100_000
ZARR = 'checkpoint_7/target.token_embedder.embedding'
FORMS = 'hf', 'npz', 'safetensors', 'sentence_transformers', 't5x'


def weights(folder: pathlib.Path) -> Weights:
  """Random ones, of 22 tensors; the vocabulary lies in the folder."""
  vocabulary = small_vocabulary.write(folder / 'spiece.model')
  rng = np.random.default_rng(0)
  model = DualEncoder(
      TokenEmbedder(small_vocabulary.SIZE, 8), T5Encoder(2, 2, 4, 8),
      Projection(6),
  )

  def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    array = rng.standard_normal(shape, np.float32)
    return Tensor(name, shape, lambda: array)

  return Weights(
      'random',
      'memory',
      {name: tensor(name, shape) for name, shape in shapes_of(model).items()},
      model.encoder,
      usage=Usage(vocabulary, None, 16, 40, 'q: ', 'p: '),
      step=7,
  ).check()


def write(folder: pathlib.Path) -> None:
  """Writes a folder for each of `FORMS`."""
  made = weights(folder)
  for name in FORMS:
    form, out = conversion.FORMS[name], folder / name
    out.mkdir()
    form.write(made, out)
    if form.usage_beside:
      files.write_json(out / 'dualenc.json', made.usage.facts())
      made.usage.save_vocabulary(out)
