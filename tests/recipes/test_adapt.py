"""A model adapted to a corpus without queries, as a user does it."""

import json

import adapted_models
import pytest

from dualenc_jax.commands import cli, recipe as command

FEW = [
    '--gin.QUERIES_PER_PASSAGE=3', '--gin.ADAPT_STEPS=3',
    '--gin.ADAPT_BATCH_SIZE=16',
]
GPL = [
    '--gin.DEPTH=20', '--gin.NEGATIVES=4', '--gin.NUM_NEGATIVES=2',
    '--gin.LEAST_SPREAD=0.0',
]


@pytest.mark.parametrize(
    ('name', 'own'), [('gpl', ['teacher', 'labels']), ('genq', [])]
)
def test_commands_are_listed(tmp_path, capsys, name, own):
  command.main([
      f'--gin_file=recipes/{name}.gin', f'--work_dir={tmp_path / "work"}',
      f'--gin.CORPUS={tmp_path}', f'--gin.CORPUS_FILE={tmp_path}', '--list',
  ])
  lines = capsys.readouterr().out.splitlines()
  names = [line[2:] for line in lines if line.startswith('# ')]
  assert names == [
      'source', 'generator', *own[:1], 'queries', *own[1:], 'adapted',
      'before', 'after', 'comparison',
      'source_before', 'source_after', 'source_comparison',
  ]


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  return adapted_models.make(tmp_path_factory.mktemp('models'))


def adapt(models, out, *flags):
  return cli.main([
      'adapt', f'--model_dir={models / "dense"}',
      f'--corpus={models / "corpus"}', f'--generator={models / "generator"}',
      f'--output_dir={out}', *FEW, *flags,
  ])


@pytest.mark.slow
def test_gpl_learns_a_teachers_margins_and_does_nothing_twice(
    models, tmp_path, capfd
):
  out = tmp_path / 'gpl'
  teacher = [
      f'--teacher={models / "teacher"}', '--source_split=test', *GPL
  ]
  assert adapt(models, out, *teacher) == 0
  said = capfd.readouterr().out
  assert 'Margins of ' in said
  row = json.loads((out / 'labels' / 'pairs.jsonl').read_text().split('\n')[0])
  assert len(row['negatives']) == len(row['negative_scores']) == 4
  assert len(row['positive_scores']) == 1
  for name in ('comparison', 'source_comparison'):
    found = json.loads((out / name / 'comparison.json').read_text())
    assert 'adapted' in json.dumps(found)
  # Nothing is done twice.
  assert adapt(models, out, *teacher) == 0
  said = ' '.join(capfd.readouterr().out.split())
  assert 'comparison as before' in said and ' ran ' not in said


@pytest.mark.slow
def test_genq_needs_no_teacher(models, tmp_path, capfd):
  assert adapt(models, tmp_path / 'genq') == 0
  found = (tmp_path / 'genq' / 'comparison' / 'comparison.json').read_text()
  assert 'adapted' in found
  assert not (tmp_path / 'genq' / 'labels').exists()
  capfd.readouterr()


@pytest.mark.slow
def test_flat_labels_are_refused(models, tmp_path, capfd):
  flags = f'--teacher={models / "teacher"}', *GPL[:3]
  assert adapt(models, tmp_path, *flags, '--gin.LEAST_SPREAD=50') == 2
  assert 'margins have a standard deviation of' in capfd.readouterr().err


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--corpus=missing'], 'expected a folder in BEIR'),
        (['--corpus=model'], 'no model/corpus.jsonl'),
        (['--model_dir=.'], 'has no config.gin'),
        (['--output_dir=corpus/out'], 'in the folder of the corpus'),
        (['--generator='], '--replace=queries=FOLDER'),
        (['--source_split=test', '--split=dev'], 'has no qrels of dev'),
    ],
)
def test_what_is_missing_is_named(
    tmp_path, monkeypatch, capsys, flags, message
):
  monkeypatch.chdir(tmp_path)
  for name, file in (('model', 'config.gin'), ('corpus', 'corpus.jsonl')):
    (tmp_path / name).mkdir()
    (tmp_path / name / file).write_text('')
  given = ['--model_dir=model', '--corpus=corpus', '--generator=x', *flags]
  given = [flag for flag in given if flag != '--generator=']
  if '--generator=' in flags:
    given.remove('--generator=x')
  assert cli.main(['adapt', *given]) == 2
  assert message in capsys.readouterr().err
