"""Gemma encoders as transformers saves them: read, written, or refused."""

import dataclasses
import json
import shutil

import gemma_models
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import sentence_transformers
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
import tiny_run
import tiny_weights
import torch
import transformers

import dualenc_jax
from dualenc_jax.checkpoints import conversion, hugging_face, loading
from dualenc_jax.checkpoints.vocabulary import make_tokenizer
from dualenc_jax.cli import convert, train
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.slow

TEXTS = ['a', 'parse the arguments of a program\n\n  and help', 'x = [1, 2]']
KINDS = {
    'gemma3': gemma_models.gemma3,
    't5gemma': gemma_models.t5gemma,
    't5gemma_encoder': gemma_models.t5gemma_encoder,
    't5gemma2': gemma_models.t5gemma2_whole,
    't5gemma2_encoder': gemma_models.t5gemma2_encoder,
    'embedding_gemma2': gemma_models.embedding_gemma2,
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
  if 'projection/kernel' in weights.tensors:
    found = found @ weights.tensors['projection/kernel'].read()
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

  tokens = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS)
  assert tokens['input_ids'] == ids
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


PROMPTS = {
    'query': 'task: search result | query: ', 'document': 'title: none | text: '
}


@pytest.fixture(scope='module')
def published(vocabulary, tmp_path_factory):
  """A folder in the form of EmbeddingGemma's."""
  folder = tmp_path_factory.mktemp('published')
  encoder = folder / 'encoder'
  gemma_models.gemma3()[0].save_pretrained(encoder)
  gemma_models.add_tokenizer(encoder, vocabulary)
  torch.manual_seed(0)
  options = {'bias': False, 'activation_function': torch.nn.Identity()}
  hugging_face.write(hugging_face.read(encoder), folder / 'tokenized')
  model = sentence_transformers.SentenceTransformer(
      modules=[
          Transformer(str(folder / 'tokenized'), max_seq_length=60),
          Pooling(24), Dense(24, 96, **options), Dense(96, 24, **options),
          Normalize(),
      ],
      prompts=PROMPTS, similarity_fn_name='cosine', device='cpu',
  )
  model.save(str(folder / 'model'))
  shutil.copyfile(vocabulary, folder / 'model' / 'tokenizer.model')
  return folder / 'model'


def test_vectors_are_those_of_sentence_transformers(published, tmp_path):
  """`convert` compares both with ours, before and after."""
  texts = [*TEXTS, 'def parse(args):\n    return vars(args)\n' * 9]
  for source, form, name in (
      (published, 'model_dir', 'run'), (tmp_path / 'run', 'jax_export', 'x'),
      (tmp_path / 'x', 'sentence_transformers', 'st'),
  ):
    convert.main(
        [str(source), f'--to={form}', f'--output_dir={tmp_path / name}']
    )
  for dim in 24, 8:
    theirs = sentence_transformers.SentenceTransformer(
        str(published), truncate_dim=dim, device='cpu'
    )
    ours = dualenc_jax.Retriever.from_dir(tmp_path / 'st', dim=dim)
    for one, other in (
        (ours.encode_queries(texts), theirs.encode_query(texts)),
        (ours.encode_passages(texts), theirs.encode_document(texts)),
    ):
      other /= np.linalg.norm(other, axis=1, keepdims=True)
      np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize('kind', ['embedding_gemma2', 't5gemma', 't5gemma2'])
def test_sentence_transformers_opens_other_kinds(vocabulary, tmp_path, kind):
  """`convert` compares the vectors of both."""
  KINDS[kind]()[0].save_pretrained(tmp_path / 'theirs')
  gemma_models.add_tokenizer(tmp_path / 'theirs', vocabulary)
  weights = hugging_face.read(tmp_path / 'theirs')
  if not weights.has_projection:
    kernel = np.random.default_rng(0).normal(size=(24, 20)).astype(np.float32)
    tensors = {
        **weights.tensors,
        'projection/kernel': tiny_weights.tensor('projection', kernel),
    }
    weights = dataclasses.replace(weights, tensors=tensors)
    hugging_face.write(weights, tmp_path / 'whole')
  source = tmp_path / ('theirs' if kind == 'embedding_gemma2' else 'whole')
  run = str(source), '--to=sentence_transformers', f'--output_dir={source}_st'
  if kind == 't5gemma2':
    with pytest.raises(UserError, match='only with a processor of pictures'):
      convert.main(run)
  else:
    convert.main(run)


