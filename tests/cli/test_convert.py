"""`dualenc convert`: every way in and out, and what it refuses to write."""

import dataclasses
import os
import pathlib
import shutil
import signal
import time

import numpy as np
import pytest
import small_vocabulary
import tiny_run
import tiny_towers
import tiny_weights
from tiny_weights import assert_same, USAGE

from dualenc_jax import models as models_lib
from dualenc_jax.checkpoints import (
  conversion,
  formats,
  sentence_transformers,
  verification,
)
from dualenc_jax.cli import convert, train
from dualenc_jax.utils.errors import UserError

# Those that are compared in another library.
WITH_TORCH = ('sentence_transformers',)
# Of towers that share nothing, which have all parts, and of others once.
FORMS = [
    ('sde', 'model_dir'),
    *(
        pytest.param(
            'sde' if form == 'hf' else 'ade', form,
            marks=[pytest.mark.slow] * slow,
        )
        for form in sorted(convert.forms())
        for slow in [form in WITH_TORCH]
    ),
]


def weights(apart: bool):
  return tiny_weights.random(tiny_towers.model(apart=apart))


@pytest.fixture(scope='module')
def models(tmp_path_factory) -> pathlib.Path:
  """A folder with the model_dirs `sde` and `ade`."""
  folder = tmp_path_factory.mktemp('models')
  for name, apart in (('sde', False), ('ade', True)):
    convert.write_model_dir(weights(apart), folder / name)
  return folder


def run(source, form, out, *flags) -> pathlib.Path:
  convert.main([str(source), f'--to={form}', f'--output_dir={out}', *flags])
  return out


@pytest.mark.parametrize('name, form', FORMS)
def test_out_and_in_again_is_bit_equal(models, tmp_path, capsys, name, form):
  out = run(models / name, form, tmp_path / 'out')
  printed = capsys.readouterr().out
  if convert.forms()[form].encode:
    assert 'largest cosine difference over 10 texts' in printed
  assert [p.name for p in tmp_path.iterdir()] == ['out']
  back = formats.read(out)
  assert_same(back, weights(name == 'ade'))
  assert dataclasses.replace(back.usage, vocabulary=None) == (
      dataclasses.replace(USAGE, vocabulary=None, pieces=back.usage.pieces)
  )


def test_training_cannot_go_on_in_what_was_converted(models, tmp_path):
  model = shutil.copytree(models / 'sde', tmp_path / 'model')
  flags = [*tiny_run.flags(tmp_path), f'--model_dir={model}']
  sizes = ['num_layers=2', 'num_heads=2', 'head_dim=16', 'mlp_dim=64']
  same = [f'--gin.models.T5Encoder.{size}' for size in sizes]
  same += ['--gin.models.TokenEmbedder.features=32']
  same += [f'--gin.models.Projection.features={tiny_towers.DIM}']
  with pytest.raises(UserError, match='INITIAL_CHECKPOINT_PATH=.*model'):
    train.main([*flags, *same, '--allow_config_change'])
  assert (model / 'checkpoints' / '7' / 'params').is_dir()


def test_a_t5x_encoder_becomes_any_form_without_projection(tmp_path, capsys):
  golden = pathlib.Path(__file__).parents[1] / 'data' / 'golden' / 't5_1_1_tiny'
  vocabulary = small_vocabulary.write(tmp_path / 'small.model')
  source = golden / 't5x_orbax' / 'checkpoint_1000'
  flags = [f'--vocabulary={vocabulary}', '--passage_length=64']
  with pytest.raises(UserError, match='--vocabulary=spiece.model'):
    run(source, 'hf', tmp_path / 'out')
  folder = run(source, 'hf', tmp_path / 'hf', *flags)
  assert 'left out: ' in capsys.readouterr().out
  run(folder, 't5x', tmp_path / 't5x')
  assert_same(formats.read(tmp_path / 't5x'), formats.read(source))


