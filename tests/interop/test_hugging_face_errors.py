"""Folders that are refused, each with one clear error."""

import json
import re
import shutil

from hugging_face_models import change, model, untied
import numpy as np
import pytest
import torch

from dualenc_jax.errors import UserError
from dualenc_jax.interop import hugging_face

pytestmark = pytest.mark.slow

TABLE = 'shared.weight'
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


def refuses(path, *expected):
  assert hugging_face.is_one(path)
  with pytest.raises(UserError) as error:
    hugging_face.read(path)
  for pattern in expected:
    assert re.search(pattern, str(error.value)), str(error.value)
  return str(error.value)


@pytest.mark.parametrize('feed_forward', ['relu', 'gated-gelu'])
def test_a_config_without_feed_forward_proj(tmp_path, feed_forward):
  model('T5EncoderModel', feed_forward).save_pretrained(tmp_path)
  change(tmp_path, feed_forward_proj=None)
  message = refuses(tmp_path, 'config.json has no feed_forward_proj')
  # The line that it asks for mends it.
  line = re.search('to the config: (.*)$', message)[1]
  assert line == f'"feed_forward_proj": "{feed_forward}",'
  config = tmp_path / 'config.json'
  config.write_text(config.read_text().replace('{', '{' + line, 1))
  assert hugging_face.read(tmp_path).encoder.num_layers == 2


@pytest.mark.parametrize(
    'config,expected',
    [
        ({'feed_forward_proj': 'gelu'}, "'gelu'; expected one of.*exact GELU"),
        ({'feed_forward_proj': 'gated-tanh'}, "'gated-tanh'; expected one of"),
        ({'dense_act_fn': 'gelu'}, "dense_act_fn is 'gelu', but feed_forward"),
        ({'relative_attention_num_buckets': 64}, r'expected \(\d+, 64\)'),
        ({'relative_attention_num_buckets': 2}, 'is 2; expected 4 to 511'),
        ({'relative_attention_max_distance': 256}, 'is 256; expected 128'),
        ({'layer_norm_epsilon': 1e-5}, 'epsilon is 1e-05; expected 1e-06'),
        ({'model_type': 'umt5'}, "is 'umt5'; expected t5 or mt5. A umt5 has"),
        ({'d_kv': None}, 'd_kv is None; expected a whole number'),
        ({'num_layers': '2'}, "num_layers is '2'; expected a whole number"),
        ({'vocab_size': 96}, r'shape \(97, 24\), but .*are \(96, 24\)'),
        ({'num_layers': 3}, r'encoder/layers_2/.* is missing'),
        ({'num_layers': 1}, r'block.1.* is of no use'),
        ({'num_heads': 4}, r'k.weight has the shape \(24, 48\)'),
        ({'feed_forward_proj': 'relu', 'dense_act_fn': 'relu'},
         'mlp/wi/kernel is missing.*wi_0.weight is of no use'),
    ],
)
def test_a_config_of_another_model(copied, config, expected):
  change(copied, **config)
  refuses(copied, expected)


@pytest.mark.parametrize(
    'tensors,expected',
    [
        ({TABLE: None}, 'has no token embeddings: none of its 20 tensors'),
        ({TABLE: torch.zeros(24, 97)}, r'shared.weight has the shape \(24, 97'),
        ({KEY: None}, 'encoder/layers_1/attention/key/kernel is missing'),
        ({KEY: torch.zeros(24, 48)}, r'k.weight has the shape \(48, 24\)'),
        ({'encoder.extra': torch.zeros(3)}, 'encoder.extra is of no use'),
        ({'pooler.weight': torch.zeros(3)}, 'pooler.weight is of no use'),
        ({'encoder.embed_tokens.weight': torch.zeros(97, 24)},
         'embed_tokens.weight is not equal to .*shared.weight, but T5 has one'),
        ({'encoder.embed_tokens.weight': torch.zeros(96, 24)},
         'embed_tokens.weight is not equal to'),
    ],
)
def test_tensors_of_another_model(copied, tensors, expected):
  change(copied, tensors)
  refuses(copied, expected)


def test_a_tied_head_that_differs(tmp_path):
  untied('T5ForConditionalGeneration').save_pretrained(tmp_path)
  change(tmp_path, scale_decoder_outputs=None)
  config = tmp_path / 'config.json'
  assert json.loads(config.read_text())['tie_word_embeddings'] is False
  hugging_face.read(tmp_path)
  change(tmp_path, tie_word_embeddings=True)
  message = refuses(tmp_path, 'lm_head.weight is not equal to .*shared.weight')
  line = re.search('to the config: (.*)$', message)[1]
  text = config.read_text().replace('"tie_word_embeddings": true,', line)
  assert text != config.read_text()
  config.write_text(text)
  hugging_face.read(tmp_path)


def test_an_untied_head_that_is_missing(tmp_path):
  untied('T5ForConditionalGeneration').save_pretrained(tmp_path)
  change(tmp_path, {'lm_head.weight': None})
  refuses(tmp_path, 'has no lm_head.weight, but config.json says')


def test_a_mt5_of_transformers_4_that_is_said_to_be_tied(tmp_path):
  untied('MT5ForConditionalGeneration').save_pretrained(tmp_path)
  change(
      tmp_path, tie_word_embeddings=True, scale_decoder_outputs=None,
      transformers_version='4.57.1',
  )
  refuses(tmp_path, 'lm_head.weight is not equal to')


def test_files_that_are_missing_or_cut_off(copied):
  path, config = copied / 'model.safetensors', copied / 'config.json'
  text = config.read_text()
  config.unlink()
  assert not hugging_face.is_one(copied)
  with pytest.raises(UserError, match='config.json cannot be read'):
    hugging_face.read(path)
  config.write_text(text)
  path.write_bytes(path.read_bytes()[:-100])
  refuses(copied, 'model.safetensors is not a whole safetensors file.*again')
  path.unlink()
  refuses(copied, 'has neither model.safetensors nor')


@pytest.mark.parametrize('kind', ['T5', 'MT5'])
def test_a_pickle_and_the_way_out(tmp_path, kind):
  theirs = model(f'{kind}ForConditionalGeneration')
  theirs.save_pretrained(tmp_path)
  (tmp_path / 'model.safetensors').unlink()
  pickle = tmp_path / 'pytorch_model.bin'
  torch.save(theirs.state_dict(), pickle)
  message = refuses(tmp_path, 'pytorch_model.bin is a pickle')
  assert refuses(pickle) == message
  # Its lines, less the last, for the tokenizer, which this folder lacks.
  lines = [line.strip() for line in message.splitlines()[1:]]
  assert lines.pop().endswith('copy spiece.model, too.')
  assert lines.pop().startswith('AutoTokenizer.from_pretrained(')
  exec('\n'.join(lines), {})
  again = hugging_face.read(tmp_path.with_name(f'{tmp_path.name}-safetensors'))
  np.testing.assert_array_equal(
      again.tensors['token_embedder/embedding'].read(),
      theirs.shared.weight.detach().numpy(),
  )


@pytest.mark.parametrize(
    'name,expected',
    [
        ('weights.ckpt', 'weights.ckpt is a pickle'),
        ('tf_model.h5', 'tf_model.h5 .*transformers 4'),
        ('flax_model.msgpack', 'flax_model.msgpack is of Flax'),
    ],
)
def test_other_weights(copied, name, expected):
  (copied / 'model.safetensors').rename(copied / name)
  refuses(copied, expected)
