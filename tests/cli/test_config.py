"""Gin: files by name from anywhere, flags as in T5X, errors with a hint."""

import argparse
import re

import pytest

from dualenc_jax import losses
from dualenc_jax.cli import config, saved_config, saved_run, train
from dualenc_jax.utils.errors import UserError

RUN = 'runs/quickstart.gin'


def build(*bindings: str, files=(RUN,), paths=()):
  return saved_run.build_experiment(
      list(files), ['MODEL_DIR = "x"', *bindings], list(paths)
  )


def parse(*argv: str) -> argparse.Namespace:
  return config.parse_args(config.make_parser('train', ''), list(argv))


def test_flags_as_in_t5x():
  args = parse(
      '--gin_file=a.gin', '--gin_file=b.gin', '--gin.STEPS=7',
      '--gin.LOSS=@losses.PAIR()', '--gin.TRAIN_FILE=plain text.jsonl',
      '--gin.RATE', '1e-3', '--gin.REMAT=false', '--gin.CALIBRATION=1,0',
      '--gin_search_paths=/p,/q',
  )
  assert args.gin_file == ['a.gin', 'b.gin']
  assert args.gin_search_paths == ['/p', '/q']
  assert args.gin_bindings == [
      'STEPS = 7', 'LOSS = @losses.PAIR()', "TRAIN_FILE = 'plain text.jsonl'",
      'RATE = 1e-3', 'REMAT = False', "CALIBRATION = '1,0'",
  ]


def test_a_loss_is_swapped_by_one_flag():
  assert type(build().objective.loss) is losses.SamToNe
  assert type(build('LOSS = @losses.PAIR()').objective.loss) is losses.PAIR
  swapped = build(files=(RUN, 'losses/samtone_both.gin')).objective.loss
  assert type(swapped) is losses.SamToNe and swapped.both_towers


def test_later_files_and_flags_win(tmp_path, monkeypatch):
  # Files are found by name from any directory.
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'mine.gin').write_text("include 'runs/quickstart.gin'\nSTEPS = 5")
  assert build(files=('mine.gin',), paths=(str(tmp_path),)).steps == 5
  mine = build('STEPS = 6', files=(str(tmp_path / 'mine.gin'),))
  assert mine.steps == 6


def test_the_operative_config_builds_the_same_experiment(tmp_path):
  first = build('losses.SamToNe.margin = 0.02')
  text = config.operative_config()
  saved = tmp_path / 'config.gin'
  saved.write_text(text)
  second = saved_run.build_experiment([str(saved)], [], [])
  assert config.operative_config() == text
  assert second.objective == first.objective
  assert second.objective.loss == losses.SamToNe(margin=0.02)
  assert second.objective.similarity == losses.Similarity(0.1)
  # A binding without a scope reaches what a macro has built.
  changed = saved_run.build_experiment(
      [str(saved)], ['losses.SamToNe.margin = 0.03'], []
  )
  assert changed.objective.loss.margin == 0.03


def test_differences_name_the_binding_and_both_values():
  build()
  old = config.operative_config()
  build('STEPS = 9', 'LOSS = @losses.PAIR()')
  changes = config.differences(old, config.operative_config())
  assert any(c.startswith('STEPS: ') and c.endswith(' -> 9') for c in changes)
  assert any('@losses.SamToNe() -> @losses.PAIR()' in c for c in changes)
  assert not config.differences(old, old.replace("DIR = 'x'", "DIR = 'y'"))


@pytest.mark.parametrize(
    'binding, culprit, hint',
    [
        ('STEP = 3', 'STEP', 'STEPS'),
        ('LOSS = @loses.SamToNe()', 'loses', 'losses'),
        ('LOSS = @losses.Samtone()', 'losses.Samtone', "'SamToNe'"),
        ('LAYOUT = @data.Paked()', 'data.Paked', "'Packed'"),
        ('T5Encoder.num_layers = 1', 'T5Encoder', "'models.T5Encoder'"),
        ('losses.Similarity.temprature = 1', 'temprature', 'temperature'),
        # Of the class that is named, not of all.
        ('data.Packed.num_shape = 2', 'num_shape', "mean 'num_shapes'?"),
    ],
)
def test_a_wrong_name_gets_did_you_mean(binding, culprit, hint):
  with pytest.raises(UserError) as error:
    build(binding)
  message = str(error.value)
  forms = repr(culprit), f'--gin.{culprit}', f'There is no {culprit}'
  assert any(form in message for form in forms), message
  assert 'Did you mean' in message and hint in message, message


