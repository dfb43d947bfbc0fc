"""Runs with LoRA: what they save, how they resume, and who reads them."""

import json
import shutil

import interrupted
import numpy as np
import pytest
import shared_runs
import tiny_evaluation
import tiny_run

from dualenc_jax.checkpoints import checkpoint_reader, formats, loading
from dualenc_jax.cli import check, convert, evaluate, train
from dualenc_jax.pipelines.generation import generator
from dualenc_jax.utils.errors import UserError

LORA = (
    '--gin.LORA_RANK=3', '--gin.LORA_ALPHA=6', '--gin.LORA_DROPOUT=0.1',
    '--gin_file=optimizers/adamw.gin', '--gin.LEARNING_RATE=1e-2',
)
STEPS = 4


def flags(base, model_dir, *more):
  return [
      *tiny_evaluation.training_flags(*LORA), f'--gin.STEPS={STEPS}',
      '--gin.CHECKPOINT_EVERY=2', f'--gin.INITIAL_CHECKPOINT_PATH={base}',
      '--gin.EVAL_EVERY=2', f'--model_dir={model_dir}', *more,
  ]


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """The folder of a base, `base`, and of adapters on it, `model`."""
  folder = tmp_path_factory.mktemp('lora')
  tiny_evaluation.copy_model(folder / 'base')
  train.main(flags(folder / 'base', folder / 'model'))
  return folder


def tensors(folder):
  return {n: t.read() for n, t in formats.read(folder).tensors.items()}


def test_a_checkpoint_has_adapters_and_folds_them_in(runs, tmp_path):
  saved = interrupted.item(runs / 'model', STEPS, 'params')
  assert {name.split('/')[0] for name in saved} == {'lora', 'projection'}
  optimizer = interrupted.item(runs / 'model', STEPS, 'optimizer')
  assert not any('embedding' in name for name in optimizer)

  base, found = tensors(runs / 'base'), tensors(runs / 'model')
  assert base.keys() == found.keys()
  changed = 0
  for name, array in found.items():
    if name.startswith('projection'):
      np.testing.assert_array_equal(array, saved[name])
      continue
    a, b = (
        saved.get(f'lora/{name.removesuffix("kernel")}lora_{x}') for x in 'ab'
    )
    expected = base[name]
    if a is not None:
      expected = expected + 6 / 3 * a.astype(np.float64) @ b
      assert np.abs(expected - base[name]).max() > 1e-4
      changed += 1
    np.testing.assert_allclose(array, expected, rtol=0, atol=1e-6)
  assert changed == 5

  # A model of its own, bit for bit, that needs no base.
  convert.main([
      str(runs / 'model'), '--to=model_dir', f'--output_dir={tmp_path / "all"}'
  ])
  for name, array in tensors(tmp_path / 'all').items():
    np.testing.assert_array_equal(array, found[name], err_msg=name)


def test_a_run_evaluates_as_its_files_do(runs, tmp_path):
  """In training adapters are beside their kernels, afterwards in them."""
  evaluate.main([
      f'--model_dir={runs / "model"}', '--split=validation', '--no_baselines',
      f'--output_dir={tmp_path}',
  ])
  lines = (runs / 'model/metrics.jsonl').read_text().splitlines()
  logged = [json.loads(x) for x in lines]
  last = [x for x in logged if x['group'] == 'validation'][-1]
  found = tiny_evaluation.result_of(tmp_path)['metrics']
  assert last['step'] == STEPS
  assert last['nDCG@10'] == pytest.approx(found['nDCG@10'], abs=1e-8)


def test_a_run_resumes_bit_for_bit(runs, tmp_path):
  resumed = shutil.copytree(runs / 'model', tmp_path / 'model')
  shutil.rmtree(resumed / f'checkpoints/{STEPS}')
  train.main(flags(runs / 'base', resumed))
  one, other = (
      interrupted.saved(run, STEPS) for run in (runs / 'model', resumed)
  )
  assert one.keys() == other.keys() and len(one) > 20
  for name, array in one.items():
    np.testing.assert_array_equal(array, other[name], err_msg=name)


def test_another_base_is_refused(runs, tmp_path):
  model = shutil.copytree(runs / 'model', tmp_path / 'model')
  other = tiny_evaluation.write_random(tmp_path / 'other')
  with pytest.raises(UserError, match='adapters on another base.*other: .*not'):
    train.main([
        *flags(other, model), '--gin.STEPS=5', '--allow_config_change'
    ])
  # It is found beside the checkpoints, too.
  (model / 'base').symlink_to(other)
  with pytest.raises(UserError, match='adapters on another base.*unchanged'):
    loading.load_model_dir(model)
  (model / 'base').unlink()
  (model / 'base').symlink_to(runs / 'base')
  assert tensors(model).keys() == tensors(runs / 'model').keys()