def test_lengths_of_ones_own_and_a_file_as_the_source(models, tmp_path):
  shorter = '--query_length=6', '--passage_length=10'
  for form in ('hf', 'sentence_transformers'):
    folder = run(models / 'sde', form, tmp_path / form, '--no-verify')
    out = run(folder, 'model_dir', tmp_path / f'{form}_again', *shorter)
    usage = formats.read(out).usage
    assert (usage.query_length, usage.passage_length) == (6, 10)
  out = run(
      tmp_path / 'hf' / 'model.safetensors', 'model_dir', tmp_path / 'file',
      *shorter, f'--vocabulary={USAGE.vocabulary}',
  )
  assert_same(formats.read(out), weights(False))


@pytest.mark.slow
def test_what_is_compared_are_the_own_calls_of_the_source(
    models, tmp_path, capsys, monkeypatch
):
  st = 'sentence_transformers'
  folder = run(models / 'sde', st, tmp_path / 'st', '--no-verify')
  out = run(folder, 'model_dir', tmp_path / 'x', '--passage_prefix=text: ')
  assert formats.read(out).usage.passage_prefix == 'text: '
  assert 'no texts were compared' in capsys.readouterr().out
  run(folder, 'model_dir', tmp_path / 'again')
  assert f'the source in {st}: largest cosine' in capsys.readouterr().out
  wrong = {f'{side}_prefix': 'wrong: ' for side in ('query', 'passage')}
  monkeypatch.setattr(sentence_transformers, 'read_prompts', lambda _: wrong)
  with pytest.raises(UserError, match='the source in sentence_tr.*at most 1e'):
    run(folder, 'model_dir', tmp_path / 'wrong')
  assert not (tmp_path / 'wrong').exists()


def test_a_model_dir_knows_its_final_place(models, tmp_path):
  out = run(models / 'sde', 'model_dir', tmp_path / 'out', '--no-verify')
  config = (out / 'config.gin').read_text()
  assert 'partial' not in config and config.startswith('# Made by')
  assert repr(str(out)) in config
  assert repr(str(out / 'vocabulary.model')) in config


@pytest.fixture
def refused(models, tmp_path, monkeypatch):
  """Converts with another writer or encoder, which leaves nothing."""

  def check(message, error=UserError, name='hf', **changes):
    form = dataclasses.replace(conversion.FORMS[name], **changes)
    monkeypatch.setitem(conversion.FORMS, name, form)
    with pytest.raises(error, match=message):
      run(models / 'sde', name, tmp_path / 'out')
    assert not list(tmp_path.iterdir())

  return check


def test_what_is_cut_short_leaves_nothing(refused):
  before = signal.getsignal(signal.SIGTERM)

  def killed(weights, folder):
    (folder / 'half').write_text('written')
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)

  try:
    refused('143', SystemExit, write=killed)
  finally:
    signal.signal(signal.SIGTERM, before)


def test_what_does_not_encode_the_same_is_not_written(refused):
  encode = conversion.FORMS['jax_export'].encode

  def slightly_off(folder):
    def wrong(texts):
      vectors = encode(folder)(texts)
      # Of queries alone: 3e-4 of their length, away from themselves.
      vectors[0] += 3e-4 * np.roll(vectors[0], 1, axis=1)
      return vectors

    return wrong

  message = r'at most 1e-04. \d texts differ, such as .*Nothing was'
  refused(message, name='jax_export', encode=slightly_off)


def test_sizes_that_no_tensor_shows_are_compared(refused):
  write = conversion.FORMS['hf'].write

  def other_activations(weights, folder):
    encoder = dataclasses.replace(
        weights.encoder, activations=('silu', 'linear')
    )
    write(dataclasses.replace(weights, encoder=encoder), folder)

  message = 'activations is .*, but .*silu.* in the output'
  refused(message, write=other_activations)


def test_a_tensor_that_is_not_the_same_is_named(refused):
  """A square kernel, transposed: no shape tells."""
  write = conversion.FORMS['hf'].write

  def transposes(weights, folder):
    name = 'encoder/layers_1/attention/key/kernel'
    tensors = {**weights.tensors, name: weights.tensors[name].transposed()}
    write(dataclasses.replace(weights, tensors=tensors), folder)

  refused('k.weight differs from .*attention/key', write=transposes)


