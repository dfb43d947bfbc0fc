import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
import sentence_transformers_folders as st
import small_vocabulary
import torch
import towers

from dualenc_jax.checkpoints import formats, sentence_transformers
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.slow

CONFIG = 'config_sentence_transformers.json'


@pytest.fixture(scope='module')
def vocabulary(tmp_path_factory):
  return small_vocabulary.write(tmp_path_factory.mktemp('v') / 'spiece.model')


@pytest.fixture(scope='module')
def t5(tmp_path_factory, vocabulary):
  return st.save_t5(tmp_path_factory.mktemp('t5') / 'relu', vocabulary)


@pytest.fixture(scope='module')
def saved(tmp_path_factory, t5):
  folder = tmp_path_factory.mktemp('saved') / 'model'
  return st.save(st.modules(t5), folder)


@pytest.fixture
def folder(saved, tmp_path):
  """A copy of a folder of the installed version, to be changed."""
  return shutil.copytree(saved, tmp_path / 'model')


def assert_same_vectors(folder, vocabulary):
  weights = sentence_transformers.read(folder)
  ours = towers.embed(weights, st.TEXTS, vocabulary)
  for mine, theirs in zip(ours, st.encode(folder)):
    np.testing.assert_allclose(mine, theirs, atol=1e-5, rtol=0)
  return weights


@pytest.mark.parametrize('feed_forward', ['relu', 'gated-gelu'])
def test_the_vectors_are_those_of_the_library(
    tmp_path, vocabulary, feed_forward
):
  t5 = st.save_t5(tmp_path / 't5', vocabulary, feed_forward)
  folder = st.save(st.modules(t5), tmp_path / 'model')
  assert sentence_transformers.matches(folder)
  assert not sentence_transformers.matches(t5)
  weights = assert_same_vectors(folder, vocabulary)
  assert weights.kind == 'sentence-transformers folder'
  assert weights.usage.query_length == weights.usage.passage_length == st.LENGTH
  assert weights.passage_encoder is None


def test_folders_are_read_in_the_form_of_gtr_and_sentence_t5(
    folder, vocabulary
):
  st.as_published(folder, vocabulary)
  # As published: the encoder in half precision, the projection not.
  tensors = load_file(folder / 'model.safetensors')
  half = {name: tensor.astype(np.float16) for name, tensor in tensors.items()}
  save_file(half, folder / 'model.safetensors', {'format': 'pt'})
  st.edit(folder / 'config.json', dtype='float16')
  weights = sentence_transformers.read(folder)
  model = st.open_model(folder)
  query, passage = towers.embed(weights, st.TEXTS)
  np.testing.assert_allclose(query, model.encode(st.TEXTS), atol=1e-5, rtol=0)
  np.testing.assert_array_equal(query, passage)
  assert weights.usage.vocabulary == folder / 'spiece.model'
  assert weights.usage.query_length == weights.usage.passage_length == st.LENGTH


def test_what_routes_share_is_shared(tmp_path, t5, vocabulary):
  """Around and inside of the router, or saved twice."""
  deep = st.save_t5(tmp_path / 'deep', vocabulary, depth=2, seed=1)
  embeddings = load_file(t5 / 'model.safetensors')['shared.weight']
  tensors = load_file(deep / 'model.safetensors')
  tensors['shared.weight'] = embeddings
  save_file(tensors, deep / 'model.safetensors', {'format': 'pt'})
  query, passage = st.modules(t5), st.modules(deep)
  folder = st.save(
      [st.router(query[:2], passage[:2]), *query[2:]], tmp_path / 'model'
  )
  weights = assert_same_vectors(folder, vocabulary)
  parts = {name.partition('/')[0] for name in weights.tensors}
  assert {p for p in parts if p.startswith('passage')} == {'passage_encoder'}


@pytest.mark.parametrize(
    'prompts, default, expected, warning',
    [
        ({'query': 'wrap: ', 'document': 'd: '}, None, ('wrap: ', 'd: '), None),
        ({'query': None, 'document': 'd: '}, ..., ('', 'd: '), None),
        ({'corpus': 'c: ', 'document': 'd: '}, None, ('', 'd: '),
         "the prompt corpus, 'c: ', but"),
        ({'all': 'text: ', 'query': ''}, 'all', ('', ''),
         "the prompt all, 'text: ', but"),
        (..., ..., ('', ''), None),
    ],
)
def test_prompts_are_those_of_the_library_s_own_calls(
    folder, vocabulary, caplog, prompts, default, expected, warning
):
  st.edit(folder / CONFIG, prompts=prompts, default_prompt_name=default)
  weights = assert_same_vectors(folder, vocabulary)
  usage = weights.usage
  assert (usage.query_prefix, usage.passage_prefix) == expected
  said = [
      record.getMessage()
      for record in caplog.records
      if record.name == sentence_transformers.__name__
  ]
  assert [warning in line for line in said] == [True] * bool(warning)


