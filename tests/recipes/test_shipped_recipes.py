"""The recipes that are shipped: their stages, and that each can be given."""

import json
import pathlib
import re
import shlex

import pytest
import tiny_evaluation
import tiny_run

from dualenc_jax import losses
from dualenc_jax.cli import (
  config,
  main as cli,
  recipe as command,
  train,
)
from dualenc_jax.pipelines.recipes import Recipe, runner


def pair_flags(tmp_path):
  """Flags of PAIR on a few pairs, but for the recipe and the work_dir."""
  for name, count, seed in (('train', 96, 0), ('dev', 24, 1)):
    tiny_run.write_pairs(tmp_path / f'{name}.jsonl', count, seed)
  others = tiny_run.write_pairs(tmp_path / 'others.jsonl', 40, seed=2)
  rows = map(json.loads, others.read_text().splitlines())
  (tmp_path / 'queries.tsv').write_text(
      ''.join(f'u{i}\t{row["query"]}\n' for i, row in enumerate(rows))
  )
  (tmp_path / 'small.gin').write_text(
      "include 'runs/finetune.gin'\ninclude 'models/tiny.gin'\n"
      "DTYPE = 'float32'\nQUERY_LENGTH = 8\nPASSAGE_LENGTH = 16\n"
      'EVAL_EVERY = 30\nCHECKPOINT_EVERY = 1\n'
  )
  given = {
      'TRAIN_FILE': tmp_path / 'train.jsonl',
      'VALIDATION_FILE': tmp_path / 'dev.jsonl',
      'UNLABELLED': tmp_path / 'queries.tsv',
      'VOCABULARY': 'python_code_8k', 'VOCAB_SIZE': 8064,
      'RETRIEVER': [f'{tmp_path / "small.gin"}'],
      'TEACHER': [f'{tmp_path / "small.gin"}'],
      'BATCH_SIZE': 16, 'NUM_NEGATIVES': 2, 'DEPTH': 20,
      'ABOVE': 0.6, 'BELOW': 0.4,
      'RETRIEVER_STEPS': 2, 'TEACHER_STEPS': 30, 'PRETRAIN_STEPS': 2,
      'FINETUNE_STEPS': 2,
  }
  return [f'--gin.{name}={value}' for name, value in given.items()]


def given_of(tmp_path, name):
  """Flags of a recipe that names everything it reads."""
  if 'pair' in name:
    return pair_flags(tmp_path)
  if name in ('daft', 'jpq'):
    return tiny_run.pairs_flags(tmp_path)[1:]
  return [f'--gin.CORPUS={tmp_path}', f'--gin.CORPUS_FILE={tmp_path}']


@pytest.mark.parametrize(
    ('name', 'more', 'stages'),
    [
        (
            'gpl', [],
            'source generator teacher before queries labels adapted after'
            ' comparison source_before source_after source_comparison',
        ),
        (
            'daft', ['--replace=teacher={model}', '--sweep=SEED=0,1'],
            'teacher:given matched_0 matched_1 aligned_0 aligned_1 daft_0'
            ' daft_1 teacher_results matched_results_0 matched_results_1'
            ' daft_results_0 daft_results_1 comparison latency',
        ),
    ],
)
def test_commands_are_listed(tmp_path, capsys, name, more, stages):
  model = tiny_evaluation.shared_model()
  command.main([
      f'--gin_file=recipes/{name}.gin', f'--output_dir={tmp_path / "work"}',
      *given_of(tmp_path, name), *(flag.format(model=model) for flag in more),
      '--list',
  ])
  lines = capsys.readouterr().out.splitlines()
  names = [line[2:].replace(' ', '') for line in lines if line[:2] == '# ']
  assert names == stages.split()
  assert not (tmp_path / 'work').exists()


