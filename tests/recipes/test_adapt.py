"""A model adapted to a corpus without queries, as a user does it."""

import json
import re
import shutil

import pytest
import shared_runs
import tiny_beir
import tiny_evaluation

from dualenc_jax.cli import main as cli

FEW = [
    '--gin.QUERIES_PER_PASSAGE=3', '--gin.ADAPT_STEPS=3',
    '--gin.ADAPT_BATCH_SIZE=16', '--gin.DEPTH=20', '--gin.NEGATIVES=4',
    '--gin.NUM_NEGATIVES=2', '--gin.LEAST_SPREAD=0.0',
]


@pytest.fixture
def given(tmp_path):
  """The models of an adaptation, a teacher that cannot be one, a corpus."""
  tiny_beir.make_large().write(tmp_path / 'corpus')
  teacher, foreign = shared_runs.cross_encoder(), tmp_path / 'foreign'
  shutil.copytree(teacher, foreign)
  for meta in foreign.glob('checkpoints/*/meta/metadata'):
    saved = json.loads(meta.read_text())
    saved['data']['vocabulary'] = 64 * '0'
    del saved['digests'], saved['sha256']
    meta.write_text(json.dumps(saved))
  return {
      'dense': tiny_evaluation.shared_model(), 'teacher': teacher,
      'generator': shared_runs.generator(), 'foreign': foreign,
      'corpus': tmp_path / 'corpus',
  }


def adapt(given, out, *flags):
  return cli.main([
      'adapt', f'--model_dir={given["dense"]}', f'--corpus={given["corpus"]}',
      f'--generator={given["generator"]}', f'--teacher={given["teacher"]}',
      f'--output_dir={out}', *FEW, *flags,
  ])


@pytest.mark.slow
@pytest.mark.usefixtures('in_process')
def test_gpl_learns_a_teachers_margins_and_does_nothing_twice(
    given, tmp_path, capfd
):
  out = tmp_path / 'gpl'
  assert adapt(given, out, '--source_split=test') == 0
  said = capfd.readouterr().out
  assert said.splitlines()[0] == (
      'adapted: 3 steps of 16 examples, learning rate 0.001 to 0.'
  )
  assert 'Margins of ' in said
  assert f'The adapted model is {out}/adapted. Next: dualenc encode' in said
  assert 'word for word in the training' in said
  row = json.loads((out / 'labels' / 'pairs.jsonl').read_text().split('\n')[0])
  assert len(row['negatives']) == len(row['negative_scores']) == 4
  assert len(row['positive_scores']) == 1
  for name in ('comparison', 'source_comparison'):
    found = json.loads((out / name / 'comparison.json').read_text())
    assert 'adapted' in json.dumps(found)
  # Nothing is done twice.
  assert adapt(given, out, '--source_split=test') == 0
  said = ' '.join(capfd.readouterr().out.split())
  assert 'comparison as before' in said and ' ran ' not in said


@pytest.mark.slow
def test_what_a_late_stage_would_refuse_is_told_first(given, tmp_path, capfd):
  out = tmp_path / 'out'
  small = [
      'recipe', '--gin_file=recipes/gpl_small.gin', f'--work_dir={out}',
      f'--replace=source={given["dense"]}',
      *(f'--replace={n}={given[n]}' for n in ('generator', 'teacher')),
      f'--gin.CORPUS={str(given["corpus"])!r}',
      f'--gin.CORPUS_FILE={str(given["corpus"] / "corpus.jsonl")!r}',
      '--gin.CODEC=opq:16x4',
  ]
  for is_small, flag, message in (
      (False, '--teacher={generator}', 'is a generator, not a cross-encoder'),
      (False, '--generator={teacher}', 'is a cross-encoder, not a generator'),
      (False, '--model_dir={teacher}', 'a cross-encoder; expected a dual enc'),
      (False, "--gin.LOSS=['losses/margins.gin']", 'adapted: There is no gin'),
      (False, '--gin.SOFTMAX_WEIGHT=0', 'adapted: --gin.SOFTMAX_WEIGHT: no gi'),
      (False, '--gin.ADAPT_STEPS=0', 'adapted: .*STEPS is --gin.ADAPT_STEPS'),
      (True, '--gin.CODEC=int8', 'jpq: Stage source_codes makes codes by int8'),
      (True, '--gin.CODEC=pq:7', 'jpq: pq:7 of vectors of dim 128: the number'),
      (True, '--gin.CODEC=foo:7', "source_codes: No codec is called 'foo'"),
      (
          True, '--replace=teacher={foreign}',
          'jpq_gpl: .* of another vocabulary',
      ),
  ):
    flag = flag.format_map(given)
    status = cli.main([*small, flag]) if is_small else adapt(given, out, flag)
    said = capfd.readouterr()
    assert status == 2 and re.search(message, said.err), (flag, said.err)
    assert '$ dualenc' not in said.out and not out.exists()


def write_empty(folder, *names):
  for name in names:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text('')


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--corpus=model'], 'no model/corpus.jsonl'),
        (['--model_dir=.'], 'has no config.gin'),
        (['--output_dir=corpus/out'], 'inside the folder of the corpus'),
        (['--source_split=test', '--split=dev'], 'has no qrels of dev'),
        (['--generator=away'], '--generator is away, which does not exist'),
    ],
)
def test_what_is_missing_is_named(
    tmp_path, monkeypatch, capsys, flags, message
):
  monkeypatch.chdir(tmp_path)
  write_empty(tmp_path, 'model/config.gin', 'corpus/corpus.jsonl')
  given = ['--model_dir=model', '--corpus=corpus', '--generator=x', *flags]
  assert cli.main(['adapt', *given]) == 2
  assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ('own', 'is_generated', 'message'),
    [
        ({'a': 'One.'}, True, None),
        ({'a': 'Uno.'}, True, "another text for"),
        ({'a': 'One.', 'c': 'Three.'}, False, "'c', which the latter does not"),
    ],
)
def test_queries_of_another_corpus_are_refused(
    tmp_path, monkeypatch, capsys, own, is_generated, message
):
  monkeypatch.chdir(tmp_path)
  write_empty(
      tmp_path, 'model/config.gin', 'model/vocabulary.model',
      'mine/qgen-queries.jsonl', 'corpus/corpus.jsonl',
  )
  for name, texts in (('corpus', {'a': 'One.', 'b': 'Two.'}), ('mine', own)):
    rows = [json.dumps({'_id': i, 'text': text}) for i, text in texts.items()]
    (tmp_path / name / 'corpus.jsonl').write_text('\n'.join(rows))
  if is_generated:
    (tmp_path / 'mine' / 'generated.json').write_text('{"corpus": "abc"}')
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
