"""DAFT and JPQ as recipes: every stage, from a model that is there."""

import json

import pytest
import tiny_evaluation
import tiny_run

from dualenc_jax.commands import cli, recipe as command, train

# Of a few steps on a few words, which are not aligned by then.
DAFT = [
    '--gin.MATCHING_STEPS=4', '--gin.ALIGNMENT_STEPS=12', '--gin.EVAL_EVERY=2',
    '--gin.FINETUNE_STEPS=4', '--gin.LEARNING_RATE=1e-2',
]
JPQ = [
    '--gin.CODEC=opq:16x4', '--gin.JPQ_STEPS=4', '--gin.JPQ_BATCH_SIZE=16',
    '--gin.JPQ_LEARNING_RATE=1e-3', '--gin.JPQ_TEMPERATURE=0.05',
    '--gin.JPQ_DEPTH=20', '--gin.EVAL_EVERY=4',
]


@pytest.mark.parametrize(
    ('name', 'given', 'stages'),
    [
        (
            'daft', [],
            'teacher matched aligned daft teacher_results matched_results'
            ' daft_results comparison latency',
        ),
        ('jpq', [], 'dense codes jpq dense_results jpq_results comparison'),
        (
            'daft', ['--replace=teacher={model}', '--sweep=SEED=0,1'],
            'teacher:given matched_0 matched_1 aligned_0 aligned_1 daft_0'
            ' daft_1 teacher_results matched_results_0 matched_results_1'
            ' daft_results_0 daft_results_1 comparison latency',
        ),
    ],
)
def test_commands_are_listed(tmp_path, capsys, name, given, stages):
  pairs = tiny_run.pairs_flags(tmp_path)[1:]
  model = tiny_evaluation.shared_model()
  command.main([
      f'--gin_file=recipes/{name}.gin', f'--work_dir={tmp_path / "work"}',
      *pairs, *(flag.format(model=model) for flag in given), '--list',
  ])
  lines = capsys.readouterr().out.splitlines()
  names = [line[2:] for line in lines if line.startswith('# ')]
  assert [name.replace(' ', '') for name in names] == stages.split()


@pytest.mark.slow
@pytest.mark.usefixtures('in_process')
def test_light_query_towers_of_a_model(tmp_path, capfd):
  teacher, work = tmp_path / 'model', tmp_path / 'work'
  flags = tiny_run.flags(
      tmp_path, '--gin.STEPS=20', '--gin.models.T5Encoder.num_layers=3',
      '--gin.TEMPERATURE=0.1',
  )
  train.main([*flags, f'--model_dir={teacher}'])
  given = [
      'recipe', '--gin_file=recipes/daft.gin', f'--work_dir={work}',
      f'--replace=teacher={teacher}', '--sweep=QUERY_LAYERS=1,2', *DAFT,
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


def test_what_cannot_be_swept_or_replaced(tmp_path, capfd):
  given = ['recipe', '--gin_file=recipes/daft.gin', f'--work_dir={tmp_path}']
  for more, told in (
      ('--sweep=QUERY_LAYER=1,2', "macro. Did you mean 'QUERY_LAYERS'"),
      ('--sweep=QUERY_LAYERS', 'expected NAME=VALUE,VALUE, such as'),
      ('--replace=teach=x', "no stage 'teach'. Did you mean 'teacher'"),
      ('--replace=teacher=x', 'in place of teacher.model, does not exist'),
      ('--replace=teacher.=x', 'or STAGE=FOLDER for all outputs'),
  ):
    assert cli.main([*given, more]) == 2
    assert told in capfd.readouterr().err.replace('\n', ' ')


@pytest.mark.slow
@pytest.mark.usefixtures('in_process')
def test_from_a_dual_encoder_to_jpq(tmp_path, capfd):
  dense, work = tmp_path / 'dense', tmp_path / 'work'
  flags = tiny_run.flags(tmp_path, '--gin.STEPS=20', '--gin.TEMPERATURE=0.1')
  train.main([*flags, f'--model_dir={dense}'])
  given = [
      'recipe', '--gin_file=recipes/jpq.gin', f'--work_dir={work}',
      f'--replace=dense={dense}', *JPQ,
  ]
  assert cli.main(given) == 0
  found = json.loads((work / 'comparison' / 'comparison.json').read_text())
  text = json.dumps(found)
  assert all(name in text for name in ('untrained codes', 'JPQ', 'dense'))
  metrics = json.loads((work / 'jpq_results' / 'metrics.json').read_text())
  # 16 parts of 4 bits.
  assert (metrics['codec'], metrics['bytes_per_passage']) == ('jpq:16x4', 8)
  # The untrained codes are those that training starts from: the pairs of both
  # splits are the same.
  lines = (work / 'jpq' / 'metrics.jsonl').read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  before, after = (row for row in rows if row['group'] == 'validation')
  folder = work / 'dense_results' / 'codecs' / 'opq-16x4'
  untrained = json.loads((folder / 'metrics.json').read_text())
  for name in ('MRR', 'nDCG@10'):
    assert untrained['metrics'][name] == pytest.approx(before[name], rel=1e-6)
    assert metrics['metrics'][name] == pytest.approx(after[name], rel=1e-6)
  capfd.readouterr()
  # Nothing is done twice.
  assert cli.main(given) == 0
  said = ' '.join(capfd.readouterr().out.split())
  assert 'comparison as before' in said and ' ran ' not in said
