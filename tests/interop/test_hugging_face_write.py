"""Towers of ours as folders that transformers loads."""

import dataclasses
import json

from hugging_face_models import (
  ACTIVATIONS,
  model,
  our_states,
  SIZES,
  their_states,
)
import numpy as np
import pytest
import tiny_weights
import transformers

from dualenc_jax.errors import UserError
from dualenc_jax.interop import hugging_face
from dualenc_jax.interop.weights import Usage
from dualenc_jax.models import DualEncoder, Projection, T5Encoder, TokenEmbedder

pytestmark = pytest.mark.slow

ROWS, WIDTH = 8128, SIZES['d_model']
VOCABULARY = tiny_weights.SHIPPED.file
ENCODER = T5Encoder(2, 3, 16, 40)
PARTS = 'token_embedder', 'encoder', 'projection'


def random_weights(encoder=ENCODER, own=None, parts=PARTS, width=WIDTH):
  """Random weights; own: of a passage tower of its own, in `parts` of it."""
  passage = {}
  if own:
    # The same instance would be the same parameters.
    modules = TokenEmbedder(ROWS, width), own.clone(), Projection(12)
    passage = {
        f'passage_{name}': module
        for name, module in zip(PARTS, modules)
        if name in parts
    }
  towers = DualEncoder(
      TokenEmbedder(ROWS, WIDTH), encoder, Projection(12), **passage
  )
  usage = Usage(VOCABULARY, query_length=32, passage_length=64)
  arrays = tiny_weights.arrays_of(towers)
  return tiny_weights.of_arrays(arrays, towers, usage, 'here')


def assert_equal(weights, again):
  tiny_weights.assert_same(again, weights)
  assert again.left_out == {}


def load(folder, kind=transformers.T5EncoderModel):
  result, info = kind.from_pretrained(folder, output_loading_info=True)
  assert not any(info.values()), info
  return result.eval()


@pytest.mark.parametrize(
    'activations, buckets',
    [(('relu',), 32), (('gelu', 'linear'), 32), (('relu',), 4), (('relu',), 7)],
)
def test_transformers_computes_the_same(tmp_path, activations, buckets):
  encoder = dataclasses.replace(
      ENCODER, activations=activations, num_buckets=buckets
  )
  weights = random_weights(encoder)
  hugging_face.write(weights, tmp_path / 'a')
  theirs = load(tmp_path / 'a')
  np.testing.assert_allclose(
      our_states(weights), their_states(theirs), rtol=0, atol=1e-5
  )


@pytest.mark.parametrize('feed_forward', ACTIVATIONS)
def test_files_are_those_of_transformers(tmp_path, feed_forward):
  theirs = model('T5EncoderModel', feed_forward, vocab_size=ROWS)
  theirs.save_pretrained(tmp_path / 'theirs')
  encoder = dataclasses.replace(ENCODER, activations=ACTIVATIONS[feed_forward])
  hugging_face.write(random_weights(encoder), tmp_path / 'ours')
  ours = load(tmp_path / 'ours', transformers.AutoModelForTextEncoding)
  assert type(ours) is transformers.T5EncoderModel
  assert ours.state_dict().keys() == theirs.state_dict().keys()
  configs = [
      json.loads((tmp_path / name / 'config.json').read_text())
      for name in ('ours', 'theirs')
  ]
  for config in configs:
    del config['transformers_version']
  assert configs[0] == configs[1]
  files = {path.name for path in (tmp_path / 'theirs').iterdir()}
  assert files <= {path.name for path in (tmp_path / 'ours').iterdir()}


@pytest.mark.parametrize('projection', [True, False])
def test_one_tower_and_back(tmp_path, projection):
  weights = random_weights()
  if not projection:
    del weights.tensors['projection/kernel']
  folder = tmp_path / 'a'
  hugging_face.write(weights, folder)
  assert (folder / 'projection.safetensors').is_file() == projection
  assert hugging_face.is_one(folder)
  for path in (folder, folder / 'model.safetensors'):
    again = hugging_face.read(path)
    assert_equal(weights, again)
    assert again.usage == Usage(
        folder / 'spiece.model', query_length=64, passage_length=64
    )
  assert (folder / 'spiece.model').read_bytes() == VOCABULARY.read_bytes()


@pytest.mark.parametrize(
    'parts',
    [
        ['token_embedder', 'encoder', 'projection'],
        ['encoder', 'projection'],
        ['token_embedder', 'encoder'],
        ['projection'],
        ['token_embedder'],
    ],
)
def test_two_towers_and_back(tmp_path, parts):
  """What they share is shared again."""
  weights = random_weights(own=ENCODER, parts=parts)
  hugging_face.write(weights, tmp_path)
  assert sorted(p.name for p in tmp_path.iterdir()) == ['passage', 'query']
  assert hugging_face.is_one(tmp_path)
  again = hugging_face.read(tmp_path)
  assert_equal(weights, again)
  assert again.usage == Usage(
      tmp_path / 'query/spiece.model', query_length=32, passage_length=64
  )


def test_towers_of_different_depth_and_width(tmp_path):
  weights = random_weights(own=T5Encoder(3, 2, 8, 20, ('relu',)), width=16)
  hugging_face.write(weights, tmp_path)
  assert_equal(weights, hugging_face.read(tmp_path))
  theirs = load(tmp_path / 'passage')
  np.testing.assert_allclose(
      our_states(weights, 'passage_'), their_states(theirs), rtol=0, atol=1e-5
  )


def test_projections_that_do_not_fit(tmp_path):
  file = 'projection.safetensors'
  hugging_face.write(random_weights(), tmp_path / 'a')
  narrow = random_weights(dataclasses.replace(ENCODER, num_layers=1))
  kernel = tiny_weights.tensor('k', np.zeros((23, 12)))
  narrow.tensors['projection/kernel'] = kernel
  hugging_face.write(narrow, tmp_path / 'b')
  (tmp_path / 'b' / file).replace(tmp_path / 'a' / file)
  with pytest.raises(UserError, match=r'linear.weight has the shape \(23, 12'):
    hugging_face.read(tmp_path / 'a')
  hugging_face.write(random_weights(own=ENCODER), tmp_path / 'two')
  (tmp_path / 'two/passage' / file).unlink()
  with pytest.raises(UserError, match='only one of query and passage has'):
    hugging_face.read(tmp_path / 'two')


def test_vocabularies_that_do_not_fit(tmp_path):
  hugging_face.write(random_weights(own=ENCODER), tmp_path / 'two')
  with (tmp_path / 'two/passage/spiece.model').open('ab') as file:
    file.write(b'x')
  with pytest.raises(UserError, match='query and passage have different'):
    hugging_face.read(tmp_path / 'two')


def test_activations_that_transformers_has_not(tmp_path):
  encoder = dataclasses.replace(ENCODER, activations=('tanh', 'linear'))
  with pytest.raises(UserError, match="is .'tanh', 'linear'., which trans"):
    hugging_face.write(random_weights(encoder), tmp_path / 'a')
