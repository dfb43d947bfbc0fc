"""Bags as static models, beside sentence-transformers and model2vec."""

import dataclasses
import json

import model2vec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
import tiny_weights
from tokenizers import models, pre_tokenizers, Tokenizer
import towers

from dualenc_jax.checkpoints import (
  formats,
  sentence_transformers,
  sentence_transformers_writer as writer,
  static_embedding,
)
from dualenc_jax.checkpoints.weights import Usage
from dualenc_jax.models import DualEncoder, Projection, T5Encoder, TokenEmbedder
from dualenc_jax.utils.errors import UserError

SHIPPED = tiny_weights.SHIPPED
# Their pieces are known to the vocabulary, save those of the last.
TEXTS = (
    'sort', 'parse a date', 'def f(x):\n  return [x] * 2', '  ends </s> here',
    'a <unk> b <pad>', ' '.join(f'word {i}' for i in range(30)), '你好 straße',
)


def bag(*own, usage=tiny_weights.USAGE):
  """More rows than there are pieces, as configs have."""
  embedder = TokenEmbedder(SHIPPED.size + 7, 24)
  projection = Projection(12, hidden=(20,))
  model = DualEncoder(embedder, T5Encoder(0, 2, 8, 32), projection, *own)
  return tiny_weights.random(model, usage)


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  """A bag, what is written of it, and the folder."""
  folder = tmp_path_factory.mktemp('static') / 'model'
  weights = bag()
  static = static_embedding.as_static(weights)
  notes = writer.write(static, folder)
  assert 'model2vec knows no prompts' in notes[-1]
  return weights, static, folder


def test_model2vec_has_our_vectors(written):
  weights, static, folder = written
  texts = [f'passage: {text}' for text in TEXTS[:-2]]
  theirs = model2vec.StaticModel.from_pretrained(folder).encode(texts)
  _, ours = towers.embed(weights, TEXTS[:-2])
  np.testing.assert_allclose(theirs, ours, atol=1e-6)
  assert load_file(folder / 'model.safetensors')['embeddings'].shape == (
      SHIPPED.size, 12
  )


def test_it_is_read_as_a_bag_of_the_same_vectors(written):
  weights, static, folder = written
  assert formats.detect(folder) == formats.SENTENCE_TRANSFORMERS
  back = formats.read(folder)
  tiny_weights.assert_same(back, static)
  assert back.usage == Usage(
      folder / 'spiece.model', None, 40, 40, 'query: ', 'passage: '
  )
  for ours, theirs in zip(
      towers.embed(weights, TEXTS[:4]), towers.embed(back, TEXTS[:4])
  ):
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.slow
def test_sentence_transformers_has_our_vectors(written):
  import sentence_transformers_folders as st

  weights, static, folder = written
  # Queries have the one length, too.
  same_length = tiny_weights.of_arrays(
      {n: t.read() for n, t in weights.tensors.items()}, weights.model(),
      static.usage,
  )
  for ours, theirs in zip(
      towers.embed(same_length, TEXTS), st.encode(folder, TEXTS)
  ):
    np.testing.assert_allclose(theirs, ours, atol=1e-6)


def test_a_model_whose_tokenizer_adds_no_end_is_read_without_one(tmp_path):
  table = np.random.default_rng(0).normal(size=(SHIPPED.size, 8))
  words = {f'w{i}': i for i in range(SHIPPED.size)}
  tokenizer = Tokenizer(models.WordLevel(words, 'w2'))
  tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
  model2vec.StaticModel(
      table.astype(np.float32), tokenizer, normalize=True
  ).save_pretrained(tmp_path)
  weights = sentence_transformers.read(tmp_path)
  assert weights.usage.pieces == tuple(words)
  rows = static_embedding._make_table(weights)
  np.testing.assert_allclose(rows[2:], table[2:], atol=1e-6)
  np.testing.assert_allclose(rows[1], 0, atol=1e-6)


@pytest.mark.parametrize('lengths', [(16, 40), (40, 16)])
def test_shorter_queries_are_a_warning(caplog, lengths):
  query, passage = lengths
  static_embedding.as_static(bag(usage=dataclasses.replace(
      tiny_weights.USAGE, query_length=query, passage_length=passage
  )))
  said = 'one length, 40 tokens, so that queries of more than 16'
  assert (said in caplog.text) == (query < passage)


def test_what_is_no_static_model_is_refused(tmp_path, written):
  with pytest.raises(UserError, match='towers that differ.*sde.gin'):
    static_embedding.as_static(bag(None, None, Projection(12)))
  _, static, _ = written
  for number, (change, message) in enumerate({
      'tensors': 'holds embeddings, mapping; expected embeddings',
      'modules': 'names the modules StaticEmbedding, Dense; expected',
      'truncation': 'truncation.*max_length',
  }.items()):
    folder = tmp_path / str(number)
    writer.write(static, folder)
    if change == 'tensors':
      file = folder / 'model.safetensors'
      save_file({**load_file(file), 'mapping': np.zeros(3, np.float32)}, file)
    elif change == 'modules':
      file = folder / 'modules.json'
      file.write_text(file.read_text().replace('Normalize', 'Dense'))
    else:
      file = folder / 'tokenizer.json'
      content = json.loads(file.read_text())
      content['truncation'] = {'max_length': 'all'}
      file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
      sentence_transformers.read(folder)
