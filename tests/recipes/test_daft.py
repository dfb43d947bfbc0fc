"""DAFT as a recipe: every stage, at two depths, of a teacher that is there."""

import json

import pytest
import tiny_run

from dualenc_jax.commands import cli, recipe as command, train

# Of a few steps on a few words, which are not aligned by then.
FEW = [
    '--gin.MATCHING_STEPS=4', '--gin.ALIGNMENT_STEPS=12', '--gin.EVAL_EVERY=2',
    '--gin.FINETUNE_STEPS=4', '--gin.LEARNING_RATE=1e-2',
]


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
  folder = tmp_path_factory.mktemp('teacher')
  flags = tiny_run.flags(
      folder, '--gin.STEPS=20', '--gin.models.T5Encoder.num_layers=3',
      '--gin.TEMPERATURE=0.1',
  )
  train.main([*flags, f'--model_dir={folder / "model"}'])
  return folder / 'model'


def test_commands_are_listed(tmp_path, capsys):
  pairs = tiny_run.pairs_flags(tmp_path)[1:]
  command.main([
      '--gin_file=recipes/daft.gin', f'--work_dir={tmp_path / "work"}', *pairs,
      '--list',
  ])
  lines = capsys.readouterr().out.splitlines()
  names = [line[2:] for line in lines if line.startswith('# ')]
  assert names == [
      'teacher', 'matched', 'aligned', 'daft', 'teacher_results',
      'matched_results', 'daft_results', 'comparison', 'latency',
  ]


def test_seeds_of_a_teacher_that_is_there(teacher, tmp_path, capsys):
  command.main([
      '--gin_file=recipes/daft.gin', f'--work_dir={tmp_path / "work"}',
      f'--replace=teacher={teacher}', '--sweep=SEED=0,1', '--list',
  ])
  lines = capsys.readouterr().out.splitlines()
  names = [line[2:] for line in lines if line.startswith('# ')]
  assert names.count('teacher: given') == names.count('teacher_results') == 1
  assert names.count('matched_0') == names.count('daft_results_1') == 1
  assert len(names) == 4 + 2 * 5


@pytest.mark.slow
def test_light_query_towers_of_a_model(teacher, tmp_path, capfd):
  work = tmp_path / 'work'
  given = [
      'recipe', '--gin_file=recipes/daft.gin', f'--work_dir={work}',
      f'--replace=teacher={teacher}', '--sweep=QUERY_LAYERS=1,2', *FEW,
      # Its patience ends it, if not the divergence.
      '--gin.SHARE=0.9',
  ]
  assert cli.main(given) == 0
  said = capfd.readouterr().out
  assert 'teacher            given' in said
  found = json.loads((work / 'latency' / 'latency.json').read_text())
  names = ['model', 'matched_1', 'matched_2', 'daft_1', 'daft_2']
  quality = found['quality']
  assert [*quality['values']] == names and [*quality['p']] == names[1:]
  for name in names:
    results = 'teacher' if name == 'model' else name
    stem, _, depth = results.partition('_')
    folder = work / f'{stem}_results{"_" * bool(depth)}{depth}'
    metrics = json.loads((folder / 'metrics.json').read_text())['metrics']
    assert quality['values'][name] == pytest.approx(metrics['MRR@10'])
  layers = {m['model']: m['layers'] for m in found['measured']}
  assert layers == dict(zip(names, (3, 1, 2, 1, 2)))
  # Nothing is done twice.
  assert cli.main(given) == 0
  said = capfd.readouterr().out
  assert 'latency            as before' in said and '   ran   ' not in said


def test_what_cannot_be_swept_or_replaced(teacher, tmp_path, capfd):
  given = ['recipe', '--gin_file=recipes/daft.gin', f'--work_dir={tmp_path}']
  for more, told in (
      ('--sweep=QUERY_LAYER=1,2', "macro. Did you mean 'QUERY_LAYERS'"),
      ('--sweep=QUERY_LAYERS', 'expected NAME=VALUE,VALUE, such as'),
      ('--replace=teach=x', "no stage 'teach'. Did you mean 'teacher'"),
      ('--replace=teacher=x', 'in place of teacher.model, does not exist'),
      ('--replace=teacher.=x', 'or STAGE=FOLDER for all that it makes'),
  ):
    assert cli.main([*given, more]) == 2
    assert told in capfd.readouterr().err.replace('\n', ' ')
