"""T5 and mT5 as transformers saves them, read as ours."""

import json

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

from dualenc_jax.interop import hugging_face

pytestmark = pytest.mark.slow


def check_equal(theirs, path):
  assert hugging_face.is_one(path)
  weights = hugging_face.read(path)
  np.testing.assert_allclose(
      our_states(weights), their_states(theirs), rtol=0, atol=1e-5
  )
  return weights


@pytest.mark.parametrize(
    'kind', ['T5Model', 'T5ForConditionalGeneration', 'MT5EncoderModel']
)
def test_every_class(tmp_path, kind):
  theirs = model(kind)
  theirs.save_pretrained(tmp_path)
  weights = check_equal(theirs, tmp_path)
  decoder = {k for k in theirs.state_dict() if k.startswith('decoder.')}
  decoder.discard('decoder.embed_tokens.weight')
  assert weights.left_out == dict.fromkeys(decoder, 'decoder')
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


def test_shards(tmp_path):
  theirs = untied('T5ForConditionalGeneration')
  theirs.save_pretrained(tmp_path, max_shard_size='20KB')
  assert len(list(tmp_path.glob('*.safetensors'))) > 2
  check_equal(theirs, tmp_path)
  check_equal(theirs, tmp_path / 'model.safetensors.index.json')


def test_half_precision_in_one_file(tmp_path):
  theirs = model('T5EncoderModel').to(torch.bfloat16)
  theirs.save_pretrained(tmp_path)
  file = (tmp_path / 'model.safetensors').rename(tmp_path / 'x.safetensors')
  check_equal(theirs.float(), file)


def test_an_old_config(tmp_path):
  theirs = model('T5EncoderModel', 'relu')
  theirs.save_pretrained(tmp_path)
  kept = {*SIZES, 'vocab_size', 'model_type', 'feed_forward_proj'}
  kept.add('layer_norm_epsilon')
  config = json.loads((tmp_path / 'config.json').read_text())
  change(tmp_path, **dict.fromkeys(config.keys() - kept))
  check_equal(theirs, tmp_path)


def test_is_one_is_told_by_content(tmp_path):
  assert not hugging_face.is_one(tmp_path)
  (tmp_path / 'config.json').write_text('{"model_type": "bert"}')
  np.savez(tmp_path / 'weights.npz', a=np.zeros(3))
  for name in ('', 'config.json', 'weights.npz'):
    assert not hugging_face.is_one(tmp_path / name)
  torch.save({'a': torch.zeros(3)}, tmp_path / 'weights')
  assert hugging_face.is_one(tmp_path / 'weights')
  (tmp_path / 'config.json').write_text('{"model_type": "mt5"}')
  assert hugging_face.is_one(tmp_path)