def test_a_base_that_is_gone_is_named(runs, tmp_path):
  base = tiny_evaluation.copy_model(tmp_path / 'base')
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(tmp_path)
    # A path of the working directory is kept whole.
    train.main(flags('base', tmp_path / 'model', '--gin.STEPS=1'))
  assert tensors(tmp_path / 'model')
  base.rename(tmp_path / 'moved')
  with pytest.raises(UserError, match='base, .*/base, does not exist. Move it'):
    formats.read(tmp_path / 'model')


@pytest.mark.parametrize(
    'make, more, run, kernels, heads',
    [
        pytest.param(
            shared_runs.cross_encoder,
            ('--gin_file=architectures/cross_encoder.gin',
             '--gin.PAIR_LENGTH=48', '--gin.NUM_NEGATIVES=1'),
            'runs/finetune.gin', 5, {'head'}, id='cross-encoder',
            marks=pytest.mark.nightly,
        ),
        # Attention to the source has a query and values, too.
        pytest.param(
            shared_runs.generator, (), 'runs/doc2query.gin', 12, set(),
            id='generator', marks=pytest.mark.nightly,
        ),
    ],
)
def test_other_models_have_adapters(make, more, run, kernels, heads, tmp_path):
  base, model = make(), tmp_path / 'model'
  train.main([
      *tiny_run.flags(tmp_path, *more, *LORA, run=run),
      f'--gin.INITIAL_CHECKPOINT_PATH={base}', f'--model_dir={model}',
  ])
  saved = interrupted.item(model, 2, 'params')
  own = {name for name in saved if name.endswith('lora_a')}
  assert len(own) == kernels
  assert {name.split('/')[0] for name in saved} == {'lora', *heads}
  one, other = (
      checkpoint_reader.restore(folder, None, lambda c: c.tensors)
      for folder in (base, model)
  )
  assert one.keys() == other.keys()
  changed = {
      name for name in one
      if not np.array_equal(one[name].read(), other[name].read())
  }
  assert changed == {
      name.removeprefix('lora/').replace('lora_a', 'kernel') for name in own
  } | {name for name in saved if name.split('/')[0] in heads}
  if heads:
    loading.load_teacher(model)
  else:
    generator.load(model)


@pytest.mark.parametrize(
    'more, said',
    [
        (
            ['--gin.INITIAL_CHECKPOINT_PATH=None'],
            'LORA_RANK is 3, but INITIAL_CHECKPOINT_PATH is None: expected',
        ),
        (
            [
                '--gin.INITIAL_CHECKPOINT_RULES='
                "(('encoder/.*norm/scale', None),)",
                "--gin.INITIAL_CHECKPOINT_DROP=('encoder/.*norm/scale',)",
            ],
            'encoder/encoder_norm/scale.*: random, and never trained',
        ),
        (
            ['--gin.QUERY_CHECKPOINT_PATH=other'],
            'LORA_RANK and QUERY_CHECKPOINT_PATH are given',
        ),
        (
            ['--gin.models.T5Encoder.num_layers=0'],
            'LORA_TARGETS.*matches no parameter',
        ),
        (
            ['--gin_file=optimizers/adafactor.gin'],
            'OPTIMIZER takes steps in proportion to a parameter',
        ),
    ],
)
def test_runs_that_cannot_learn_are_refused(runs, more, said):
  given = flags(runs / 'base', 'unused', *more, '--no_compile')
  with pytest.raises(UserError, match=said):
    check.main(given)


@pytest.mark.nightly
def test_check_has_memory_by_part(runs, capsys):
  check.main(flags(runs / 'base', 'unused'))
  said = capsys.readouterr().out
  assert 'LoRA: rank 3, alpha / rank 2, dropout 0.1: adapters of 5' in said
  table = said.partition('Compiled memory')[2]
  size = {
      line.split('  ')[1].strip(): line.split()[-1]
      for line in table.splitlines()[1:] if '  ' in line
  }
  # Table [8064, 128], 4 kernels of attention [128, 128], 3 of the MLP
  # [128, 256], 3 norms and 4 heads of 32 buckets.
  base = 8064 * 128 + 4 * 128**2 + 3 * 128 * 256 + 3 * 128 + 4 * 32
  adapters = 3 * (2 * 256 + 3 * 384)
  heads = 128 * 128
  for name, count in (
      ('base', base), ('adapters', adapters), ('heads', heads),
      ('optimizer state', 2 * (adapters + heads)),
  ):
    assert float(size[name].replace(',', '')) == round(4 * count / 2**20, 1)
