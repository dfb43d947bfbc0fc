import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file
import sentence_transformers_folders as st
import tiny_weights
from tiny_weights import assert_same, SHIPPED
import towers

from dualenc_jax.checkpoints import (
  sentence_transformers,
  sentence_transformers_writer as writer,
)
from dualenc_jax.checkpoints.weights import Usage
from dualenc_jax.models import DualEncoder, Projection, T5Encoder, TokenEmbedder

pytestmark = pytest.mark.slow

ROWS, WIDTH, DIM = SHIPPED.size + 7, 16, 12


def encoder(depth=1, activations=('gelu', 'linear'), **options):
  return T5Encoder(depth, 2, 8, 32, activations, **options)


def embedder(width=WIDTH):
  return TokenEmbedder(ROWS, width)


def model(*own):
  return DualEncoder(embedder(), encoder(), Projection(DIM), *own)


# A model, and how many embedders, encoders and projections are written.
MODELS = {
    'SDE': (model(), [1, 1, 1]),
    'ADE': (
        model(embedder(24), encoder(2, ('relu',)), Projection(DIM)), [2, 2, 2]
    ),
    'ADE-STE': (model(None, encoder(), Projection(DIM)), [2, 2, 2]),
    'light query': (
        DualEncoder(
            embedder(), encoder(1), Projection(DIM), embedder(), encoder(3)
        ),
        [2, 2, 2],
    ),
    'umT5': (
        DualEncoder(
            embedder(), encoder(2, bias_per_layer=True), Projection(DIM)
        ),
        [1, 1, 1],
    ),
    'own embedder': (model(embedder()), [2, 2, 2]),
    'own projection': (model(None, None, Projection(DIM)), [2, 2, 2]),
}


def random(name, usage=tiny_weights.USAGE):
  return tiny_weights.random(MODELS[name][0], usage)


@pytest.mark.parametrize('name', MODELS)
def test_the_library_gives_our_vectors(tmp_path, caplog, name):
  weights, folder = random(name), tmp_path / 'model'
  counts = MODELS[name][1]
  notes = ' '.join(writer.write(weights, folder))
  assert ('Queries are cut at 16 tokens' in notes) == (counts[0] == 1)
  assert ('have their own towers' in notes) == (name not in ('SDE', 'umT5'))
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    for mine, theirs in zip(towers.embed(weights, st.TEXTS), st.encode(folder)):
      np.testing.assert_allclose(mine, theirs, atol=1e-5, rtol=0)
  assert not [r for r in caplog.records if r.levelname != 'INFO']
  back = sentence_transformers.read(folder)
  assert_same(back, weights)
  vocabulary = back.usage.vocabulary
  assert vocabulary.read_bytes() == SHIPPED.file.read_bytes()
  assert back.usage == Usage(vocabulary, None, 16, 40, 'query: ', 'passage: ')
  files = folder.rglob('*.safetensors')
  names = [name for file in files for name in load_file(file)]
  parts = 'shared', 'encoder.final_layer_norm', 'linear'
  assert counts == [names.count(f'{part}.weight') for part in parts]


def test_one_prompt_of_both_sides_is_that_of_encode(tmp_path):
  usage = Usage(SHIPPED.file, None, 40, 40, 'text: ', 'text: ')
  weights = random('SDE', usage)
  notes = writer.write(weights, tmp_path / 'model')
  assert not notes
  plain = st.open_model(tmp_path / 'model').encode(st.TEXTS)
  ours, _ = towers.embed(weights, st.TEXTS)
  np.testing.assert_allclose(ours, plain, atol=1e-5, rtol=0)
  back = sentence_transformers.read(tmp_path / 'model').usage
  assert back.query_prefix == back.passage_prefix == 'text: '