def test_a_wrong_file_or_a_wrong_line_is_named(tmp_path):
  with pytest.raises(UserError, match="Did you mean 'losses/samtone.gin'"):
    build(files=(RUN, 'losses/samton.gin'))
  file = tmp_path / 'bad.gin'
  file.write_text(
      'from __gin__ import dynamic_registration\n'
      'from dualenc_jax import losses\n'
      'losses.SamToNe.margn = 1\n'
  )
  with pytest.raises(UserError, match=r'bad\.gin, line 3'):
    build(files=(RUN, str(file)))
  file.write_bytes(b'\xff STEPS = 1')
  with pytest.raises(UserError, match=r'bad\.gin: gin cannot read it: .utf-8'):
    build(files=(RUN, str(file)))
  file.write_text('import json\nLOSS = @json.JSONDecoder()\n')
  with pytest.raises(UserError, match='from __gin__ import dynamic_registr'):
    build(files=(RUN, str(file)))
  with pytest.raises(UserError, match='MODEL_DIR must be given'):
    saved_run.build_experiment([RUN], [], [])


@pytest.mark.parametrize(
    'binding, words',
    [
        ('STEPS = 0', ['steps (STEPS) is 0', 'at least 1']),
        ('STEPS = "x"', ["STEPS is 'x'; expected a whole number"]),
        ('STEPS = None', ['STEPS is None', 'expected a whole number.']),
        ('CLIP_NORM = True', ['CLIP_NORM is True', 'a number or None']),
        ('KEEP_BEST = 3', ['expected a text or None']),
        ('FREEZE = "x"', ['expected a list of texts']),
        ('WATCH_TASKS = "beir"', ['expected a list']),
        ('PROMPTS = "x"', ['expected values by name']),
        ('STRICT = 1', ['expected True or False']),
        ('losses.SamToNe.margin = "x"', ['SamToNe.margin', 'a number']),
        ('OPTIMIZER = "adam"', ["transform (OPTIMIZER) is 'adam'", '@optax']),
        ('MODEL = 3', ['model (MODEL) is 3', '@models.DualEncoder()']),
        ('VOCAB_SIZE = 512', ['512 rows', '8000 pieces', '8000,']),
        ('TEMPERATURE = 0', ['temperature (TEMPERATURE) is 0', 'above 0']),
        ('LOSS = @losses.PAIR', ['class PAIR', '()']),
        ('STEPS = (1', ['--gin.STEPS = (1: a bracket or a quote is not']),
        ('LR_MULTIPLIERS = ((".*", "x"),)', ["'x'", 'expected pairs']),
    ],
)
def test_bad_values_are_explained(binding, words):
  with pytest.raises(UserError) as error:
    build(binding)
  for word in words:
    assert word in str(error.value)
  assert 'In call to' not in str(error.value)


def test_all_that_is_wrong_is_told_at_once(tmp_path):
  file = tmp_path / 'mine.gin'
  file.write_text(f"include '{RUN}'\n\nBATCH_SIZE = 'all'\n")
  with pytest.raises(UserError) as error:
    saved_run.build_experiment([str(file)], ['STEP = 3', 'SEED = "x"'], [])
  assert str(error.value).splitlines() == [
      'MODEL_DIR must be given; for example --gin.MODEL_DIR=VALUE.',
      '--gin.STEP: no gin file given uses the macro STEP. Did you mean'
      " 'STEPS'?",
      "BATCH_SIZE is 'all'; expected a whole number.",
      "SEED is 'x'; expected a whole number.",
  ]


@pytest.mark.parametrize(
    'binding, hint',
    [
        ('losses.InBatchSoftmax.margin = 0.1', 'losses.SamToNe.margin'),
        ('passage/models.T5Encoder.num_layers = 2', 'models.T5Encoder'),
    ],
)
def test_a_flag_without_effect_is_refused(binding, hint):
  with pytest.raises(UserError, match='has no effect') as error:
    build(binding)
  assert hint in str(error.value)


def build_run(*flags: str):
  """The experiment as `dualenc train` and `dualenc check` build it."""
  args = parse(f'--gin_file={RUN}', *flags)
  args.model_dir = 'x'
  return train.build(args)


def test_flags_reach_a_loss_of_ones_own(tmp_path, monkeypatch):
  (tmp_path / 'my_losses.py').write_text(
      'from dualenc_jax import losses\n\n'
      'class Mine(losses.InBatchSoftmax):\n'
      '  pass\n'
  )
  (tmp_path / 'mine.gin').write_text(
      'from __gin__ import dynamic_registration\n'
      'import my_losses\n'
      'LOSS = @my_losses.Mine()\n'
  )
  monkeypatch.syspath_prepend(str(tmp_path))
  mine = f'--gin_file={tmp_path / "mine.gin"}'
  assert build_run(mine).objective.similarity == losses.Similarity(0.1)
  found = build_run(
      mine, '--gin.LOSS_IMPLEMENTATION=ring', '--gin.TEMPERATURE=0.2'
  ).objective
  assert [base.__name__ for base in type(found.loss).__mro__].count('Mine')
  assert found.similarity == losses.Similarity(0.2, 'ring')


