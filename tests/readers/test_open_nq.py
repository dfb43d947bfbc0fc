"""open_nq: DPR's files, their quoting, options, and every kind of bad input."""

import csv
import json
import logging

import pytest
from reading import column, DATA, refused, write

from dualenc_jax.data.dataset import example
from dualenc_jax.data.readers import files, Pairs
from dualenc_jax.data.readers.open_nq import OpenNQ
from dualenc_jax.utils.errors import SourceUnavailable

ROOT = DATA / 'open_nq'
TRAIN = 'biencoder-nq-train.json'
CORPUS = 'psgs_w100.tsv'
TEST = 'nq-test.qa.csv'


def read(split, root=ROOT, **options):
  return list(OpenNQ(root=str(root), **options).examples(split))


# As the corpus has them, which is compared with csv below.
PASSAGES = {row['passage_id']: row['passage'] for row in read('corpus')}
LAKE, FERRIES, PILOT = (PASSAGES[i] for i in ('1', '2', '8'))


def bad(split, root, *parts, **options):
  refused(lambda: read(split, root, **options), *parts)


def write_rows(folder, *rows):
  return write(folder / TRAIN, [*rows])


def context(text, **more):
  return {'title': 'T', 'text': text, 'passage_id': '1', **more}


def question(**more):
  return {
      'question': 'q', 'answers': ['a'], 'positive_ctxs': [context('p')],
      'negative_ctxs': [], 'hard_negative_ctxs': [context('n')], **more,
  }


def test_train(caplog):
  caplog.set_level(logging.INFO)
  rows = read('train')
  assert rows[0] == example(
      'when did lake orlo freeze over last', LAKE, negatives=[FERRIES, PILOT],
      passage_id='1', name='Lake Orlo', location=f'{ROOT / TRAIN}:1',
      answers=['1931'],
  )
  assert column(rows, 'passage_id') == ['1', '5', '6']
  assert rows[2]['query'] == "how many arches does the bridge's side have"
  assert rows[2]['negatives'] == []
  assert rows[2]['location'] == f'{ROOT / TRAIN}:4'
  assert '1 questions without a positive' in caplog.text


def test_validation_and_the_questions_of_test():
  rows = read('validation')
  assert column(rows, 'passage_id') == ['6', '2']
  assert column(rows, 'relevance') == [1, 1]
  rows = read('test')
  assert rows[0] == example(
      'when did the bridge of tarn open', query_id='test-1',
      answers=['3 June 1907', '3 June, 1907'], location=f'{ROOT / TEST}:1',
  )
  assert rows[2]['query'] == "what do they sell on tarn's market"
  assert rows[2]['answers'] == ['"Tarn" clocks', "the shepherds' wool", 'salt']
  # A question may stand there twice.
  assert rows[3]['query'] == rows[0]['query']
  assert rows[3]['query_id'] == 'test-4' and rows[3]['answers'] == ['1908']
  (row,) = read('validation_questions')
  assert row['query_id'] == 'validation_questions-1'


def test_corpus_is_what_dpr_reads():
  rows = read('corpus')
  with open(ROOT / CORPUS, encoding='utf-8') as stream:
    expected = [
        (name, title, f'{title} {text}'.lstrip(' '))
        for name, text, title in (
            (row[0], row[1].strip('"'), row[2])
            for row in csv.reader(stream, delimiter='\t')
            if row[0] != 'id'
        )
    ]
  names = 'passage_id', 'name', 'passage'
  assert expected == [tuple(row[name] for name in names) for row in rows]
  # Quotation marks at the ends of the text are gone, those inside are not.
  assert rows[2]['passage'].startswith('"Glass Harbour" (album) Glass Harbour"')
  assert len(rows) == 12
  assert not any(row['query'] or row['answers'] for row in rows)