def test_vectors_that_prove_nothing_are_an_error():
  def compare(*sides):
    sides = [('x', lambda texts, side=side: np.stack(side)) for side in sides]
    verification.compare(sides, ['x'] * 3)

  eye = np.eye(3)
  with pytest.raises(UserError, match='difference over 3 texts nan'):
    compare([eye, eye], [eye, np.full((3, 3), np.nan)])
  for same in ([np.ones((3, 3)), eye], [eye, np.ones((3, 3))]):
    with pytest.raises(UserError, match='All texts have the same vector'):
      compare(same, same)


def test_the_difference_is_of_cosines():
  angle = 0.01
  cos, sin = np.cos(angle), np.sin(angle)
  eye, turned = np.eye(2), np.array([[cos, sin], [-sin, cos]])
  # Queries alone turned: cosines with passages change by sin(angle). All turned
  # alike: no score changes, but each vector does.
  for other, wanted in (([turned, eye], sin), ([turned, turned], 1 - cos)):
    ours, theirs = np.stack([eye, eye]), np.stack(other)
    by_text = verification.cosine_differences(ours, theirs)
    assert by_text.max() == pytest.approx(wanted)


@pytest.mark.parametrize(
    'source, flags, message',
    [
        ('nothing', (), 'does not exist. Expected a model_dir'),
        ('sde', ('--step=3',), 'the step is 3; expected a step'),
        ('sde/checkpoints/7', (), 'Give .*sde, with --step=7'),
    ],
)
def test_bad_input(models, tmp_path, source, flags, message):
  with pytest.raises(UserError, match=message):
    run(models / source, 'hf', tmp_path / 'out', *flags)
  assert not list(tmp_path.iterdir())


def test_a_bag_is_no_program_and_the_error_has_what_saves_one(tmp_path):
  bag = tiny_weights.random(models_lib.DualEncoder(
      models_lib.TokenEmbedder(8000, 8),
      models_lib.T5Encoder(0, 1, 1, 1), models_lib.Projection(6),
  ))
  convert.write_model_dir(bag, tmp_path / 'bag')
  with pytest.raises(UserError, match=r"has no layers.*from_dir\('.*save\("):
    run(tmp_path / 'bag', 'jax_export', tmp_path / 'out')


def test_a_chain_of_projections_is_cut_and_kept_or_refused(tmp_path):
  chain = tiny_weights.random(tiny_towers.model(hidden=(40, 20)))
  convert.write_model_dir(chain, tmp_path / 'chain')
  flags = '--dim=8', '--no-verify'
  out = run(tmp_path / 'chain', 'model_dir', tmp_path / 'cut', *flags)
  kernel = 'projection/kernel'
  columns = chain.tensors[kernel].columns(8)
  assert_same(
      formats.read(out),
      dataclasses.replace(chain, tensors={**chain.tensors, kernel: columns}),
  )
  for form in 'hf', 'sentence_transformers':
    assert_same(formats.read(
        run(tmp_path / 'chain', form, tmp_path / form, '--no-verify')
    ), chain)
  with pytest.raises(UserError, match='t5x .* has a chain of projections'):
    run(tmp_path / 'chain', 't5x', tmp_path / 'out')


def test_nothing_is_overwritten(models, tmp_path):
  (tmp_path / 'out').mkdir()
  (tmp_path / 'out' / 'mine.txt').write_text('mine')
  with pytest.raises(UserError, match='exists, and is left as it is'):
    run(models / 'sde', 'hf', tmp_path / 'out')
  assert os.listdir(tmp_path / 'out') == ['mine.txt']


def test_texts_are_compared_where_the_library_is_installed(
    models, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(verification, 'missing', list)
  for flags, said in ((), 'torch, sentence_tr'), (['--no-verify'], ''):
    out = tmp_path / f'out{len(flags)}'
    run(models / 'sde', WITH_TORCH[0], out, *flags)
    assert_same(formats.read(out), weights(False))
    printed = capsys.readouterr().out
    assert said in printed and 'cosine difference' not in printed
