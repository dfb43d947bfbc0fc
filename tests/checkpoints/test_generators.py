"""Generators read from Hugging Face and T5X, against transformers."""

import functools

import hugging_face_models
import jax
import numpy as np
import optax
import pytest
import small_vocabulary
import t5x_files
import tiny_t5
import tiny_training

from dualenc_jax.data.text.tokenizer import Vocabulary
from dualenc_jax.models import (
  DualEncoder,
  encoder_decoder as make_model,
  Projection,
  T5Encoder,
  TokenEmbedder,
)
from dualenc_jax.objectives import Contrastive, Generation
from dualenc_jax.pipelines.generation import generator as generators
from dualenc_jax.training import initial_checkpoint, Optimizer, step as step_lib
from dualenc_jax.utils.errors import UserError

ROWS = 384  # Of the vocabulary of 300 pieces.
SOURCES = np.array([[5, 9, 200, 3, 1], [7, 1, 0, 0, 0]])
TARGETS = np.array([[11, 40, 1], [299, 1, 0]])


@pytest.fixture(scope='module')
def spiece(tmp_path_factory):
  path = tmp_path_factory.mktemp('vocabulary') / 'small.model'
  return small_vocabulary.write(path)


def wanted_logits(theirs):
  inputs = np.concatenate([np.zeros((2, 1), int), TARGETS[:, :-1]], axis=1)
  return tiny_t5.logits_of(theirs.double(), SOURCES, inputs)


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, sources, targets):
  return model.apply({'params': params}, sources, targets)


def logits(model, params):
  return np.asarray(
      apply(model, params, SOURCES.astype(np.int32), TARGETS.astype(np.int32))
  )


def assert_close(found, wanted):
  real, atol = TARGETS != 0, 1e-5 * np.abs(wanted).max()
  np.testing.assert_allclose(found[real], wanted[real], atol=atol)


def test_logits_are_those_of_transformers(theirs, folder, legacy, spiece):
  wanted = wanted_logits(theirs)
  for path, vocabulary, length in ((folder, None, None), (legacy, spiece, 40)):
    generator = generators.load(path, vocabulary, length)
    assert_close(logits(generator.writer.model, generator.params), wanted)
    tokenizer = generator.tokenizer
    assert (tokenizer.query_length, tokenizer.passage_length) == (
        64, length or 512
    )
    assert generator.provenance['run_id']


@pytest.mark.parametrize('name', ['t5_1_1_tiny', 't5_1_0_tiny'])
def test_logits_are_those_of_t5x(name, spiece):
  golden = t5x_files.GOLDEN / name
  reference = np.load(golden / 'reference.npz')
  generator = generators.load(golden / 't5x_orbax', spiece)
  targets = reference['decoder_target']
  found = apply(
      generator.writer.model, generator.params, reference['tokens'], targets
  )
  real = targets != 0
  np.testing.assert_allclose(
      np.asarray(found)[real], reference['logits'][real], atol=1e-5
  )


def objective_of(theirs, rows=ROWS):
  """What `gin/architectures/encoder_decoder.gin` makes of the same sizes."""
  config = theirs.config
  activations = hugging_face_models.ACTIVATIONS[config.feed_forward_proj]
  encoder = T5Encoder(
      config.num_layers, config.num_heads, config.d_kv, config.d_ff, activations
  )
  return Generation(make_model(TokenEmbedder(rows, config.d_model), encoder))


def start(path, objective, vocabulary, **options):
  optimizer = Optimizer(optax.sgd(0.1), lambda step: 0.1)
  abstract = step_lib.plan(
      objective, optimizer, tiny_training.OneDevice(), 0
  ).abstract
  planned = initial_checkpoint.plan_start(
      initial_checkpoint.InitialCheckpoint(str(path), **options),
      objective.facts, Vocabulary(str(vocabulary)), abstract.params,
  )

  def params():
    # In the place of a fresh start, all of which is replaced.
    state = jax.tree.map(
        lambda a: jax.device_put(np.zeros(a.shape, a.dtype), a.sharding),
        abstract,
    )
    return initial_checkpoint.load_start(planned, state).params

  return planned, params


def test_runs_start_from_them(theirs, folder, legacy, spiece):
  wanted = jax.tree.leaves_with_path(generators.load(folder).params)
  for path in (folder, legacy):
    planned, params = start(path, objective_of(theirs), spiece)
    assert 'fresh' not in str(planned) and 'left out' not in str(planned)
    found = jax.tree.leaves_with_path(params())
    for (place, array), (there, expected) in zip(found, wanted, strict=True):
      assert place == there
      np.testing.assert_array_equal(array, expected)
  # A dual encoder starts from their encoder.
  model = objective_of(theirs).model
  towers = DualEncoder(model.token_embedder, model.encoder, Projection(8))
  objective = Contrastive(towers, tiny_training.LOSS, tiny_training.SIMILARITY)
  planned, _ = start(folder, objective, spiece)
  assert 'of decoder' in str(planned)


def test_a_decoder_never_starts_fresh_unasked(theirs, spiece, tmp_path):
  alone = tmp_path / 'encoder'
  feed_forward = theirs.config.feed_forward_proj
  hugging_face_models.model(
      'T5EncoderModel', feed_forward, vocab_size=ROWS
  ).save_pretrained(alone)
  objective = objective_of(theirs)
  with pytest.raises(UserError, match='nothing for decoder/.* Give the'):
    start(alone, objective, spiece)
  rules = (('decoder/.*', None),)
  planned, _ = start(alone, objective, spiece, rules=rules)
  fresh = [n for n, source in planned.sources.items() if source is None]
  assert fresh and all(name.startswith('decoder/') for name in fresh)
  with pytest.raises(UserError, match='has no decoder, so it cannot write'):
    generators.load(alone, spiece)
