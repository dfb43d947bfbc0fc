"""A teacher's scores in files of hard negatives: ce-score, GPL's margins."""

import json
import math

import pytest
import tiny_beir
import tiny_run

from dualenc_jax.commands import cli
from dualenc_jax.errors import UserError
from dualenc_jax.readers import Beir

CORPUS = {f'd{i}': f'passage {i}' for i in range(5)}
QUERIES = {'q0': 'query zero', 'q1': 'query one'}
QRELS = {'q0': {'d0': 1}, 'q1': {'d1': 1, 'd2': 1}}
CE_SCORES = [
    {
        'qid': 'q0',
        'pos': [{'pid': 'd0', 'ce-score': 8.5}],
        'neg': {
            'bm25': [{'pid': 'd3', 'ce-score': -2.0}, 'd4'],
            'dense': [{'pid': 'd3', 'ce-score': -2.0}],
        },
    },
    {
        'qid': 'q1',
        'pos': [
            {'pid': 'd1', 'ce-score': 3}, {'pid': 'd2', 'ce-score': '4.5'}
        ],
        'neg': {'bm25': [{'pid': 'd4', 'ce-score': 0.25}]},
    },
]
MARGINS = [('q0', 'd0', 'd3', '10.5'), ('q0', 'd0', 'd4', '-1.0')]


@pytest.fixture
def folder(tmp_path):
  tiny_beir.TinySet(CORPUS, QUERIES, QRELS).write(tmp_path / 'set', 'train')
  return tmp_path


def lines(rows):
  return ''.join(
      (json.dumps(row) if isinstance(row, dict) else '\t'.join(row)) + '\n'
      for row in rows
  )


def read(folder, rows, **options):
  path = folder / 'mined'
  path.write_text(lines(rows))
  options = {'scores': True} | options
  reader = Beir(
      folder=str(folder / 'set'), hard_negatives=str(path), **options
  )
  return reader, list(reader.examples('train'))


def test_ce_scores(folder):
  reader, examples = read(folder, CE_SCORES)
  assert [column.name for column in reader.extra_columns] == ['teacher_scores']
  first, *of_several = examples
  assert first['negatives'] == ['passage 3', 'passage 4']
  *known, unknown = first['teacher_scores']
  assert known == [8.5, -2.0] and math.isnan(unknown)
  # Each positive has its own.
  assert [e['teacher_scores'] for e in of_several] == [[3, 0.25], [4.5, 0.25]]


def test_margins(folder):
  _, examples = read(folder, MARGINS)
  assert examples[0]['negatives'] == ['passage 3', 'passage 4']
  assert examples[0]['teacher_scores'] == [0.0, -10.5, 1.0]
  # Nothing is known of the others.
  assert [len(e['teacher_scores']) for e in examples[1:]] == [1, 1]
  assert all(math.isnan(e['teacher_scores'][0]) for e in examples[1:])


def test_scores_are_left_where_they_are_not_asked_for(folder):
  for rows in (CE_SCORES, MARGINS):
    reader, examples = read(folder, rows, scores=False)
    assert not reader.extra_columns and 'teacher_scores' not in examples[0]
  _, examples = read(folder, [('q0', 'd0', 'd3', 'a note')], scores=False)
  assert examples[0]['negatives'] == ['passage 3']


@pytest.mark.parametrize(
    'rows, message',
    [
        ([('q0', 'd0', 'd3')], r"mined:1: 'margin' holds None; expected a fin"),
        ([('q0', 'd0', 'd3', 'nan')], r"mined:1: 'margin' holds 'nan'"),
        (
            [{**CE_SCORES[0], 'pos': [{'pid': 'd0', 'ce-score': 'high'}]}],
            r"mined:1: 'ce-score' holds 'high'; expected a finite number",
        ),
        (
            [{'qid': 'q0', 'pos': ['d0'], 'neg': {'bm25': ['d3']}}],
            'mined has no scores of a teacher',
        ),
        (
            [('q1', 'd1', 'd3', '2'), ('q1', 'd2', 'd4', '3')],
            "mined:1: the margins of this query are over several .* 'd1', 'd2'",
        ),
        ([('q9', 'd0', 'd3', '2')], 'has hard negatives of none of the 2 quer'),
        ([MARGINS[0], ('q1', 'd1', 'd3', '2'), MARGINS[1]], 'sort -s -k1,1'),
    ],
)
def test_bad_scores(folder, rows, message):
  with pytest.raises(UserError, match=message):
    read(folder, rows)


def test_a_file_beside_the_corpus(folder):
  path = folder / 'set' / 'mined.tsv'
  path.write_text(lines(MARGINS))
  reader = Beir(folder=str(folder / 'set'), hard_negatives='mined.tsv')
  assert next(reader.examples('train'))['negatives']


def test_scores_without_a_file():
  with pytest.raises(UserError, match='BEIR_HARD_NEGATIVES'):
    Beir(folder='here', scores=True)


def test_gpl_through_the_command(shared, tmp_path):
  gpl = shared / 'data/hardneg_samples/gpl_sample-data/generated/fiqa'
  rows = (gpl / 'gpl-training-data.tsv').read_text().splitlines()
  # A query may stand there at several steps.
  mined = tmp_path / 'margins.tsv'
  mined.write_text(''.join(sorted(f'{row}\n' for row in rows)))
  cli.main([
      'train',
      '--gin_file=runs/finetune.gin',
      '--gin_file=tasks/beir.gin',
      '--gin_file=losses/margin_mse.gin',
      *tiny_run.small_flags(),
      '--gin.VOCABULARY=python_code_8k',
      '--gin.VOCAB_SIZE=8064',
      f'--gin.BEIR_FOLDER={gpl}',
      '--gin.BEIR_PREFIX=qgen',
      f'--gin.BEIR_HARD_NEGATIVES={mined}',
      '--gin.BEIR_SCORES=True',
      '--gin.NUM_NEGATIVES=1',
      '--gin.BATCH_SIZE=8',
      '--gin.STRICT=False',
      f'--model_dir={tmp_path / "model"}',
  ])
  lines = (tmp_path / 'model' / 'metrics.jsonl').read_text().splitlines()
  found = json.loads(lines[-1])
  assert found['taught_fraction'] > 0 and found['loss'] > 0
