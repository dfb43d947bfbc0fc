"""T5, mT5 and umT5 as transformers saves them: read as ours, or refused."""

import json
import re
import shutil

from hugging_face_models import (
  change,
  model,
  our_states,
  SIZES,
  their_states,
  untied,
)
import numpy as np
import pytest
import torch

from dualenc_jax.checkpoints import formats, hugging_face
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.slow


def check_equal(theirs, path):
  assert hugging_face.matches(path)
  weights = hugging_face.read(path)
  np.testing.assert_allclose(
      our_states(weights), their_states(theirs), rtol=0, atol=1e-5
  )
  return weights


@pytest.mark.parametrize(
    'kind', [
        'T5Model', 'T5ForConditionalGeneration', 'MT5EncoderModel',
        'UMT5ForConditionalGeneration',
    ]
)
def test_every_class(tmp_path, kind):
  theirs = model(kind)
  theirs.save_pretrained(tmp_path)
  weights = check_equal(theirs, tmp_path)
  decoder = {k for k in theirs.state_dict() if k.startswith('decoder.')}
  decoder.discard('decoder.embed_tokens.weight')
  assert weights.left_out == dict.fromkeys(decoder, 'decoder')
  assert weights.encoder.bias_per_layer == kind.startswith('UMT5')
  if weights.encoder.bias_per_layer:
    with pytest.raises(UserError, match='umT5, whose decoder has .* each lay'):
      weights.read_decoder()
  assert not weights.has_projection
  assert weights.usage.vocabulary is None


def test_a_head_of_its_own(tmp_path):
  """As published, as transformers 5 saves it again, and as an encoder."""
  theirs = untied('MT5ForConditionalGeneration')
  theirs.save_pretrained(tmp_path / 'a')
  change(
      tmp_path / 'a', tie_word_embeddings=False, scale_decoder_outputs=None
  )
  read = check_equal(theirs, tmp_path / 'a')
  assert read.left_out['lm_head.weight'] == 'head'
  again = type(theirs).from_pretrained(tmp_path / 'a')
  again.save_pretrained(tmp_path / 'b')
  config = json.loads((tmp_path / 'b/config.json').read_text())
  assert config['tie_word_embeddings']
  assert check_equal(theirs, tmp_path / 'b').left_out == read.left_out


@pytest.mark.parametrize(
    'tables',
    [
        ['encoder.embed_tokens'],
        ['shared', 'encoder.embed_tokens', 'decoder.embed_tokens'],
        ['shared', 'lm_head'],
    ],
)
def test_the_names_of_one_table(tmp_path, tables):
  theirs = model('T5ForConditionalGeneration', 'relu')
  theirs.save_pretrained(tmp_path)
  table = theirs.shared.weight.detach()
  names = [f'{name}.weight' for name in tables]
  changes = {name: table.clone() for name in names}
  change(tmp_path, {'shared.weight': None} | changes)
  left_out = check_equal(theirs, tmp_path).left_out
  others = {n for n, why in left_out.items() if why != 'decoder'}
  assert others == set(names[1:])


def test_an_old_config_and_a_file_of_another_name(tmp_path):
  theirs = model('T5EncoderModel', 'relu')
  theirs.save_pretrained(tmp_path)
  kept = {*SIZES, 'vocab_size', 'model_type', 'feed_forward_proj'}
  kept.add('layer_norm_epsilon')
  config = json.loads((tmp_path / 'config.json').read_text())
  change(tmp_path, **dict.fromkeys(config.keys() - kept))
  file = (tmp_path / 'model.safetensors').rename(tmp_path / 'x.safetensors')
  check_equal(theirs, file)


def test_is_one_is_told_by_content(tmp_path):
  assert not hugging_face.matches(tmp_path)
  (tmp_path / 'config.json').write_text('{"model_type": "bert"}')
  np.savez(tmp_path / 'weights.npz', a=np.zeros(3))
  for name in ('', 'config.json', 'weights.npz'):
    assert not hugging_face.matches(tmp_path / name)
  # As in a sentence-transformers folder, whose form is known before.
  with pytest.raises(UserError, match="'bert'; expected t5.*=st:FOLDER"):
    hugging_face.read(tmp_path)
  with pytest.raises(UserError, match='st:x: .*for the flags --model_dir'):
    formats.read('st:x')
  (tmp_path / 'config.json').write_text('{"model_type": "mt5"}')
  assert hugging_face.matches(tmp_path)