def test_examples_in_gin_files_can_be_given(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  for name in (
      'my_model/config.gin', 'my_model/vocabulary.model', 'doc2query',
      'cross_encoder',
  ):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('')
  texts = [path.read_text() for path in config.gin_root().rglob('*.gin')]
  lines = [
      line for text in texts for line in re.findall(
          r'^#   dualenc (.*)$', text.replace('\\\n#', ''), re.M
      )
  ]
  of_recipes = [line for line in lines if line.startswith('recipe ')]
  for line in {*lines} - {*of_recipes}:
    # The config of a model that is there.
    words = line.replace('dense/config.gin', 'runs/quickstart.gin').split()
    command.check_line(words)
    if words[0] == 'train':
      args = config.parse_args(train.make_parser(), words[1:])
      config.load(args.gin_file, ['MODEL_DIR = "x"', *args.gin_bindings])
  for line in of_recipes:
    needs = ('VALIDATION_FILE', 'UNLABELLED', 'VOCABULARY', 'VOCAB_SIZE')
    more = [f'--gin.{name}=1' for name in needs if 'recipes/pair' in line]
    words = [w for w in shlex.split(line.replace('=...', '=x')) if w != '...']
    assert cli.main([*words, *more, '--list']) == 0, capsys.readouterr().err
  assert (len(lines), len(of_recipes)) == (12, 9)


@pytest.mark.parametrize('name', ['daft', 'gpl', 'gpl_small', 'jpq', 'pair'])
def test_killed_in_each_stage_it_does_nothing_twice(tmp_path, name):
  """Stages write what they are given and have read."""
  (tmp_path / 'data').mkdir()
  given = map(config.binding, given_of(tmp_path / 'data', name))
  config.load([f'recipes/{name}.gin'], [*given], is_recipe=True)
  recipe = config.build(Recipe)

  def run(work, is_killed):
    lines, stages = runner.command_lines(recipe, work), recipe.stages
    ran, started = [], None

    def execute(argv):
      nonlocal started
      (name,) = (n for n, line in lines.items() if line == argv)
      stage, folder = stages[name], work / name
      if is_killed and started != name:
        started = name
        folder.mkdir()
        (folder / 'half').write_text('')
        raise KeyboardInterrupt
      if is_killed:
        (folder / 'half').unlink()
      ran.append(name)
      read = [work / n / stages[n].outputs[o] for n, o in stage.reads()]
      text = ' '.join([*argv, *map(runner.content, read)])
      for path in stage.outputs.values():
        file = folder / (path if path != '.' else 'made')
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace(str(work), ''))
      return 0

    for _ in range(2 * len(stages)):
      try:
        done = list(runner.run(recipe, work, execute))
      except KeyboardInterrupt:
        continue
      made = [f for f in work.glob('[!.]*/**/*') if f.is_file()]
      files = {f.relative_to(work): f.read_text() for f in made}
      return ran, [each.name for each in done], files

  whole = run(tmp_path / 'whole', False)
  assert whole[0] == whole[1] == [*recipe.stages]
  assert run(tmp_path / 'killed', True) == whole


def test_rows_of_the_ablations(tmp_path):
  """Each differs from the whole in what its name says, and can be built."""
  bindings = [config.binding(flag) for flag in pair_flags(tmp_path)]
  config.load(['recipes/pair_ablations.gin'], bindings, is_recipe=True)
  recipe = config.build(Recipe)
  lines = runner.command_lines(recipe, tmp_path)
  config.load(['recipes/pair.gin'], bindings, is_recipe=True)
  alone = runner.command_lines(config.build(Recipe), tmp_path)
  assert {name: lines[name] for name in alone} == alone
  assert [line[0] for line in lines.values()][-1] == 'compare'
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
  files = {
      name: pathlib.Path(each.task.train).parent.name
      for name, each in built.items()
  }
  assert loss['pretrained'] == losses.PAIR(alpha=0.1, bidirectional=False)
  assert loss['finetuned'] == losses.InBatchSoftmax(bidirectional=False)
  assert loss['without_psr_pretrained'].alpha == 0
  for name in ('without_psr', 'without_pt'):
    assert loss[name] == loss['finetuned']
  assert loss['psr_too'] == loss['pretrained']
  assert starts == starts | {
      'pretrained': None, 'finetuned': 'pretrained', 'without_pt': None,
      'psr_too': 'pretrained',
      **{
          name: f'{name}_pretrained'
          for name in ('without_psr', 'without_kd', 'without_sp')
      },
  }
  assert files == files | {
      'pretrained': 'labels', 'finetuned': 'relabelled',
      'without_kd_pretrained': 'mined', 'without_kd': 'mined',
      'without_pt': 'relabelled',
  }
  for name in ('without_sp_pretrained', 'without_sp'):
    assert built[name].objective.model.passage_encoder


def test_what_cannot_be_swept_or_replaced(tmp_path, capfd):
  given = ['recipe', '--gin_file=recipes/daft.gin', f'--output_dir={tmp_path}']
  for more, told in (
      ('--sweep=QUERY_LAYER=1,2', "LAYER. Did you mean 'QUERY_LAYERS'"),
      ('--sweep=QUERY_LAYERS', 'expected NAME=VALUE,VALUE, such as'),
      ('--replace=teach=x', "no stage 'teach'. Did you mean 'teacher'"),
      ('--replace=teacher=x', 'in place of teacher.model, does not exist'),
      ('--replace=teacher.=x', 'expected STAGE=FOLDER or STAGE.OUTPUT=FILE'),
  ):
    assert cli.main([*given, more]) == 2
    assert told in capfd.readouterr().err.replace('\n', ' ')
