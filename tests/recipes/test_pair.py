"""PAIR as a recipe, whole and without its parts."""

import json
import pathlib

import interrupted
import numpy as np
import pytest
import tiny_run

from dualenc_jax import losses
from dualenc_jax.commands import cli, config, recipe as command, train
from dualenc_jax.recipes import Recipe, runner
from dualenc_jax.results.folder import read_per_query


def pair_flags(tmp_path):
  """Flags of PAIR on a few pairs, but for the recipe and the work_dir."""
  for name, count, seed in (('train', 96, 0), ('dev', 24, 1)):
    tiny_run.write_pairs(tmp_path / f'{name}.jsonl', count, seed)
  others = tiny_run.write_pairs(tmp_path / 'others.jsonl', 40, seed=2)
  rows = map(json.loads, others.read_text().splitlines())
  texts = [row['query'] for row in rows]
  (tmp_path / 'queries.tsv').write_text(
      ''.join(f'u{i}\t{text}\n' for i, text in enumerate(texts))
  )
  (tmp_path / 'small.gin').write_text(
      "include 'runs/finetune.gin'\ninclude 'models/tiny.gin'\n"
      "DTYPE = 'float32'\nQUERY_LENGTH = 8\nPASSAGE_LENGTH = 16\n"
      'EVAL_EVERY = 30\n'
  )
  small = f"['{tmp_path / 'small.gin'}']"
  return [
      f'--gin.TRAIN_FILE={tmp_path / "train.jsonl"}',
      f'--gin.VALIDATION_FILE={tmp_path / "dev.jsonl"}',
      f'--gin.UNLABELLED={tmp_path / "queries.tsv"}',
      '--gin.VOCABULARY=python_code_8k',
      '--gin.VOCAB_SIZE=8064',
      f'--gin.RETRIEVER={small}',
      f'--gin.TEACHER={small}',
      '--gin.BATCH_SIZE=16',
      '--gin.NUM_NEGATIVES=2',
      '--gin.DEPTH=20',
      # Of a teacher of a few steps.
      '--gin.ABOVE=0.05',
      '--gin.BELOW=0.049',
      *(
          f'--gin.{name}_STEPS={steps}'
          for name, steps in (
              ('RETRIEVER', 2), ('TEACHER', 30), ('PRETRAIN', 2),
              ('FINETUNE', 2),
          )
      ),
  ]


@pytest.mark.parametrize('name', ['pair', 'pair_ablations'])
def test_commands_are_listed(tmp_path, capsys, name):
  command.main([
      f'--gin_file=recipes/{name}.gin', f'--work_dir={tmp_path / "work"}',
      *pair_flags(tmp_path), '--list',
  ])
  said = capsys.readouterr().out
  assert said.startswith('# retriever\ndualenc train --model_dir=')
  assert ('dualenc compare' in said) == (name == 'pair_ablations')