def test_where_answers_are_looked_for():
  assert OpenNQ().answer_text('Tarn In Tarn.', 'Tarn') == ' In Tarn.'
  assert Pairs().answer_text('Tarn In Tarn.', 'Tarn') == 'Tarn In Tarn.'


def test_splits(tmp_path):
  reader = OpenNQ(root=str(ROOT))
  ranked = 'validation', 'validation_questions', 'test'
  assert reader.splits() == ('train', *ranked, 'corpus')
  assert reader.corpus_split('train') is None
  assert {*map(reader.corpus_split, ranked)} == {'corpus'}
  check = OpenNQ(data_root=str(tmp_path)).check_split
  parts = 'psgs_w100.tsv.gz', 'https', '21,015,324'
  refused(lambda: check('corpus'), *parts, error=SourceUnavailable)


@pytest.mark.parametrize('row, message', [
    ('text', 'not a JSON object'),
    (question(positive_ctxs='p'), "'positive_ctxs' is not a list of obj"),
    (question(positive_ctxs=[{'title': 'T'}]), "'text' is missing"),
    (question(positive_ctxs=[context('p', passage_id=[1])]),
     "'passage_id' is neither"),
])
def test_bad_rows_of_json(tmp_path, caplog, row, message):
  path = write_rows(tmp_path, question(), row, question())
  bad('train', tmp_path, f'{path}:2: ', message)
  rows = read('train', tmp_path, strict=False)
  assert column(rows, 'location') == [f'{path}:1', f'{path}:3']
  assert 'skipped 1 bad rows of 3' in caplog.text


def test_a_positive_in_negatives_is_dropped_there(tmp_path, caplog):
  caplog.set_level(logging.INFO)
  write_rows(tmp_path, question(
      positive_ctxs=[context('p'), context('second')],
      hard_negative_ctxs=[context('second'), context('n')],
  ))
  bad('train', tmp_path, ':1: a positive passage is among')
  (row,) = read('train', tmp_path, strict=False)
  assert row['negatives'] == ['T n']
  assert 'skipped 1 negatives' in caplog.text


@pytest.mark.parametrize('split, line, message', [
    ('corpus', b'2\ttext', '2 columns, expected 3 (id, text, title'),
    ('test', 'question only', '1 columns, expected 2 (question, answers'),
    ('test', "q\t__import__('os')", "'answers' is not a list of strings"),
])
def test_bad_lines(tmp_path, split, line, message):
  good = {'corpus': (CORPUS, '1\tone\tT'), 'test': (TEST, "q\t['a']")}
  name, first = good[split]
  write(tmp_path / name, first, line)
  bad(split, tmp_path, f'{name}:2: {message}')
  assert len(read(split, tmp_path, strict=False)) == 1


@pytest.mark.parametrize('size', [1, 7, 2**20])
def test_an_array_in_blocks_of_any_size(tmp_path, size):
  path = tmp_path / 'a.json'
  values = [
      {'a': [1, {'b': 'ö"\\\u2028]},{'}]}, 12345, -0.25e-3, True, None, 'text',
      [], {},
  ]
  for text in (
      json.dumps(values),
      json.dumps(values, indent=2, ensure_ascii=False) + '\n\n',
      '\ufeff' + json.dumps(values, separators=(',', ':')),
  ):
    path.write_text(text, encoding='utf-8')
    assert list(files.elements(path, size)) == [*enumerate(values, 1)]
  path.write_text(' [ ] ')
  assert list(files.elements(path, size)) == []


@pytest.mark.parametrize('text, message', [
    ('{"a": 1}', "0 elements: not JSON"),
    ('[{}, {"a": 1', '1 elements: not JSON'),
    ('[{}', "1 elements: not JSON"),
    ('[{}] 1', '1 elements: not JSON'),
])
def test_what_is_not_an_array(tmp_path, text, message):
  path = tmp_path / 'a.json'
  path.write_text(text)
  refused(lambda: files.elements(path), f'a.json, after {message}')
