"""The papers' settings: numbers of what `runs/papers/` builds, and a check."""

import math
import re
import shlex
from typing import Any

import numpy as np
import pytest
import shared_runs
import test_teacher_columns
import tiny_evaluation
import tiny_run

from dualenc_jax import losses
from dualenc_jax.cli import check, config, encode, recipe, saved_run, train

FOLDER = 'runs/papers/'
FILES = [file for file in config.shipped_files() if file.startswith(FOLDER)]
ONE_WAY = losses.InBatchSoftmax(bidirectional=False)
LAMB, ADAM, ADAFACTOR = 'lamb', 'adam', 'adafactor'
# Of every file: steps, pairs; steps of warm-up (None for a rate that falls from
# step 0 on, 0 for a constant one) and the peak; optimizer, weight decay,
# largest norm of the gradient; tokens of query and passage; hard negatives,
# temperature.
NUMBERS = {
    'samtone': (
        20000, 512, None, 1e-3, ADAFACTOR, 0, None, 64, 256, 0, 0.01
    ),
    'dong': (20000, 512, None, 1e-3, ADAFACTOR, 0, None, 64, 256, 0, 0.01),
    'pair_teacher': (20956, 48, 0, 1e-5, ADAM, 0.01, 1, 64, 256, 4, None),
    'pair_msmarco_pretraining': (
        4395, 4096, 439, 3e-5, LAMB, 0.01, 1, 32, 128, 4, 0.01
    ),
    'pair_msmarco_finetuning': (
        1228, 4096, 122, 3e-5, LAMB, 0.01, 1, 32, 128, 4, 0.01
    ),
    'pair_nq_pretraining': (
        4395, 4096, 439, 3e-5, ADAM, 0, 1, 32, 128, 4, 0.01
    ),
    'pair_nq_finetuning': (1149, 512, 114, 3e-5, ADAM, 0, 1, 32, 128, 4, 0.01),
    'daft_alignment': (110992, 48, 1000, 1e-5, ADAM, 0, None, 64, 256, 0, 0.05),
    'bpr': (
        18379, 128, 1102, 2e-5, ADAM, 0, 2, 256, 256, 1, 1 / math.sqrt(768)
    ),
    'bpr_thakur': (
        50000, 75, 1000, 2e-5, ADAM, 0.01, 1, 350, 350, 1, 1 / math.sqrt(768)
    ),
    'jpq': (94302, 32, 2000, 5e-6, ADAM, 0, 1, 32, 256, 0, 0.05),
    'jpq_genq': (977, 256, 97, 5e-6, ADAM, 0, 1, 64, 350, 0, 0.05),
    'jpq_gpl': (45000, 32, 1000, 5e-6, ADAM, 0, 1, 350, 350, 0, 0.05),
    'gpl': (140000, 32, 1000, 2e-5, ADAM, 0.01, 1, 350, 350, 1, 0.05),
    'gpl_thakur': (45000, 32, 1000, 2e-5, ADAM, 0.01, 1, 350, 350, 1, 0.05),
    'genq': (3334, 75, 333, 2e-5, ADAM, 0.01, 1, 350, 350, 0, 0.05),
}
# Other files with the numbers of one above.
NUMBERS |= {
    name: NUMBERS[of] for name, of in {
        'samtone_pair': 'samtone', 'daft_finetuning': 'daft_alignment',
        'jpq_32': 'jpq', 'jpq_16': 'jpq',
    }.items()
}
# Of every file: losses, or attributes of its objective.
OBJECTIVES: dict[str, Any] = {
    'samtone': losses.SamToNe(both_towers=False),
    'samtone_pair': losses.PAIR(alpha=0.1, form='without_positive'),
    'dong': ONE_WAY,
    'pair_teacher': {'loss': losses.Pointwise(), 'num_others': 0},
    'pair_msmarco_pretraining': losses.PAIR(alpha=0.1, bidirectional=False),
    'pair_msmarco_finetuning': ONE_WAY,
    'pair_nq_pretraining': losses.PAIR(alpha=0.1, bidirectional=False),
    'pair_nq_finetuning': ONE_WAY,
    'daft': {'cache_size': 512000, 'top_k': 64, 'sampled': 1},
    'bpr': losses.Hashed(ONE_WAY, alpha=2.0, gamma=0.1),
    'bpr_thakur': losses.Hashed(ONE_WAY, alpha=2.0, gamma=0.1),
    'jpq': {'depth': 200, 'cut': 200},
    'jpq_genq': {'depth': 200, 'cut': 200},
    'jpq_gpl': {'depth': 25},
    'gpl': losses.MarginMSE(),
    'gpl_thakur': losses.MarginMSE(),
    'genq': ONE_WAY,
}


