"""pairs' reader: formats, and every kind of bad row with its file and line."""

import gzip
import json
import logging

import pytest

from dualenc_jax.data.pairs import Pairs
from dualenc_jax.errors import UserError

GOOD = {'query': 'q', 'passage': 'p'}


def write(path, *lines):
  data = b''.join(
      (line if isinstance(line, bytes) else line.encode('utf-8')) + b'\n'
      for line in lines
  )
  path.write_bytes(gzip.compress(data) if path.suffix == '.gz' else data)
  return str(path)


def read(path, **options):
  return list(Pairs(train=str(path), **options).examples('train'))


@pytest.mark.parametrize('name', ['a.jsonl', 'a.jsonl.gz'])
def test_jsonl(tmp_path, name):
  row = GOOD | {'negatives': ['n1', 'n2'], 'query_id': 7, 'name': 'shown'}
  bare = GOOD | {'query_id': None}
  path = write(tmp_path / name, json.dumps(row), '', json.dumps(bare))
  plain = {'query': 'q', 'passage': 'p', 'passage_id': ''}
  assert read(path) == [
      plain
      | {
          'negatives': ['n1', 'n2'],
          'query_id': '7',
          'name': 'shown',
          'location': f'{path}:1',
      },
      plain
      | {
          'negatives': [],
          'query_id': '',
          'name': '',
          'location': f'{path}:3',
      },
  ]


@pytest.mark.parametrize('name', ['a.tsv', 'a.tsv.gz'])
def test_tsv(tmp_path, name):
  path = write(
      tmp_path / name,
      '\ufeffpassage_id\tquery\tnegatives_1\tpassage\tnegatives_2',
      '3\tq "1"\tn1\tp1\tn2',
      '4\tq2\t\tp2\tn3\r',
  )
  first, second = read(path)
  assert first['query'] == 'q "1"' and first['passage'] == 'p1'
  assert first['negatives'] == ['n1', 'n2'] and first['passage_id'] == '3'
  assert second['negatives'] == ['n3'] and second['location'] == f'{path}:3'


def test_other_column_names(tmp_path):
  row = {'question': 'q', 'context': 'p', 'hard': ['n']}
  path = write(tmp_path / 'a.jsonl', json.dumps(row))
  (example,) = read(path, query='question', passage='context', negatives='hard')
  assert (example['query'], example['passage']) == ('q', 'p')
  assert example['negatives'] == ['n']


BAD_JSONL = [
    ('{"query": "q"', 'not JSON'),
    ('plain text', 'not JSON'),
    ('["q", "p"]', 'not a JSON object'),
    ('{"query": "q"}', "column 'passage' is missing"),
    ('{"passage": "p"}', "column 'query' is missing"),
    ('{"query": "", "passage": "p"}', "'query' is empty"),
    ('{"query": "q", "passage": " \\n\\t"}', "'passage' is empty"),
    ('{"query": 3, "passage": "p"}', "'query' holds int, not a string"),
    ('{"query": "q", "passage": null}', "'passage' holds NoneType"),
    ('{"query": "q", "passage": "\\ud800"}', "'passage' is not valid Unicode"),
    (b'{"query": "\xff", "passage": "p"}', 'not UTF-8'),
    ('{"query": "q", "passage": "p", "negatives": "n"}', 'not a list'),
    ('{"query": "q", "passage": "p", "negatives": [1]}', "'negatives' holds"),
    ('{"query": "q", "passage": "p", "negatives": [""]}', 'is empty'),
    ('{"query": "q", "passage": "p", "query_id": [1]}', "'query_id' is nei"),
]


@pytest.mark.parametrize('line,reason', BAD_JSONL)
def test_bad_jsonl_rows(tmp_path, caplog, line, reason):
  path = write(tmp_path / 'a.jsonl', json.dumps(GOOD), line, json.dumps(GOOD))
  with pytest.raises(UserError) as error:
    read(path)
  assert str(error.value).startswith(f'{path}:2: ')
  assert reason in str(error.value)
  with caplog.at_level(logging.WARNING):
    assert len(read(path, on_bad_row='skip')) == 2
  assert 'skipped 1 bad rows of 3' in caplog.text and reason in caplog.text


BAD_TSV = [
    ('q', '1 columns, the header has 2'),
    ('q\tp\tx', '3 columns, the header has 2'),
    ('q\t ', "'passage' is empty"),
    (b'q\t\xff', 'not UTF-8'),
]


@pytest.mark.parametrize('line,reason', BAD_TSV)
def test_bad_tsv_rows(tmp_path, line, reason):
  path = write(tmp_path / 'a.tsv', 'query\tpassage', 'q\tp', line)
  with pytest.raises(UserError) as error:
    read(path)
  assert str(error.value).startswith(f'{path}:3: {reason}')
  assert len(read(path, on_bad_row='skip')) == 1


def test_skipped_rows_are_counted_by_reason(tmp_path, caplog):
  path = write(tmp_path / 'a.jsonl', 'x', 'y', '[]', json.dumps(GOOD))
  with caplog.at_level(logging.WARNING):
    read(path, on_bad_row='skip')
  assert '2 not JSON, 1 not a JSON object' in caplog.text


@pytest.mark.parametrize('lines', [[], ['x', 'y']])
def test_no_good_row_is_an_error_all_the_same(tmp_path, lines):
  path = write(tmp_path / 'a.jsonl', *lines)
  with pytest.raises(UserError, match=f'no good row .{len(lines)} bad ones'):
    read(path, on_bad_row='skip')


def test_tsv_without_a_header(tmp_path):
  path = write(tmp_path / 'a.tsv', 'what is x\tx is a letter')
  with pytest.raises(UserError, match=r'a\.tsv:1: .* must name its columns'):
    read(path)


def test_splits_and_missing_files(tmp_path):
  path = write(tmp_path / 'a.jsonl', json.dumps(GOOD))
  assert Pairs(train=path, test=path).splits() == ('train', 'test')
  with pytest.raises(UserError, match='--gin.VALIDATION_FILE='):
    list(Pairs(train=path).examples('validation'))
  with pytest.raises(UserError, match='no file .*b.jsonl.*--gin.TRAIN_FILE='):
    read(tmp_path / 'b.jsonl')


def test_unknown_format_and_damaged_gzip(tmp_path):
  with pytest.raises(UserError, match=r'a\.csv is of an unknown format'):
    read(write(tmp_path / 'a.csv', 'query,passage'))
  path = tmp_path / 'a.jsonl.gz'
  write(path, *[json.dumps(GOOD | {'name': str(i)}) for i in range(500)])
  path.write_bytes(path.read_bytes()[:-20])
  with pytest.raises(UserError, match='damaged gzip'):
    read(path)


def test_on_bad_row_is_checked():
  with pytest.raises(UserError, match="on_bad_row is 'ignore'"):
    Pairs(on_bad_row='ignore')


def test_fingerprint_is_of_the_content(tmp_path):
  one = write(tmp_path / 'a.jsonl', json.dumps(GOOD))
  two = write(tmp_path / 'b.jsonl', json.dumps(GOOD))
  assert Pairs(train=one).fingerprint('train') == Pairs(
      train=two
  ).fingerprint('train')
  write(tmp_path / 'b.jsonl', json.dumps(GOOD | {'query': 'r'}))
  assert Pairs(train=one).fingerprint('train') != Pairs(
      train=two
  ).fingerprint('train')