def test_rows_of_the_ablations(tmp_path):
  """Each differs from the whole in what its name says, and can be built."""
  config.load(
      ['recipes/pair_ablations.gin'],
      [config.binding(flag) for flag in pair_flags(tmp_path)],
  )
  recipe = config.build(Recipe)
  lines = dict(runner.command_lines(recipe, tmp_path))
  whole = [stage.name for stage in recipe.stages[:8]]
  config.load(['recipes/pair.gin'], [
      config.binding(flag) for flag in pair_flags(tmp_path)
  ])
  alone = dict(runner.command_lines(config.build(Recipe), tmp_path))
  assert {name: lines[name] for name in whole} == alone
  built = {}
  for name, (what, *given) in lines.items():
    if what == 'train':
      parser = config.make_parser('train', '')
      parser.add_argument('--model_dir')
      built[name] = train.build(config.parse_args(parser, given))
  loss = {name: each.objective.loss for name, each in built.items()}
  starts = {
      name: each.initial_checkpoint.path and
      pathlib.Path(each.initial_checkpoint.path).name
      for name, each in built.items()
  }
  files = {name: pathlib.Path(e.task.train) for name, e in built.items()}
  assert loss['pretrained'] == losses.PAIR(alpha=0.1, bidirectional=False)
  assert loss['finetuned'] == losses.InBatchSoftmax(bidirectional=False)
  assert starts['finetuned'] == 'pretrained' and starts['pretrained'] is None
  assert loss['without_psr_pretrained'].alpha == 0
  assert starts['without_psr'] == 'without_psr_pretrained'
  assert loss['without_psr'] == loss['finetuned']
  for name in ('without_kd_pretrained', 'without_kd'):
    assert files[name] == tmp_path / 'mined/pairs.jsonl'
  assert files['pretrained'] == tmp_path / 'labels/pairs.jsonl'
  assert files['finetuned'] == tmp_path / 'relabelled/pairs.jsonl'
  assert starts['without_kd'] == 'without_kd_pretrained'
  assert loss['psr_too'] == loss['pretrained']
  assert starts['psr_too'] == 'pretrained'
  for name in ('without_sp_pretrained', 'without_sp'):
    assert built[name].objective.model.passage_encoder
  assert starts['without_sp'] == 'without_sp_pretrained'
  assert starts['without_pt'] is None
  assert loss['without_pt'] == loss['finetuned']
  assert files['without_pt'] == files['finetuned']


@pytest.mark.slow
@pytest.mark.usefixtures('in_process')
def test_pair_from_end_to_end(tmp_path, capfd):
  """Stages as shipped, tiny."""
  work = tmp_path / 'work'
  asked = [
      'recipe', '--gin_file=recipes/pair.gin', f'--work_dir={work}',
      *pair_flags(tmp_path),
  ]
  assert cli.main([*asked, '--until=labels']) == 0
  assert cli.main(asked) == 0
  said = capfd.readouterr().out
  assert 'teacher     as before' in said
  metrics = json.loads((work / 'evaluation/metrics.json').read_text())
  assert metrics['metrics']['MRR'] > 0
  rows = (work / 'labels/pairs.jsonl').read_text().splitlines()
  assert {json.loads(row)['query_id'][0] for row in rows} == {'u'}
  origins = {
      origin
      for row in (work / 'relabelled/pairs.jsonl').read_text().splitlines()
      for origin in json.loads(row)['origin']
  }
  assert 'labelled' in origins
  # From the weights of the stage before.
  ends, starts = (
      read_per_query(work / name).values['MRR']
      for name in (
          'pretrained/validation/after.tsv', 'finetuned/validation/before.tsv'
      )
  )
  np.testing.assert_array_equal(ends, starts)
  # Of other labels only what reads them is made anew.
  assert cli.main([*asked, '--gin.ALPHA=0.5']) == 0
  said = capfd.readouterr().out
  states = dict(
      line.split(maxsplit=1) for line in said.splitlines()
      if line and line[0].isalpha() and line.split()[0] in (
          'labels', 'relabelled', 'pretrained', 'finetuned', 'evaluation'
      )
  )
  ran = [name for name, state in states.items() if state.startswith('ran')]
  assert ran == ['pretrained', 'finetuned', 'evaluation']


@pytest.mark.slow
def test_killed_in_stages_of_each_kind_it_ends_the_same(tmp_path):
  given = ['--gin_file=recipes/pair.gin', *pair_flags(tmp_path)]
  small = tmp_path / 'small.gin'
  small.write_text(small.read_text() + 'CHECKPOINT_EVERY = 1\n')

  def start(work):
    return interrupted.start('recipe', *given, f'--work_dir={work}')

  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  assert start(whole).wait() == 0
  for sign in (
      'mined', 'teacher/checkpoints/7', 'labels/scores.tsv',
      'finetuned/checkpoints/1',
  ):
    interrupted.kill_at(start(killed), killed, sign)
  assert start(killed).wait() == 0
  for name in (
      'mined/pairs.jsonl', 'labels/pairs.jsonl', 'relabelled/pairs.jsonl',
      'evaluation/run.trec',
  ):
    assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