KEY = 'encoder.block.1.layer.0.SelfAttention.k.weight'


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A folder of a T5 1.1, encoder alone; never changed."""
  folder = tmp_path_factory.mktemp('saved')
  model('T5EncoderModel').save_pretrained(folder)
  return folder


@pytest.fixture
def copied(saved, tmp_path):
  return shutil.copytree(saved, tmp_path / 'model')


def refuses(path, expected):
  assert hugging_face.matches(path)
  with pytest.raises(UserError, match=expected) as error:
    hugging_face.read(path)
  return str(error.value)


def of_tensor(name, value):
  return {'tensors': {name: value}}


def add_line(folder, message):
  """Adds the line to the config that an error asks for, and reads it."""
  line = re.search('to the config: (.*)$', message)[1]
  name, value = line.removesuffix(',').split(': ')
  change(folder, **{name.strip('"'): json.loads(value)})
  return hugging_face.read(folder)


@pytest.mark.parametrize(
    'changes, expected',
    [
        ({'feed_forward_proj': 'gelu'}, "'gelu'; expected 'relu' or"),
        ({'dense_act_fn': 'gelu'}, "is 'gelu'; expected 'gelu_new', as"),
        ({'relative_attention_num_buckets': 64}, 'buckets is 64; expected 32'),
        ({'layer_norm_epsilon': 1e-5}, 'epsilon is 1e-05; expected 1e-06'),
        ({'model_type': 'umt5'},
         'encoder/layers_1/relpos_bias/rel_embedding is missing'),
        ({'d_kv': 10**30}, 'd_kv is 1000.*; expected 16, the size'),
        ({'vocab_size': 96}, 'vocab_size is 96; expected 97'),
        ({'num_layers': 3}, 'num_layers is 3; expected 2'),
        (of_tensor('shared.weight', None), 'has no token embeddings: none of'),
        (of_tensor(KEY, torch.zeros(24, 48)), r'the shape \(48, 24\)'),
        (of_tensor('pooler.weight', torch.zeros(3)), 'pooler.weight is of no'),
        (of_tensor('encoder.embed_tokens.weight', torch.zeros(97, 24)),
         'embed_tokens.weight is not equal to .*shared.weight, but T5 has one'),
    ],
)
def test_another_model(copied, changes, expected):
  change(copied, **changes)
  refuses(copied, expected)


def test_a_config_that_says_too_little_is_mended_by_the_line_asked_for(
    copied, tmp_path
):
  change(copied, feed_forward_proj=None)
  refuses(copied, "dense_act_fn is 'gelu_new'; expected 'relu', as")
  # A mT5 of transformers 4 whose head is said to be tied, and is not.
  folder = tmp_path / 'mt5'
  untied('MT5ForConditionalGeneration').save_pretrained(folder)
  change(
      folder, tie_word_embeddings=True, scale_decoder_outputs=None,
      transformers_version='4.57.1',
  )
  add_line(folder, refuses(folder, 'lm_head.weight is not equal to .*shared'))
  change(folder, {'lm_head.weight': None})
  refuses(folder, 'has no lm_head.weight, but config.json says')


def test_files_that_are_missing_or_cut_off(copied):
  path, config = copied / 'model.safetensors', copied / 'config.json'
  text = config.read_text()
  config.unlink()
  assert not hugging_face.matches(copied)
  with pytest.raises(UserError, match='config.json cannot be read'):
    hugging_face.read(path)
  config.write_text(text)
  path.write_bytes(path.read_bytes()[:-100])
  refuses(copied, 'model.safetensors is not a whole safetensors file.*again')
  path.unlink()
  refuses(copied, 'has neither model.safetensors nor')


def test_a_pickle_is_refused(tmp_path):
  theirs = model('MT5ForConditionalGeneration')
  theirs.save_pretrained(tmp_path)
  (tmp_path / 'model.safetensors').unlink()
  pickle = tmp_path / 'pytorch_model.bin'
  torch.save(theirs.state_dict(), pickle)
  message = refuses(tmp_path, 'pytorch_model.bin is a pickle')
  assert refuses(pickle, 'is a pickle') == message