@pytest.mark.nightly
def test_a_run_from_it_keeps_bos_and_the_chain(published, tmp_path):
  """It trains adapters, which the folder that ships has in its kernels."""
  start = tmp_path / 'start'
  convert.main([
      str(published), '--to=model_dir', f'--output_dir={start}', '--no-verify'
  ])
  flags = [
      f'--gin_file={start / "config.gin"}',
      *(f for f in tiny_run.pairs_flags(tmp_path) if 'VOCAB' not in f),
      '--gin.BATCH_SIZE=16', '--gin.STEPS=1', '--gin.EVAL_EVERY=0',
  ]
  model = tmp_path / 'model'
  run = f'--gin.INITIAL_CHECKPOINT_PATH={published}', f'--model_dir={model}'
  with pytest.raises(UserError, match='encoder.window of this model is .2, 2'):
    train.main([*flags, *run, '--gin.models.GemmaEncoder.window=(2, 2)'])
  with pytest.raises(UserError, match='reads texts with add_bos=True'):
    train.main([*flags, *run, '--gin.data.Vocabulary.add_bos=False'])
  train.main([
      *flags, *run, '--gin.LORA_RANK=2', '--gin_file=optimizers/adamw.gin',
      '--gin.LEARNING_RATE=1e-2', '--gin.STEPS=2',
  ])
  tokenizer = loading.load_model_dir(model).tokenizer
  assert tokenizer.encode_queries(['a']).row(0)[0] == 2

  out = tmp_path / 'out'
  convert.main([
      str(model), '--to=sentence_transformers', f'--output_dir={out}'
  ])
  before, after = (
      safetensors.numpy.load_file(folder / 'model.safetensors')
      for folder in (published, out)
  )
  changed = {
      name.split('.')[-2] for name, tensor in before.items()
      if not np.array_equal(tensor, after[name])
  }
  assert before.keys() == after.keys()
  assert changed == {'q_proj', 'v_proj', 'gate_proj', 'up_proj', 'down_proj'}


@pytest.fixture(scope='module')
def saved(vocabulary, tmp_path_factory):
  """A folder of a bidirectional Gemma 3; never changed."""
  folder = tmp_path_factory.mktemp('saved') / 'model'
  gemma_models.gemma3()[0].save_pretrained(folder)
  gemma_models.add_tokenizer(folder, vocabulary)
  return folder


LOCAL = {'rope_type': 'linear', 'factor': 2.0, 'rope_theta': 1e4}
YARN = {'rope_type': 'yarn', 'rope_theta': 1e6}


@pytest.mark.parametrize(
    'changes, expected',
    [
        ({'altup_num_inputs': 4}, 'altup_num_inputs is an unknown setting'),
        ({'use_bidirectional_attention': False}, 'False; expected True'),
        ({'hidden_activation': 'silu'}, "'silu'; expected 'gelu_pytorch_tanh'"),
        ({'rope_parameters': {'full_attention': YARN}}, "'yarn'; expected 'd"),
        ({'rope_parameters': {'sliding_attention': LOCAL}}, "'linear'; expect"),
        ({'rope_parameters': {'mixed': YARN}}, 'rope_parameters has mixed'),
        ({'layer_types': ['full_attention', 'sliding_attention']}, 'er_types'),
        ({'layer_types': None, 'sliding_window_pattern': 0}, '0; expected 1'),
        ({'num_key_value_heads': 2}, 'num_kv_heads is 2; expected a divisor'),
        ({'num_hidden_layers': 2, 'layer_types': None}, 'layers.2.* of no use'),
        ({'sliding_window': None}, 'sliding_window is None; expected a whole'),
        ({'max_position_embeddings': 30}, 'positions for texts of 30 tokens'),
    ],
)
def test_another_config(saved, tmp_path, changes, expected):
  folder = shutil.copytree(saved, tmp_path / 'model')
  path = folder / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))
  with pytest.raises(UserError, match=expected):
    make_tokenizer(hugging_face.read(folder))


def test_the_keys_of_older_files(saved, tmp_path):
  """A window by its pattern, positions by their bases, keys of generation."""
  folder = shutil.copytree(saved, tmp_path / 'model')
  path = folder / 'config.json'
  config = json.loads(path.read_text())
  for name in 'layer_types', 'rope_parameters':
    del config[name]
  config |= {
      'sliding_window_pattern': 2, 'rope_theta': 1e6, 'top_k': 50,
      'rope_local_base_freq': 5e3, 'pruned_heads': {}, 'dtype': 'bfloat16',
      'rope_scaling': {'type': 'linear', 'factor': 8.0},
  }
  path.write_text(json.dumps(config))
  settings = [hugging_face.read(x).settings() for x in (folder, saved)]
  assert settings[0] == settings[1]


def test_other_tokens(saved, tmp_path):
  folder = shutil.copytree(saved, tmp_path / 'model')
  gemma_models.write_vocabulary(
      folder / 'tokenizer.model', pad_id=1, eos_id=2, bos_id=0,
  )
  with pytest.raises(UserError, match=r'ids .pad, eos. .1, 2.; expected .0, 1'):
    make_tokenizer(hugging_face.read(folder)).vocabulary.size
  (folder / 'tokenizer.model').unlink()
  with pytest.raises(UserError, match='comes without a SentencePiece file'):
    make_tokenizer(hugging_face.read(folder))