def build(name, *bindings):
  given = (
      'MODEL_DIR = "x"', 'VOCABULARY = "python_code_8k"', 'VOCAB_SIZE = 8064'
  )
  files = [f'{FOLDER}{name}.gin']
  return saved_run.build_experiment(files, [*given, *bindings], [])


def expected_rate(name, step, steps, warm_up, peak):
  """The rate that the paper has at a step."""
  if warm_up is None:
    return peak * (1 - step / steps)
  rising = step / warm_up if warm_up else 1.0
  # DAFT does not say what comes after its warm-up.
  if not warm_up or name.startswith('daft'):
    return peak * min(rising, 1.0)
  return peak * min(rising, (steps - step) / (steps - warm_up))


def first_update(optimizer, decay, params, gradient):
  """The first step of size 1 of an optimizer, by hand."""
  update = np.sign(gradient)
  if optimizer == ADAFACTOR:
    return -update * np.sqrt(np.mean(params**2))
  update = update + decay * params
  if optimizer == LAMB:
    update *= np.linalg.norm(params) / np.linalg.norm(update)
  return -update


def test_every_setting_is_here():
  assert {f'{FOLDER}{name}.gin' for name in NUMBERS} == {*FILES}


@pytest.mark.parametrize('name', NUMBERS)
def test_a_setting_has_the_numbers_of_its_paper(name):
  (
      steps, pairs, warm_up, peak, optimizer, decay, norm, query, passage,
      negatives, temperature,
  ) = NUMBERS[name]
  built = build(name)
  objective, rate = built.objective, built.optimizer.learning_rate
  assert (built.steps, built.batch_size) == (steps, pairs)
  # Rates are of float32, and rise from 1e-9 of the peak.
  for step in (0, 1, 100, 999, 1000, 1001, 2000, 2001, steps // 2, steps):
    if step <= steps:
      wanted = expected_rate(name, step, steps, warm_up, peak)
      assert rate(step) == pytest.approx(wanted, rel=2e-5, abs=1e-8 * peak)
  assert built.optimizer.clip_norm == norm
  tokens = built.tokenizer.query_length, built.tokenizer.passage_length
  assert tokens == (query, passage)
  assert objective.num_negatives == negatives
  if temperature is not None:
    similarity = getattr(objective, 'similarity', objective)
    assert similarity.temperature == pytest.approx(temperature, rel=1e-3)
  own = OBJECTIVES.get(name) or OBJECTIVES[name.partition('_')[0]]
  if isinstance(own, losses.Loss):
    assert objective.loss == own
  else:
    assert own.items() <= vars(objective).items()

  transform = build(
      name, 'SCHEDULE = @optax.constant_schedule()',
      'optax.constant_schedule.value = 1.0',
  ).optimizer.transform
  rng = np.random.default_rng(0)
  params, gradient = rng.normal(size=(2, 4, 4)).astype(np.float32)
  update, _ = transform.update(gradient, transform.init(params), params)
  wanted = first_update(optimizer, decay, params, gradient)
  np.testing.assert_allclose(update, wanted, rtol=2e-5)


def test_what_else_the_papers_have():
  large = build('samtone').objective.model
  assert (large.encoder.num_layers, large.token_embedder.features) == (24, 1024)
  aligned, tuned = map(build, ('daft_alignment', 'daft_finetuning'))
  towers = aligned.objective.model
  assert towers.projection.features == 512
  layers = towers.encoder.num_layers, towers.passage_encoder.num_layers
  assert layers == (2, 12) and towers.passage_projection is None
  until, every = aligned.until, aligned.eval_every
  assert (until.threshold, until.patience, every) == (250, 3, 11099)
  assert aligned.optimizer.freeze and not tuned.optimizer.freeze
  assert aligned.keep_best is None
  assert (tuned.keep_best, tuned.until) == ('nDCG@10', None)
  for name, rate in (('jpq', 1e-4), ('jpq_32', 2e-5), ('jpq_16', 5e-6)):
    ((path, factor),) = build(name).optimizer.multipliers
    assert path == 'codec/score' and factor * 5e-6 == pytest.approx(rate)
  assert build('bpr').objective.model.passage_encoder is not None
  assert build('bpr_thakur').objective.model.passage_encoder is None
  assert build('pair_nq_pretraining').seed == 1
  assert build('pair_teacher').objective.template.length == 160


@pytest.fixture(scope='module')
def dense(tmp_path_factory):
  """A dual encoder and an index of codes by it, for JPQ to start from."""
  folder = tmp_path_factory.mktemp('dense')
  model = tiny_evaluation.write_random(folder / 'model')
  index = f'--index_dir={folder / "index"}'
  encode.main([f'--model_dir={model}', '--codec=pq:8x4', index])
  return folder


@pytest.mark.parametrize('name', [
    pytest.param(n, marks=[pytest.mark.nightly] * (n == 'jpq_gpl'))
    for n in NUMBERS
])
def test_a_setting_passes_the_check_at_tiny_size(
    name, tmp_path, capsys, request
):
  more = ['--gin.MODEL_DIR=x', '--no_compile']
  if name.startswith('daft'):
    more += ['--gin.CACHE_SIZE=64', '--gin.EVAL_EVERY=1']
  if name.startswith('jpq'):
    dense = request.getfixturevalue('dense')
    more += [
        f'--gin.INITIAL_CHECKPOINT_PATH={dense / "model"}',
        f'--gin.CODEC_FROM={dense / "index"}',
    ]
  if name.startswith('gpl'):
    scored = test_teacher_columns.write(tmp_path / 'scored.jsonl')
    more += [*test_teacher_columns.COLUMNS, f'--gin.TRAIN_FILE={scored}']
  if name == 'jpq_gpl':
    more.append(f'--gin.TEACHER_DIR={shared_runs.cross_encoder()}')
  check.main([*tiny_run.flags(tmp_path, *more, run=f'{FOLDER}{name}.gin')])
  printed = capsys.readouterr().out
  assert 'learning rate' in printed and '  batch ' in printed


def test_the_recipe_of_gpl_takes_its_file_and_miners(tmp_path, capsys):
  """By the flags in the head of the file."""
  text = (config.gin_root() / FOLDER / 'gpl.gin').read_text()
  lines = re.findall(r'^#   (--gin.*)$', text, re.MULTILINE)
  (tmp_path / 'b').mkdir()
  model = tiny_evaluation.shared_model()
  recipe.main([
      '--gin_file=recipes/gpl.gin', f'--output_dir={tmp_path}',
      f'--replace=source={model}', f'--gin.CORPUS={tmp_path}',
      f'--gin.CORPUS_FILE={tmp_path}', *shlex.split(' '.join(lines)), '--list',
  ])
  printed = capsys.readouterr().out.splitlines()
  mine, adapt = (
      shlex.split(printed[printed.index(f'# {stage}') + 1])
      for stage in ('labels', 'adapted')
  )
  models = [word for word in mine if word.startswith('--model_dir')]
  assert models == [f'--model_dir={x}' for x in (model, 'a', 'b')]
  assert '--bm25' not in mine and '--num_negatives=150' in mine
  args = config.parse_args(train.make_parser(), adapt[2:])
  built, wanted = train.build(args), build('gpl')
  for name in ('steps', 'batch_size'):
    assert getattr(built, name) == getattr(wanted, name)
  assert built.objective.loss == wanted.objective.loss
  assert built.objective.similarity == wanted.objective.similarity
  rates = built.optimizer.learning_rate, wanted.optimizer.learning_rate
  assert rates[0](999) == rates[1](999)
  assert built.tokenizer.query_length == 350
