"""A teacher's scores in files of hard negatives: ce-score, GPL's margins."""

import math

import pytest
from reading import column, refused, write
import tiny_beir

from dualenc_jax.data.readers import Beir

CORPUS = {f'd{i}': f'passage {i}' for i in range(5)}
QUERIES = {'q0': 'query zero', 'q1': 'query one'}
QRELS = {'q0': {'d0': 1}, 'q1': {'d1': 1, 'd2': 1}}


def scored(**scores):
  return [{'pid': name, 'ce-score': score} for name, score in scores.items()]


CE_SCORES = [
    {'qid': 'q0', 'pos': scored(d0=8.5),
     'neg': {'bm25': [*scored(d3=-2.0), 'd4'], 'dense': scored(d3=-2.0)}},
    {'qid': 'q1', 'pos': scored(d1=3, d2='4.5'),
     'neg': {'bm25': scored(d4=0.25)}},
]
MARGINS = ['q0\td0\td3\t10.5', 'q0\td0\td4\t-1.0']


@pytest.fixture
def folder(tmp_path):
  tiny_beir.TinySet(CORPUS, QUERIES, QRELS).write(tmp_path / 'set', 'train')
  return tmp_path / 'set'


def read(folder, rows, scores=True):
  # Beside the corpus a bare name will do.
  write(folder / 'mined', *rows)
  options = {'hard_negatives': 'mined', 'scores': scores}
  reader = Beir(folder=str(folder), **options)
  return reader, list(reader.examples('train'))


def test_ce_scores(folder):
  reader, examples = read(folder, CE_SCORES)
  assert [column.name for column in reader.extra_columns] == ['teacher_scores']
  first, *of_several = examples
  assert first['negatives'] == ['passage 3', 'passage 4']
  *known, unknown = first['teacher_scores']
  assert known == [8.5, -2.0] and math.isnan(unknown)
  # Each positive has its own.
  assert column(of_several, 'teacher_scores') == [[3, 0.25], [4.5, 0.25]]


def test_margins(folder):
  _, examples = read(folder, MARGINS)
  assert examples[0]['negatives'] == ['passage 3', 'passage 4']
  first, *others = column(examples, 'teacher_scores')
  assert first == [0.0, -10.5, 1.0]
  # Nothing is known of the others.
  assert [len(scores) for scores in others] == [1, 1]
  assert all(math.isnan(score) for (score,) in others)


def test_scores_are_left_where_they_are_not_asked_for(folder):
  for rows in (CE_SCORES, MARGINS, ['q0\td0\td3\ta note']):
    reader, examples = read(folder, rows, scores=False)
    assert not reader.extra_columns and 'teacher_scores' not in examples[0]
    assert examples[0]['negatives'][0] == 'passage 3'


@pytest.mark.parametrize('rows, parts', [
    (['q0\td0\td3'], ["mined:1: 'margin' holds None; expected a finite"]),
    ([CE_SCORES[0] | {'pos': scored(d0='high')}],
     ["mined:1: 'ce-score' holds 'high'; expected a finite number"]),
    ([{'qid': 'q0', 'pos': ['d0'], 'neg': {'bm25': ['d3']}}],
     ['mined has no scores of a teacher']),
    (['q1\td1\td3\t2', 'q1\td2\td4\t3'],
     ['mined:1: the margins of this query are over several', "'d1', 'd2'"]),
    (['q9\td0\td3\t2'], ['has hard negatives of none of the 2 queries']),
    ([MARGINS[0], 'q1\td1\td3\t2', MARGINS[1]],
     ["mined:3: query 'q0' already", 'sort -s -k1,1']),
])
def test_bad_scores(folder, rows, parts):
  refused(lambda: read(folder, rows), *parts)
