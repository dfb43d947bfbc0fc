"""The recipes that are shipped: their stages, and that each can be given."""

import json
import pathlib
import re
import shlex

import pytest
import tiny_beir
import tiny_evaluation
import tiny_run

from dualenc_jax import losses
from dualenc_jax.cli import (
  config,
  main as cli,
  recipe as command,
  train,
)
from dualenc_jax.pipelines.recipes import Recipe, runner, sweep


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
      'TEACHER': [
          f'{tmp_path / "small.gin"}', 'architectures/cross_encoder.gin'
      ],
      'BATCH_SIZE': 16, 'NUM_NEGATIVES': 2, 'DEPTH': 20,
      'ABOVE': 0.6, 'BELOW': 0.4,
      'RETRIEVER_STEPS': 2, 'TEACHER_STEPS': 30, 'PRETRAIN_STEPS': 2,
      'FINETUNE_STEPS': 2,
  }
  return [f'--gin.{name}={value}' for name, value in given.items()]


def grid_flags(tmp_path):
  """Flags of a grid of bags on a few pairs."""
  run = tmp_path / 'small.gin'
  run.write_text(
      "include 'runs/from_scratch.gin'\nSTEPS = 2\nBATCH_SIZE = 16\n"
      'QUERY_LENGTH = 8\nPASSAGE_LENGTH = 16\nEVAL_EVERY = 0\n'
  )
  return [
      f'--gin.RUN={[str(run)]}', '--gin.MODEL=models/{SIZE}.gin',
      '--gin.CHECKPOINT=None', *tiny_run.pairs_flags(tmp_path)[1:],
  ]


