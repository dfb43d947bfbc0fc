"""Towers of ours as folders that transformers loads."""


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
from tiny_weights import assert_same
import transformers

from dualenc_jax.checkpoints import hugging_face
from dualenc_jax.checkpoints.weights import Usage
from dualenc_jax.models import DualEncoder, Projection, T5Encoder, TokenEmbedder
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.slow

ROWS, WIDTH = 8128, SIZES['d_model']
VOCABULARY = tiny_weights.SHIPPED.file
ENCODER = T5Encoder(2, 3, 16, 40)


def random_weights(encoder=ENCODER, **passage):
  towers = DualEncoder(
      TokenEmbedder(ROWS, WIDTH), encoder, Projection(12), **passage
  )
  usage = Usage(VOCABULARY, query_length=32, passage_length=64)
  return tiny_weights.random(towers, usage)


def check_states(folder, weights):
  """transformers loads all that is there, and computes what we do."""
  theirs, info = transformers.AutoModelForTextEncoding.from_pretrained(
      folder, output_loading_info=True
  )
  assert not any(info.values()), info
  np.testing.assert_allclose(
      our_states(weights), their_states(theirs.eval()), rtol=0, atol=1e-5
  )
  return theirs


@pytest.mark.parametrize(
    'feed_forward, buckets', zip(ACTIVATIONS, [7, 32, 32, 32, 4, 32])
)
def test_transformers_computes_the_same(tmp_path, feed_forward, buckets):
  theirs = model(
      'T5EncoderModel', feed_forward, vocab_size=ROWS,
      relative_attention_num_buckets=buckets,
  )
  theirs.save_pretrained(tmp_path / 'theirs')
  weights = random_weights(
      ENCODER.clone(activations=ACTIVATIONS[feed_forward], num_buckets=buckets)
  )
  hugging_face.write(weights, tmp_path / 'ours')
  ours = check_states(tmp_path / 'ours', weights)
  assert type(ours) is transformers.T5EncoderModel
  read = hugging_face.read(tmp_path / 'theirs')
  assert read.encoder == weights.encoder
  np.testing.assert_allclose(
      our_states(read), their_states(theirs), rtol=0, atol=1e-5
  )
  assert ours.state_dict().keys() == theirs.state_dict().keys()
  configs = [m.config.to_dict() for m in (ours, theirs)]
  for config in configs:
    del config['transformers_version'], config['_name_or_path']
  assert configs[0] == configs[1]
  files = {path.name for path in (tmp_path / 'theirs').iterdir()}
  assert files <= {path.name for path in (tmp_path / 'ours').iterdir()}


def test_a_umt5_has_a_bias_in_each_layer(tmp_path):
  weights = random_weights(ENCODER.clone(bias_per_layer=True))
  hugging_face.write(weights, tmp_path)
  theirs = check_states(tmp_path, weights)
  assert type(theirs) is transformers.UMT5EncoderModel
  assert_same(hugging_face.read(tmp_path), weights)


def test_one_tower_and_back(tmp_path):
  weights, folder = random_weights(), tmp_path / 'a'
  hugging_face.write(weights, folder)
  assert hugging_face.matches(folder)
  for path in (folder, folder / 'model.safetensors'):
    again = hugging_face.read(path)
    assert_same(again, weights)
    assert again.usage == Usage(
        folder / 'spiece.model', query_length=64, passage_length=64
    )
  assert (folder / 'spiece.model').read_bytes() == VOCABULARY.read_bytes()


def test_parts_that_do_not_fit(tmp_path):
  one, file = tmp_path / 'a', 'projection.safetensors'
  hugging_face.write(random_weights(), one)
  kernel = tiny_weights.tensor('k', np.zeros((12, 23)))
  hugging_face.write_tensors(one / file, {hugging_face.LINEAR: kernel})
  with pytest.raises(UserError, match=r'linear.weight has the shape \(23, 12'):
    hugging_face.read(one)
  two = random_weights(passage_projection=Projection(12))
  with pytest.raises(UserError, match='two towers that differ, but --to=hf'):
    hugging_face.write(two, tmp_path / 'two')
  encoder = ENCODER.clone(activations=('tanh', 'linear'))
  with pytest.raises(UserError, match="is .'tanh', 'linear'., which trans"):
    hugging_face.write(random_weights(encoder), tmp_path / 'b')
