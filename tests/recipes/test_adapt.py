"""A model adapted to a corpus without queries, as a user does it."""

import json
import re

import adapted_models
import interrupted
import pytest
import tiny_beir
import tiny_evaluation

from dualenc_jax.commands import cli, recipe as command
from dualenc_jax.generation import shards

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
      'source', 'generator', *own[:1], 'before', 'queries', *own[1:], 'adapted',
      'after', 'comparison',
      'source_before', 'source_after', 'source_comparison',
  ]


@pytest.fixture(scope='module')
def models():
  return adapted_models.shared()


def write_empty(folder, *names):
  for name in names:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text('')


def adapt(models, out, *flags):
  return cli.main([
      'adapt', f'--model_dir={models / "dense"}',
      f'--corpus={models / "corpus"}', f'--generator={models / "generator"}',
      f'--output_dir={out}', *FEW, *flags,
  ])


@pytest.mark.slow
@pytest.mark.usefixtures('in_process')
def test_gpl_learns_a_teachers_margins_and_does_nothing_twice(
    models, tmp_path, capfd
):
  out = tmp_path / 'gpl'
  teacher = [f'--teacher={models / "teacher"}', '--source_split=test', *GPL]
  assert adapt(models, out, *teacher) == 0
  said = capfd.readouterr().out
  assert said.splitlines()[0] == (
      'adapted: 3 steps of 16 examples, learning rate 0.001 to 0.'
  )
  assert 'Margins of ' in said
  assert re.search('the mined ones: teacher .*%, model .*%, bm25 .*%', said)
  assert 'word for word among the' in said
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
def test_killed_in_stages_of_each_kind_it_ends_the_same(models, tmp_path):
  # Two shards of queries.
  made = tiny_beir.make(0, shards.SHARD + 76, queries=45)
  made.write(tmp_path / 'corpus')
  given = [
      'adapt', f'--model_dir={models / "dense"}',
      f'--corpus={tmp_path / "corpus"}', f'--generator={models / "generator"}',
      f'--teacher={models / "teacher"}', *GPL, '--gin.QUERIES_PER_PASSAGE=1',
      '--gin.GENERATOR_QUERY_LENGTH=8', '--gin.ADAPT_STEPS=100',
      '--gin.ADAPT_BATCH_SIZE=16',
  ]

  def start(out):
    # Of several devices programs should not be kept.
    return interrupted.start(*given, f'--output_dir={out}', devices=1)

  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  assert start(whole).wait() == 0
  for sign in (
      'before', 'queries/shards/00000.jsonl', 'labels/scores.tsv',
      'adapted/checkpoints/10', 'comparison',
  ):
    interrupted.kill_at(start(killed), killed, sign)
  assert start(killed).wait() == 0
  for name in (
      'queries/shards/00000.jsonl', 'queries/shards/00001.jsonl',
      'queries/corpus.jsonl', 'queries/qgen-queries.jsonl',
      'queries/qgen-qrels/train.tsv', 'labels/pairs.jsonl',
      'labels/hard-negatives.jsonl', 'after/run.trec',
      'comparison/comparison.md',
  ):
    assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
  interrupted.assert_bit_equal(
      *(interrupted.saved(out / 'adapted', 100) for out in (whole, killed))
  )


@pytest.mark.slow
@pytest.mark.usefixtures('in_process')
def test_genq_needs_no_teacher(models, tmp_path, capfd):
  assert adapt(models, tmp_path / 'genq') == 0
  found = (tmp_path / 'genq' / 'comparison' / 'comparison.json').read_text()
  assert 'adapted' in found
  assert not (tmp_path / 'genq' / 'labels').exists()
  capfd.readouterr()


@pytest.mark.slow
@pytest.mark.usefixtures('in_process')
def test_flat_labels_are_refused(models, tmp_path, capfd):
  flags = f'--teacher={models / "teacher"}', *GPL[:3]
  assert adapt(models, tmp_path, *flags, '--gin.LEAST_SPREAD=50') == 2
  assert 'margins have a standard deviation of' in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--teacher={generator}'], 'is a generator, not a cross-encoder'),
        (['--generator={teacher}'], 'is a cross-encoder, not a generator'),
        (['--model_dir={teacher}'], 'a cross-encoder; expected a dual enc'),
        (["--gin.LOSS=['losses/margins.gin']"], "adapted: There is no gin"),
        (['--gin.SOFTMAX_WEIGHT=0'], 'adapted: --gin.SOFTMAX_WEIGHT: no gin'),
        (['--gin.ADAPT_LEARNING_RATE=-1'], 'adapted: The learning rate is -1'),
        (['--gin.ADAPT_STEPS=0'], 'adapted: .*STEPS is --gin.ADAPT_STEPS'),
    ],
)
def test_what_a_late_stage_would_refuse_is_told_first(
    models, tmp_path, capfd, flags, message
):
  paths = {path.name: path for path in models.iterdir()}
  flags = [flag.format_map(paths) for flag in flags]
  teacher = f'--teacher={models / "teacher"}'
  assert adapt(models, tmp_path / 'out', teacher, *GPL, *flags) == 2
  said = capfd.readouterr()
  assert re.search(message, said.err)
  assert '$ dualenc generate' not in said.out
  assert not (tmp_path / 'out').exists()


