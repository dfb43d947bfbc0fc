"""JPQ as a recipe, from a dual encoder that is there."""

import json

import pytest
import tiny_run

from dualenc_jax.commands import cli, recipe as command, train

FEW = [
    '--gin.CODEC=opq:16x4', '--gin.JPQ_STEPS=4', '--gin.JPQ_BATCH_SIZE=16',
    '--gin.JPQ_LEARNING_RATE=1e-3', '--gin.JPQ_TEMPERATURE=0.05',
    '--gin.JPQ_DEPTH=20', '--gin.EVAL_EVERY=4',
]


def test_commands_are_listed(tmp_path, capsys):
  pairs = tiny_run.pairs_flags(tmp_path)[1:]
  command.main([
      '--gin_file=recipes/jpq.gin', f'--work_dir={tmp_path / "work"}', *pairs,
      '--list',
  ])
  lines = capsys.readouterr().out.splitlines()
  names = [line[2:] for line in lines if line.startswith('# ')]
  assert names == [
      'dense', 'codes', 'jpq', 'dense_results', 'jpq_results', 'comparison',
  ]


@pytest.mark.slow
def test_from_a_dual_encoder_to_jpq(tmp_path, capfd):
  dense, work = tmp_path / 'dense', tmp_path / 'work'
  flags = tiny_run.flags(tmp_path, '--gin.STEPS=20', '--gin.TEMPERATURE=0.1')
  train.main([*flags, f'--model_dir={dense}'])
  given = [
      'recipe', '--gin_file=recipes/jpq.gin', f'--work_dir={work}',
      f'--replace=dense={dense}', *FEW,
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