def given_of(tmp_path, name):
  """Flags of a recipe that names everything it reads."""
  if 'pair' in name:
    return pair_flags(tmp_path)
  if name in ('samtone', 'dual_encoders'):
    return grid_flags(tmp_path)
  if 'daft' in name or name in ('jpq', 'embeddinggemma'):
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
            ' daft_results_0 daft_results_1 latency comparison',
        ),
        (
            'daft_ablations',
            ['--replace=teacher={model}', '--sweep=QUERY_LAYERS=1,2'],
            'teacher:given matched_1 matched_2 aligned_1 aligned_2 daft_1'
            ' daft_2 teacher_results matched_results_1 matched_results_2'
            ' daft_results_1 daft_results_2 latency comparison unaligned_2'
            ' aligned_unshared_2 unshared_2 aligned_scratch_2 scratch_2'
            ' aligned_bag bag unaligned_result_2 unshared_result_2'
            ' scratch_result_2 bag_result ablations_2',
        ),
        (
            'jpq',
            ['--replace=dense={model}', '--sweep=CODEC=pq:8x4,pq:4x4',
             '--until=jpq'],
            'dense:given codes_pq_8x4 codes_pq_4x4 jpq_pq_8x4 jpq_pq_4x4',
        ),
        (
            'embeddinggemma', ['--until=average'],
            'pairs mined finetuned_0 finetuned_1 finetuned_2 average',
        ),
        (
            'dual_encoders',
            ['--sweep=ARCHITECTURE=ade,sde', '--sweep=SIZE=bag',
             '--sweep=SET=pairs', '--sweep=SEED=0,1'],
            'model_ade_bag_pairs_0 model_ade_bag_pairs_1 model_sde_bag_pairs_0'
            ' model_sde_bag_pairs_1 results_ade_bag_pairs_0'
            ' results_ade_bag_pairs_1 results_sde_bag_pairs_0'
            ' results_sde_bag_pairs_1 architectures_bag_0 architectures_bag_1'
            ' sizes_0 sizes_1 maps_bag_pairs_0 maps_bag_pairs_1',
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


def test_the_papers_grids(tmp_path, capsys):
  """All cells of a whole table, in seconds; rows are joined over sets."""
  for name, loss, expected, cells, compared in (
      ('samtone', 'pair_without_positive_',
       losses.PAIR(alpha=0.1, form='without_positive'), 135, 13),
      ('dual_encoders', '', losses.InBatchSoftmax(bidirectional=False), 105, 4),
  ):
    command.main([
        f'--gin_file=recipes/{name}.gin', f'--output_dir={tmp_path / "work"}',
        '--gin.VOCABULARY=python_code_8k', '--gin.VOCAB_SIZE=8064',
        '--gin.CHECKPOINT=t5/{SIZE}', '--list',
    ])
    lines = list(map(shlex.split, capsys.readouterr().out.splitlines()))
    lines = [line[1:] for line in lines if line[0] == 'dualenc']
    trained = [line for line in lines if line[0] == 'train']
    assert len(trained) == len({*map(str, trained)}) == cells
    assert sum(line[0] == 'compare' for line in lines) == compared
    cell = next(
        line for line in trained
        if f'model_ade_spl_{loss}base_multireqa_SQuAD' in line[1]
    )
    made = train.build(config.parse_args(train.make_parser(), cell[1:]))
    assert made.objective.loss == expected
    assert made.task.dataset == 'SQuAD' and made.steps == 20_000
    assert made.objective.model.encoder.num_layers == 12
    assert made.objective.model.passage_encoder
  large = next(
      line for line in trained if 'model_ade_ste_large_open_nq' in line[1]
  )
  assert [w for w in large if 'gin' in w] == [
      '--gin_file=runs/papers/dong.gin', '--gin_file=models/t5_1_1/large.gin',
      '--gin_file=architectures/ade_ste.gin', '--gin_file=losses/softmax.gin',
      '--gin_file=tasks/open_nq.gin', '--gin.INITIAL_CHECKPOINT_PATH=t5/large',
      '--gin.VOCABULARY=python_code_8k', '--gin.VOCAB_SIZE=8064',
      '--gin.SEED=0',
  ]
  (sizes,) = (line for line in lines if '--over=parameters' in line)
  names, of_lines = (
      next(w for w in sizes if w.startswith(flag)).partition('=')[2].split(',')
      for flag in ('--names', '--lines')
  )
  cells = [w for w in sizes[1:] if not w.startswith('--')]
  assert len(names) == len(of_lines) == len(cells) == 105
  for name, line, cell in zip(names, of_lines, cells):
    architecture, size = name.split()
    assert line == architecture and f'/results_{architecture}_{size}_' in cell


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
  assert (len(lines), len(of_recipes)) == (18, 15)


@pytest.mark.parametrize(
    'name', [
        'daft', 'embeddinggemma', 'gpl', 'gpl_small', 'jpq', 'pair', 'samtone'
    ],
)
def test_killed_in_each_stage_it_does_nothing_twice(tmp_path, name):
  """Stages write what they are given and have read."""
  (tmp_path / 'data').mkdir()
  given = map(config.binding, given_of(tmp_path / 'data', name))
  config.load([f'recipes/{name}.gin'], [*given], is_recipe=True)
  recipe = config.build(Recipe)
  small = {'SIZE': ['bag'], 'SET': ['pairs'], 'LOSS': ['softmax', 'samtone']}
  recipe = sweep(recipe, {**recipe.sweeps, **small} if recipe.sweeps else {})

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


@pytest.mark.usefixtures('in_process')
def test_pair_is_measured_on_another_task(tmp_path):
  """As on Open NQ and MS MARCO, by further metrics."""
  tiny_beir.make_large().write(tmp_path / 'other')
  (tmp_path / 'other.gin').write_text(
      f"include 'tasks/beir.gin'\nBEIR_FOLDER = '{tmp_path / 'other'}'\n"
  )
  assert cli.main([
      'recipe', '--gin_file=recipes/pair.gin', f'--output_dir={tmp_path}/work',
      *pair_flags(tmp_path), '--gin.TEST_FILE=None',
      f'--replace=finetuned={tiny_evaluation.shared_model()}',
      f'--gin.EVALUATED={[str(tmp_path / "other.gin")]}',
      '--gin.METRICS=Recall@5',
  ]) == 0
  assert [p.name for p in tmp_path.glob('work/[!.]*')] == ['evaluation']
  found = tiny_evaluation.result_of(tmp_path / 'work/evaluation')
  assert found['task'] == 'beir' and 0 < found['metrics']['Recall@5'] < 1


def test_rows_of_daft(tmp_path, capsys):
  """Each of table 3 and table 1 is without what its name says."""
  model = tiny_evaluation.shared_model()
  command.main([
      '--gin_file=recipes/daft_ablations.gin', f'--output_dir={tmp_path}',
      *given_of(tmp_path, 'daft'), f'--replace=teacher={model}',
      '--sweep=QUERY_LAYERS=2,3', '--gin.EVAL_EVERY=2', '--list',
  ])
  said = capsys.readouterr().out.split('# ')
  lines = {name: shlex.split(line)[1:] for name, _, line in (
      part.partition('\n') for part in said[2:]
  )}
  built = {
      name: train.build(config.parse_args(train.make_parser(), rest))
      for name, (what, *rest) in lines.items() if what == 'train'
  }
  starts = {
      name: (pathlib.Path(run.initial_checkpoint.path).name,
             run.initial_checkpoint.query_layers)
      for name, run in built.items()
  }
  of_teacher = (
      'matched_2 matched_3 aligned_2 aligned_3 aligned_unshared_2 aligned_bag'
      ' unaligned_2'
  ).split()
  assert starts == {
      **dict.fromkeys(of_teacher, ('model', 'spread')),
      'aligned_scratch_2': ('model', 'scratch'),
      **{
          name: (f'aligned_{name}'.replace('_daft', ''), None)
          for name in ('daft_2', 'daft_3', 'unshared_2', 'scratch_2', 'bag')
      },
  }
  models = {name: run.objective.model for name, run in built.items()}
  assert {n for n, m in models.items() if m.passage_projection} == {
      'unshared_2', 'aligned_unshared_2'
  }
  rules = built['aligned_unshared_2'].initial_checkpoint.rules
  assert rules == (('projection/.*', None),)
  layers = {name: m.encoder.num_layers for name, m in models.items()}
  expected = {n: 3 if n[-1] == '3' else 0 if 'bag' in n else 2 for n in layers}
  assert layers == expected


def test_what_cannot_be_swept_or_replaced(tmp_path, capfd):
  given = ['recipe', '--gin_file=recipes/daft.gin', f'--output_dir={tmp_path}']
  for more, told in (
      ('--sweep=QUERY_LAYER=1,2', "LAYER. Did you mean 'QUERY_LAYERS'"),
      ('--sweep=QUERY_LAYERS', 'expected NAME=VALUE,VALUE, such as'),
      ('--sweep=QUERY_LAYERS=1', 'expected two or more that differ'),
      ('--sweep=SEED=0,1 --sweep=SEED=1,2', 'expected each macro once'),
      ('--sweep=SHARE=0.1,0.2 --until=other', 'expected one of teacher, mat'),
      ('--replace=teach=x', "no stage 'teach'. Did you mean 'teacher'"),
      ('--replace=teacher=x', 'in place of teacher.model, does not exist'),
      ('--replace=teacher.=x', 'expected STAGE=FOLDER or STAGE.OUTPUT=FILE'),
  ):
    assert cli.main([*given, *more.split()]) == 2
    assert told in capfd.readouterr().err.replace('\n', ' ')
  # A grid's own sweeps are no macros.
  given[1] = '--gin_file=recipes/samtone.gin'
  given += ['--gin.VOCABULARY=x', '--gin.CHECKPOINT=None']
  assert cli.main([*given, '--sweep=ARCHITECTUR=sde']) == 2
  assert "ARCHITECTUR. Did you mean 'ARCHITECTURE'" in capfd.readouterr().err
