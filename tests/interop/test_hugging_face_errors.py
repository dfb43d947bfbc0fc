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


def refuses(path, expected):
  assert hugging_face.is_one(path)
  with pytest.raises(UserError, match=expected) as error:
    hugging_face.read(path)
  return str(error.value)


def add_line(folder, message):
  """Adds the line to the config that an error asks for, and reads it."""
  line = re.search('to the config: (.*)$', message)[1]
  name, value = line.removesuffix(',').split(': ')
  change(folder, **{name.strip('"'): json.loads(value)})
  return hugging_face.read(folder)


@pytest.mark.parametrize(
    'config,expected',
    [
        ({'feed_forward_proj': 'gelu'}, "'gelu'; expected one of.*exact GELU"),
        ({'dense_act_fn': 'gelu'}, "dense_act_fn is 'gelu', but feed_forward"),
        ({'relative_attention_num_buckets': 64}, r'expected \(\d+, 64\)'),
        ({'relative_attention_max_distance': 256}, 'is 256; expected 128'),
        ({'layer_norm_epsilon': 1e-5}, 'epsilon is 1e-05; expected 1e-06'),
        ({'model_type': 'umt5'}, "is 'umt5'; expected t5 or mt5. A umt5 has"),
        ({'d_kv': None}, 'd_kv is None; expected a whole number'),
        ({'vocab_size': 96}, r'shape \(97, 24\), but .*are \(96, 24\)'),
        ({'num_layers': 3}, r'encoder/layers_2/.* is missing'),
        ({'num_layers': 1}, r'block.1.* is of no use'),
        ({'num_heads': 4}, r'k.weight has the shape \(24, 48\)'),
    ],
)
def test_a_config_of_another_model(copied, config, expected):
  change(copied, **config)
  refuses(copied, expected)


@pytest.mark.parametrize(
    'tensors,expected',
    [
        ({TABLE: None}, 'has no token embeddings: none of its 20 tensors'),
        ({KEY: None}, 'encoder/layers_1/attention/key/kernel is missing'),
        ({KEY: torch.zeros(24, 48)}, r'k.weight has the shape \(48, 24\)'),
        ({'pooler.weight': torch.zeros(3)}, 'pooler.weight is of no use'),
        ({'encoder.embed_tokens.weight': torch.zeros(97, 24)},
         'embed_tokens.weight is not equal to .*shared.weight, but T5 has one'),
    ],
)
def test_tensors_of_another_model(copied, tensors, expected):
  change(copied, tensors)
  refuses(copied, expected)


def test_a_config_that_says_too_little_is_mended_by_the_line_asked_for(
    copied, tmp_path
):
  change(copied, feed_forward_proj=None)
  message = refuses(copied, 'config.json has no feed_forward_proj')
  assert add_line(copied, message).encoder.activations == ('gelu', 'linear')
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
  assert not hugging_face.is_one(copied)
  with pytest.raises(UserError, match='config.json cannot be read'):
    hugging_face.read(path)
  config.write_text(text)
  path.write_bytes(path.read_bytes()[:-100])
  refuses(copied, 'model.safetensors is not a whole safetensors file.*again')
  path.rename(copied / 'tf_model.h5')
  refuses(copied, 'tf_model.h5 .*transformers 4')
  (copied / 'tf_model.h5').unlink()
  refuses(copied, 'has neither model.safetensors nor')


def test_a_pickle_and_the_way_out(tmp_path):
  theirs = model('MT5ForConditionalGeneration')
  theirs.save_pretrained(tmp_path)
  (tmp_path / 'model.safetensors').unlink()
  pickle = tmp_path / 'pytorch_model.bin'
  torch.save(theirs.state_dict(), pickle)
  message = refuses(tmp_path, 'pytorch_model.bin is a pickle')
  assert refuses(pickle, 'is a pickle') == message
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