@pytest.mark.parametrize(
    'settings, expected',
    [
        ({'tokenizer_args': {'model_max_length': 20}}, (20, 20)),
        ({'max_seq_length': 30, 'query_length': 9}, (9, 30)),
        ({'query_length': 9, 'document_length': 25}, (9, 25)),
    ],
)
def test_lengths_are_those_that_the_library_cuts_at(folder, settings, expected):
  st.edit(folder / 'sentence_bert_config.json', **settings)
  tasks = 'query', 'document'
  found = [sentence_transformers.read_length(folder, task) for task in tasks]
  assert tuple(found) == expected
  model = st.open_model(folder)
  lengths = tuple(
      model.preprocess([' '.join(st.TEXTS)], task=task)['input_ids'].shape[1]
      for task in tasks
  )
  assert lengths == expected


def test_a_bias_is_left_out_where_it_is_zero(tmp_path, t5, vocabulary):
  modules = st.modules(t5)
  modules[2] = st.dense(bias=True, init_bias=torch.zeros(st.DIM))
  folder = st.save(modules, tmp_path / 'model')
  weights = assert_same_vectors(folder, vocabulary)
  assert weights.left_out['linear.bias'] == 'zero'
  modules[2] = st.dense(bias=True)
  folder = st.save(modules, tmp_path / 'other')
  with pytest.raises(UserError, match='linear.bias is not zero: the proj'):
    sentence_transformers.read(folder)


def test_without_normalize_the_cosine_decides(tmp_path, t5):
  folder = st.save(st.modules(t5)[:3], tmp_path / 'model')
  sentence_transformers.read(folder)
  st.edit(folder / CONFIG, similarity_fn_name=...)
  sentence_transformers.read(folder)
  st.edit(folder / CONFIG, similarity_fn_name='dot')
  with pytest.raises(UserError, match="no Normalize.* compares .* by 'dot'"):
    sentence_transformers.read(folder)


def setting(file, **changes):
  return lambda folder: st.edit(folder / file, **changes)


def entry(index, **changes):
  """Changes an entry of modules.json; removes it without changes."""

  def change(folder):
    file = folder / 'modules.json'
    entries = json.loads(file.read_text())
    entries[index : index + 1] = [entries[index] | changes] if changes else []
    file.write_text(json.dumps(entries))

  return change


BERT = 'sentence_bert_config.json'
POOLING, DENSE = '1_Pooling/config.json', '2_Dense/config.json'


@pytest.mark.parametrize(
    'change, message',
    [
        (entry(2), 'names no Dense; .* give the file model.safe'),
        (entry(2, type='sentence_transformers.models.LSTM'), 'LSTM, Norm'),
        (entry(0, type='my.Transformer'), 'my.Transformer, whose code is not'),
        (lambda f: (f / DENSE).unlink(), "activation_function is '.*Tanh'"),
        (setting(POOLING, pooling_mode='cls'), "is 'cls'; expected 'mean' or"),
        (setting(POOLING, pooling_mode=..., pooling_mode_max_tokens=True),
         'Pooling: pooling_mode_max_tokens is True; expected False'),
        (setting(POOLING, include_prompt=False), 'include_prompt is False'),
        (setting(DENSE, rank=3), 'rank is an unknown setting of Dense'),
        (setting(DENSE, activation_function='torch.nn.modules.Tanh'),
         'activation_function is .*Tanh.*; expected .*Identity'),
        (setting(DENSE, bias=True), 'linear.weight; expected linear.bias, lin'),
        (setting(BERT, query_expansion={'length': 8}), 'query_expansion'),
        (setting(CONFIG, default_prompt_name='every'),
         "default_prompt_name 'every'; expected"),
    ],
)
def test_what_the_towers_cannot_do_is_an_error(folder, change, message):
  change(folder)
  with pytest.raises(UserError, match=message):
    formats.read(folder)


def test_a_pickle_is_refused(folder):
  file = folder / '2_Dense' / 'model.safetensors'
  file.rename(file.with_name('pytorch_model.bin'))
  with pytest.raises(UserError, match='model.bin is a pickle.*Sentence'):
    sentence_transformers.read(folder)


def test_reading_needs_neither_torch_nor_the_library(saved):
  code = (
      'import pathlib, sys;'
      " absent = 'torch', 'transformers', 'sentence_transformers';"
      ' sys.modules.update(dict.fromkeys(absent));'
      ' from dualenc_jax.checkpoints import sentence_transformers as st;'
      f' weights = st.read(pathlib.Path({str(saved)!r}));'
      ' print(weights.encoder.num_layers)'
  )
  done = subprocess.run([sys.executable, '-c', code], capture_output=True)
  assert done.stdout == b'1\n', done.stderr