@pytest.mark.slow
def test_a_batch_of_more_than_there_is_names_the_flag(tmp_path, capfd):
  model = tiny_evaluation.link_model(tmp_path)
  mine, corpus = tmp_path / 'mine', tmp_path / 'corpus'
  tiny_beir.make(0).write(mine, 'train')
  for name in ('queries.jsonl', 'qrels'):
    (mine / name).rename(mine / f'qgen-{name}')
  corpus.mkdir()
  (corpus / 'corpus.jsonl').write_text((mine / 'corpus.jsonl').read_text())
  assert cli.main([
      'adapt', f'--model_dir={model}', f'--corpus={corpus}',
      f'--replace=queries={mine}', f'--output_dir={tmp_path / "out"}',
      '--gin.ADAPT_BATCH_SIZE=1000',
  ]) == 2
  said = capfd.readouterr().err
  assert 'BATCH_SIZE is 1,000, but beir' in said
  assert 'split train, has at most 8 examples' in said
  assert 'BATCH_SIZE is --gin.ADAPT_BATCH_SIZE' in said


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--corpus=missing'], 'expected a folder in BEIR'),
        (['--corpus=model'], 'no model/corpus.jsonl'),
        (['--model_dir=.'], 'has no config.gin'),
        (['--output_dir=corpus/out'], 'inside the folder of the corpus'),
        (['--generator='], '--replace=queries=FOLDER'),
        (['--source_split=test', '--split=dev'], 'has no qrels of dev'),
        (['--split=dev'], 'has no qrels of it; it has none'),
        (['--generator=away'], '--generator is away, which does not exist'),
        (
            ['--generator=corpus', '--teacher=away'],
            '--teacher is away, which does not exist',
        ),
    ],
)
def test_what_is_missing_is_named(
    tmp_path, monkeypatch, capsys, flags, message
):
  monkeypatch.chdir(tmp_path)
  write_empty(tmp_path, 'model/config.gin', 'corpus/corpus.jsonl')
  given = ['--model_dir=model', '--corpus=corpus', '--generator=x', *flags]
  given = [flag for flag in given if flag != '--generator=']
  if '--generator=' in flags:
    given.remove('--generator=x')
  assert cli.main(['adapt', *given]) == 2
  assert message in capsys.readouterr().err


def test_listwise_kl_is_a_flag(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  write_empty(
      tmp_path, 'model/config.gin', 'model/vocabulary.model',
      'corpus/corpus.jsonl', 'teacher/scores.tsv',
  )
  assert cli.main([
      'adapt', '--model_dir=model', '--corpus=corpus', '--generator=model',
      '--teacher=teacher/scores.tsv', "--gin.LOSS=['losses/distill.gin']",
      '--gin.SOFTMAX_WEIGHT=0.0', '--list',
  ]) == 0
  lines = capsys.readouterr().out.splitlines()
  line = lines[lines.index('# adapted') + 1].split()
  assert line[:2] == ['dualenc', 'train']
  files = [flag for flag in line if flag.startswith('--gin_file=')]
  assert files[-1] == '--gin_file=losses/distill.gin'
  assert '--gin_file=losses/margin_mse.gin' not in files
  assert '--gin.SOFTMAX_WEIGHT=0.0' in line


def test_queries_of_ones_own_need_no_generator(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  write_empty(
      tmp_path, 'model/config.gin', 'model/vocabulary.model',
      'corpus/corpus.jsonl', 'mine/qgen-queries.jsonl',
  )
  assert cli.main([
      'adapt', '--model_dir=model', '--corpus=corpus',
      '--replace=queries=mine', '--list',
  ]) == 0
  said = capsys.readouterr().out
  assert '# generator' not in said and '--gin.BEIR_FOLDER=mine' in said
  # Nothing to measure on.
  assert said.rindex('# ') == said.index('# adapted') and '# before' not in said


@pytest.mark.parametrize(
    ('own', 'is_generated', 'message'),
    [
        ({'a': 'One.'}, True, None),
        ({'a': 'Uno.'}, True, "another text for"),
        ({'a': 'Uno.'}, False, None),
        ({'a': 'One.', 'c': 'Three.'}, False, "'c', which the latter does not"),
    ],
)
def test_queries_of_another_corpus_are_refused(
    tmp_path, monkeypatch, capsys, own, is_generated, message
):
  monkeypatch.chdir(tmp_path)
  for name, texts in (('corpus', {'a': 'One.', 'b': 'Two.'}), ('mine', own)):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'corpus.jsonl').write_text(
        '\n'.join(json.dumps({'_id': i, 'text': t}) for i, t in texts.items())
    )
  (tmp_path / 'mine' / 'qgen-queries.jsonl').write_text('')
  if is_generated:
    (tmp_path / 'mine' / 'generated.json').write_text('{"corpus": "abc"}')
  (tmp_path / 'model').mkdir()
  for name in ('config.gin', 'vocabulary.model'):
    (tmp_path / 'model' / name).write_text('')
  # Nor is a generator wanted, nor what it would be trained by.
  status = cli.main([
      'recipe', '--gin_file=recipes/genq.gin', '--work_dir=out',
      '--replace=source=model', '--replace=queries=mine', '--until=queries',
      '--gin.CORPUS=corpus', '--gin.CORPUS_FILE=corpus/corpus.jsonl',
  ])
  said = capsys.readouterr()
  assert status == (0 if message is None else 2), said.err
  if message is None:
    assert re.search('generator *not wanted', said.out)
  else:
    assert 'mine has queries of another corpus' in said.err
    assert message in said.err
