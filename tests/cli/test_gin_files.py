"""Every shipped gin file resolves, and every run file makes a step."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_run

from dualenc_jax.cli import config, main as cli, saved_run, train
from dualenc_jax.pipelines.recipes import Recipe, sweep
from dualenc_jax.training import memory
from dualenc_jax.training.experiment import make_plan, make_start

FILES = config.shipped_files()
RECIPES = [f for f in FILES if f.startswith('recipes/')]
# Of the runs on slices that in micro-batches stands for all; test_papers.py has
# those of papers.
RUNS = [
    f for f in FILES if f.startswith('runs/') and f != 'runs/base.gin'
    and not f.startswith('runs/papers/')
    and (not f.startswith('runs/tpu') or 'million' in f)
]
# Sizes of the papers: E, layers, heads, head_dim, MLP.
SIZES = {
    'mini': (256, 4, 4, 64, 512),
    't5_1_1/small': (512, 8, 6, 64, 1024),
    't5_1_1/base': (768, 12, 12, 64, 2048),
    't5_1_1/large': (1024, 24, 16, 64, 2816),
    't5_1_1/xl': (2048, 24, 32, 64, 5120),
    't5_1_1/xxl': (4096, 24, 64, 64, 10240),
    't5_1_0/base': (768, 12, 12, 64, 3072),
    'umt5/small': (512, 8, 6, 64, 1024),
    'umt5/xl': (2048, 24, 32, 64, 5120),
}


def build(*files: str, bindings=()):
  return saved_run.build_experiment(
      ['runs/quickstart.gin', *files],
      [
          'MODEL_DIR = "x"',
          'VOCABULARY = "python_code_8k"',
          'VOCAB_SIZE = 8064',
          *(['TASK_NAME = "my_task"'] if 'tasks/seqio.gin' in files else []),
          # The vocabulary has T5's tokens.
          'data.Vocabulary.add_bos = False', 'data.Vocabulary.add_eos = True',
          *bindings,
      ],
      [],
  )


@pytest.mark.parametrize(
    'file', sorted({*FILES} - {'runs/base.gin', 'commands/data.gin', *RECIPES})
)
def test_every_file_resolves(file):
  assert build(file).objective.model is not None


@pytest.mark.parametrize('file', RECIPES)
def test_every_recipe_resolves(file):
  names = ['TRAIN_FILE', 'VALIDATION_FILE', 'VOCABULARY']
  names += ['UNLABELLED'] * ('pair' in file)
  names += ['CHECKPOINT'] * ('samtone' in file or 'dual' in file)
  names += ['CORPUS', 'CORPUS_FILE'] * ('/g' in file)
  names += ['QUERY_LAYERS'] * ('daft_' in file)
  values = {'QUERY_LAYERS': '{QUERY_LAYERS}'}  # The place of a sweep.
  bindings = [f'{n} = "{values.get(n, "x")}"' for n in names]
  bindings.append('VOCAB_SIZE = 8064')
  config.load([file], bindings, is_recipe=True)
  recipe = config.build(Recipe)
  recipe = sweep(recipe, recipe.sweeps)
  for stage in recipe.stages.values():
    assert stage.command in cli.COMMANDS
    # The config of a model that another stage has trained is a gin file, too.
    configs = {f'{{{name}.config}}' for name in ('teacher', 'dense', 'source')}
    assert {*stage.values('gin_file')} <= {*FILES, *configs}


@pytest.mark.parametrize('name, size', SIZES.items())
def test_model_files_have_the_real_sizes(name, size):
  model = build(f'models/{name}.gin').objective.model
  encoder = model.encoder
  assert size == (
      model.token_embedder.features, encoder.num_layers, encoder.num_heads,
      encoder.head_dim, encoder.mlp_dim,
  )
  assert encoder.activations == (
      ('relu',) if '1_0' in name else ('gelu', 'linear')
  )
  assert encoder.bias_per_layer == ('umt5' in name)


@pytest.mark.parametrize('name', ['t5_1_0/base', 'bag'])
def test_a_generator_has_a_decoder_of_the_encoders_sizes(name):
  files = f'models/{name}.gin', 'architectures/encoder_decoder.gin'
  model = build(*files, bindings=['DROPOUT_RATE = 0.3']).objective.model
  encoder, decoder = model.encoder, model.decoder
  assert decoder.features == model.token_embedder.features
  assert decoder.num_layers == max(encoder.num_layers, 1)
  for size in 'num_heads head_dim mlp_dim activations dropout_rate'.split():
    assert getattr(decoder, size) == getattr(encoder, size)
  assert encoder.dropout_rate == 0.3
  assert decoder.vocab_size == (None if '1_0' in name else 8064)


@pytest.mark.parametrize(
    'name, own, frozen',
    [
        ('sde', [], 0),
        ('ade', ['token_embedder', 'encoder', 'projection'], 0),
        ('ade_ste', ['encoder', 'projection'], 0),
        ('ade_fte', ['token_embedder', 'encoder', 'projection'], 1),
        ('ade_spl', ['token_embedder', 'encoder'], 0),
    ],
)
def test_architecture_files_share_what_their_names_say(
    name, own, frozen, caplog
):
  # Whatever architecture was set before leaves no trace.
  for before in ('architectures/ade.gin', 'architectures/ade_fte.gin'):
    experiment = build(before, f'architectures/{name}.gin')
    parts = ['token_embedder', 'encoder', 'projection']
    assert own == [
        p for p in parts if getattr(experiment.objective.model, f'passage_{p}')
    ]
    assert len(experiment.optimizer.freeze) == frozen
  make_start(make_plan(experiment), experiment)
  random = 'passage_token_embedder/embedding, token_embedder/embedding: random'
  assert (random in caplog.text) == frozen


def test_matryoshka_wraps_the_loss_whichever_file_comes_first():
  both = 'losses/matryoshka.gin', 'losses/samtone.gin'
  for files in (both, both[::-1]):
    loss = build(*files).objective.loss
    names = type(loss).__name__, type(loss.loss).__name__
    assert names == ('Matryoshka', 'SamToNe')


def test_hardness_is_of_whichever_loss_is_chosen():
  for name in ('softmax', 'samtone', 'pair'):
    both = 'losses/hardness.gin', f'losses/{name}.gin'
    for files in (both, both[::-1]):
      loss = build(*files, bindings=['HARDNESS_STRENGTH = 9.0']).objective.loss
      assert (loss.hardness, loss.hardness_strength) == ('hard_negatives', 9.0)


def test_layers_grow_on_both_towers():
  made = build('models/grown.gin', 'architectures/ade.gin')
  ((pattern, start),) = made.initial_checkpoint.rules
  for tower in ('encoder', 'passage_encoder'):
    assert re.fullmatch(pattern, f'{tower}/layers_0/mlp/wo/kernel')
    assert not re.fullmatch(pattern, f'{tower}/encoder_norm/scale')
  assert start is None


@pytest.mark.parametrize('run', RUNS)
def test_every_run_file_makes_a_step(run, tmp_path):
  """Lowered, not compiled: what is in them is trained in other tests."""
  tiny = [*tiny_run.flags(tmp_path, run=run), f'--model_dir={tmp_path}']
  if run.startswith('runs/tpu/'):
    tiny += ['--gin.MICRO_BATCH_SIZE=8']
  made = train.build(config.parse_args(train.make_parser(), tiny))
  lowered = memory.lower_step(made)
  state, metrics = lowered.out_info
  assert state.step.shape == metrics['loss'].shape == ()


@pytest.mark.parametrize(
    'file', [f for f in FILES if f.startswith('optimizers/')]
)
def test_every_optimizer_moves_the_parameters(file):
  params = {'kernel': jnp.ones((4, 4)), 'scale': jnp.ones(4)}
  transform = build(file).optimizer.build(params)
  updates, _ = transform.update(params, transform.init(params), params)
  for update in jax.tree.leaves(updates):
    assert (update < 0).all() and np.isfinite(update).all()
