"""Gemma encoders as transformers saves them: read, written, or refused."""

import json
import shutil

import gemma_models
from hugging_face_models import change
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import torch as safetensors_torch
import transformers

from dualenc_jax.checkpoints import conversion, hugging_face, loading
from dualenc_jax.checkpoints.vocabulary import make_tokenizer
from dualenc_jax.utils.errors import UserError

TEXTS = ['a', 'parse the arguments of a program\n\n  and help', 'x = [1, 2]']
KINDS = {
    'gemma3': gemma_models.gemma3,
    't5gemma': gemma_models.t5gemma,
    't5gemma_encoder': gemma_models.t5gemma_encoder,
    't5gemma2': gemma_models.t5gemma2_whole,
    't5gemma2_encoder': gemma_models.t5gemma2_encoder,
}


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory):
  return gemma_models.write_vocabulary(
      tmp_path_factory.mktemp('vocabulary') / 'my.model'
  )


def our_states(weights, ids):
  """States [L, E] of each text, by our encoder."""
  params, table = {}, weights.tensors['token_embedder/embedding'].read()
  for name, tensor in weights.tensors.items():
    tower, *path, last = name.split('/')
    node = params
    for part in path if tower == 'encoder' else ():
      node = node.setdefault(part, {})
    if tower == 'encoder':
      node[last] = jnp.array(tensor.read())
  length = max(map(len, ids))
  rows = np.array([row + [0] * (length - len(row)) for row in ids])
  found = weights.encoder.apply(
      {'params': params}, jnp.array(table)[rows],
      jnp.array([[len(row)] for row in ids]),
  )
  return [x[: len(row)] for x, row in zip(np.asarray(found), ids)]


@pytest.mark.parametrize('kind', KINDS)
def test_states_and_tokens_there_and_back(vocabulary, tmp_path, kind):
  model, encoder = KINDS[kind]()
  folder, eos = tmp_path / 'theirs', kind == 'gemma3'
  model.save_pretrained(folder)
  gemma_models.add_tokenizer(folder, vocabulary, eos=eos)
  assert hugging_face.matches(folder)
  weights = hugging_face.read(folder)
  counts = conversion.describe(weights)
  assert ('of decoder' in counts) == (kind in ('t5gemma', 't5gemma2'))
  assert ('of vision' in counts) == kind.startswith('t5gemma2')

  tokenizer = make_tokenizer(weights)
  ids = [tokenizer.encode_passages([text]).row(0).tolist() for text in TEXTS]
  assert [row[0] for row in ids] == [2] * 3 and (ids[0][-1] == 1) == eos
  for one, other in zip(
      our_states(weights, ids), gemma_models.states(encoder, ids)
  ):
    np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)

  out = tmp_path / 'ours'
  hugging_face.write(weights, out)
  again = hugging_face.read(out)
  assert again.settings() == weights.settings()
  written = transformers.AutoConfig.from_pretrained(out)
  cls = getattr(transformers, written.architectures[0])
  opened, info = cls.from_pretrained(out, output_loading_info=True)
  pictures = 'vision_tower.', 'multi_modal_projector.', 'eoi_embedding'
  assert all(any(p in k for p in pictures) for k in info['missing_keys'])
  assert not info['unexpected_keys']
  theirs = transformers.AutoTokenizer.from_pretrained(out)
  assert theirs(TEXTS)['input_ids'] == ids
  for one, other in zip(
      gemma_models.states(opened, ids), gemma_models.states(encoder, ids)
  ):
    np.testing.assert_array_equal(one, other)