@pytest.mark.parametrize(
    'given, unread',
    [
        (['--gin.losses.Similarity.temperature=0.2'], '--gin.TEMPERATURE=0.1'),
        (
            ['--gin_file=objectives/negative_cache.gin'],
            '--gin_file=losses/matryoshka.gin',
        ),
    ],
)
def test_what_nothing_reads_is_refused(given, unread):
  build_run(*given)
  is_file = 'gin_file' in unread
  name = unread.split('=')[is_file]
  with pytest.raises(UserError, match=f'{name} has no effect'):
    # Of two files it is the first that the second replaces.
    build_run(*([unread, *given] if is_file else [*given, unread]))


def test_a_damaged_config(tmp_path):
  (tmp_path / 'checkpoints/3').mkdir(parents=True)
  saved_config.check(str(tmp_path), '', False)
  (tmp_path / 'config.gin').write_text('STEPS = 2\n@@@ garbage (((\n')
  with pytest.raises(UserError, match=r'config\.gin has another config'):
    saved_config.check(str(tmp_path), 'STEPS = 3\n', False)
  with pytest.raises(UserError, match=r'config\.gin: gin cannot read it'):
    saved_run.load(str(tmp_path))


@pytest.mark.parametrize(
    'file, is_recipe, words',
    [
        ('runs/quickstart.gin', True, 'has no recipe; give one'),
        ('recipes/pair.gin', False, 'is a recipe: run it by `dualenc recipe`'),
    ],
)
def test_recipes_and_runs_are_told_apart(file, is_recipe, words):
  with pytest.raises(UserError, match=f'--gin_file={file} {words}'):
    config.load([file], [], [], is_recipe)


def test_the_file_of_a_macro_is_named():
  said = r'TRAIN_FILE\. It is of --gin_file=tasks/pairs'
  with pytest.raises(UserError, match=said):
    build('TRAIN_FILE = "x"')


def test_a_config_of_before_modules_moved_and_parameters_went(tmp_path):
  path = tmp_path / 'config.gin'
  path.write_text(
      'from __gin__ import dynamic_registration\n'
      'from dualenc_jax import readers\nfrom dualenc_jax import run\n'
      'from dualenc_jax import training\n'
      'run.Experiment.steps = 3\nrun.Experiment.eval_queries = 1000\n'
      'run.UntilAligned.k = 1\nTASK = @readers.Pairs()\n'
  )
  config.load([str(path)], [], [])
  assert 'training.Experiment.steps = 3' in saved_config.read(path)


@pytest.mark.parametrize('file', ['objectives/matching', 'architectures/ade'])
@pytest.mark.parametrize('model', ['tiny', 'gemma/tiny'])
def test_another_tower_after_the_config_of_a_run(tmp_path, model, file):
  """A run saves only the macros that it has used, and older ones had none."""
  encoder = build(files=(RUN, f'models/{model}.gin')).objective.model.encoder
  saved = config.operative_config()
  assert 'QUERY_ENCODER' not in saved
  older = re.sub(r'^ENCODER = .*\n', '', saved, flags=re.MULTILINE)
  older = older.replace('%ENCODER', '@models.T5Encoder()')
  path = tmp_path / 'config.gin'
  for text in (saved, *([older] if model == 'tiny' else [])):
    path.write_text(text)
    towers = build(files=(str(path), f'{file}.gin')).objective.model
    assert towers.passage_encoder == encoder
    assert type(towers.encoder) is type(encoder)


@pytest.mark.parametrize(
    'form, flags',
    [('paper', (True, True, False)), ('released', (False, True, True))],
)
def test_names_of_older_losses_and_objectives(form, flags):
  names = 'passages', 'positive', 'queries'
  text = '\n'.join(
      f'losses.PAIR.{name}_in_denominator = {flag}'
      for name, flag in zip(names, flags)
  )
  text += (
      '\nlosses.Hashed.dense = @losses.PAIR()\n'
      'losses.Similarity.check_norms = False\n'
      'OBJECTIVE = @objectives.TaughtPq()\n'
  )
  assert config.update_names(text) == (
      f"losses.PAIR.form = '{form}'\nlosses.Hashed.loss = @losses.PAIR()\n"
      'OBJECTIVE = @objectives.DistilledPQ()\n'
  )
