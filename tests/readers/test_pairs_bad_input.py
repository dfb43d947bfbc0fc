"""pairs' reader: every kind of bad input, with its file and line."""

import json
import logging

import pytest
from test_pairs import FOLDER, GOOD, read, write, write_rows

from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.readers.pairs import Pairs

BAD_JSONL = [
    ('{"query": "q"', 'not JSON'),
    ('plain text', 'not JSON'),
    ('{"query": 1' + '0' * 5000 + '}', 'not JSON'),
    ('[' * 100_000, 'values within values, too deep'),
    ('["q", "p"]', 'not a JSON object'),
    ('{"query": "q", "pos": 1}', "column 'passage' is missing"),
    ('{"passage": "p"}', '--gin.QUERY_COLUMN=... gives its name'),
    ('{"query": "", "passage": "p"}', "'query' is empty"),
    ('{"query": "q", "passage": " \\n\\t"}', "'passage' is empty"),
    ('{"query": 3, "passage": "p"}', "'query' holds int, not a string"),
    ('{"query": ["q"], "passage": "p"}', "'query' holds list, not a string"),
    ('{"query": "q", "passage": null}', "'passage' holds NoneType"),
    ('{"query": "q", "passage": []}', "'passage' is an empty list"),
    ('{"query": "q", "passage": ["p", ""]}', "'passage' is empty"),
    ('{"query": "q", "passage": {"text": "p"}}', "'passage' holds dict"),
    ('{"query": "q", "passage": "\\ud800"}', "'passage' is not valid Unicode"),
    (b'{"query": "\xff", "passage": "p"}', 'not UTF-8'),
    ('{"query": "q", "passage": "p", "negatives": 1}', "'negatives' holds int"),
    ('{"query": "q", "passage": "p", "negatives": [1]}', "'negatives' holds"),
    ('{"query": "q", "passage": "p", "negatives": [""]}', 'is empty'),
    ('{"query": "q", "passage": "p", "negatives_2": " "}', "'negatives_2' is"),
    ('{"query": "q", "passage": "p", "query_id": [1]}', "'query_id' is nei"),
    ('{"query": "q", "passage": "p", "passage_id": true}', "'passage_id' is n"),
    ('{"query": "q", "passage": "p", "name": 1.5}', "'name' is neither"),
    (
        '{"query": "q", "passage": ["p", "r"], "passage_id": 1}',
        "'passage_id' holds 1 values for 2 texts",
    ),
]


@pytest.mark.parametrize('line, reason', BAD_JSONL)
def test_bad_jsonl_rows(tmp_path, caplog, line, reason):
  path = write(tmp_path / 'a.jsonl', json.dumps(GOOD), line, json.dumps(GOOD))
  with pytest.raises(UserError) as error:
    read(path)
  assert str(error.value).startswith(f'{path}:2: ')
  assert reason in str(error.value)
  with caplog.at_level(logging.WARNING):
    assert len(read(path, strict=False)) == 2
  assert 'skipped 1 bad rows of 3' in caplog.text and reason in caplog.text


BAD_TSV = [
    ('q', '1 columns, expected 2 (query, passage)'),
    ('q\tp\tx', '3 columns, expected 2 (query, passage)'),
    ('q\t ', "'passage' is empty"),
    (b'q\t\xff', 'not UTF-8'),
]


@pytest.mark.parametrize('line, reason', BAD_TSV)
def test_bad_tsv_rows(tmp_path, line, reason):
  path = write(tmp_path / 'a.tsv', 'query\tpassage', 'q\tp', line)
  with pytest.raises(UserError) as error:
    read(path)
  assert str(error.value).startswith(f'{path}:3: {reason}')
  assert len(read(path, strict=False)) == 1


def test_titles_and_texts_of_unequal_number(tmp_path):
  row = GOOD | {'negatives': ['n', 'o'], 'titles': ['N']}
  path = write_rows(tmp_path / 'a.jsonl', row)
  with pytest.raises(UserError, match="'titles' holds 1 values for 2 texts"):
    read(path, negative_titles='titles')


def test_skipped_rows_are_counted_by_reason(tmp_path, caplog):
  path = write(tmp_path / 'a.jsonl', 'x', 'y', '[]', json.dumps(GOOD))
  with caplog.at_level(logging.WARNING):
    read(path, strict=False)
  assert '2 not JSON, 1 not a JSON object' in caplog.text


def test_no_good_row_is_an_error_all_the_same(tmp_path):
  path = write(tmp_path / 'a.jsonl', 'x', 'y')
  with pytest.raises(UserError, match='no good row, 2 bad: 2 not JSON'):
    read(path, strict=False)


@pytest.mark.parametrize('name', ['a.jsonl', 'a.tsv', 'a.tsv.gz'])
@pytest.mark.parametrize('lines', [[], ['', ' ']])
def test_empty_files(tmp_path, name, lines):
  path = write(tmp_path / name, *lines)
  with pytest.raises(UserError, match='has no rows'):
    read(path)


def test_a_tsv_of_names_only(tmp_path):
  path = write(tmp_path / 'a.tsv', 'query\tpassage')
  with pytest.raises(UserError, match='has no rows'):
    read(path)


def test_tsv_without_a_line_of_names(tmp_path):
  path = write(tmp_path / 'a.tsv', 'what is x\tx is a letter')
  with pytest.raises(UserError) as error:
    read(path)
  assert "has no column 'query'" in str(error.value)
  assert 'Columns: what is x, x is a letter.' in str(error.value)
  assert '--gin.COLUMNS="(' in str(error.value)


def test_a_first_line_that_is_not_utf_8(tmp_path):
  path = write(tmp_path / 'a.tsv', b'query\tpassage\xff')
  with pytest.raises(UserError, match=r'a\.tsv:1: not UTF-8'):
    read(path)


def test_a_column_that_was_asked_for_is_missing(tmp_path):
  path = write(tmp_path / 'a.tsv', 'query\tpassage\tnegs', 'q\tp\tn')
  with pytest.raises(UserError, match="no column 'neg'. Did you mean 'negs'"):
    read(path, negatives='neg')
  with pytest.raises(UserError, match="no column 'title'.*TITLE_COLUMN=") as e:
    read(path, title='title')
  assert '--gin.COLUMNS' in str(e.value)
  with pytest.raises(UserError, match="no column 'pid'.*PASSAGE_ID_COLUMN="):
    read(path, columns=('query', 'passage', ''), passage_id='pid')
  path = write_rows(tmp_path / 'a.jsonl', GOOD | {'negs': ['n']}, GOOD)
  with pytest.raises(UserError, match="no row has a column 'neg'.*NEGATIVES_C"):
    read(path, negatives='neg')
  # One row that has it will do.
  assert len(read(path, negatives='negs')) == 2
  path = write(tmp_path / 'b.jsonl', '{"query": "q", "pos": 1}')
  with pytest.raises(UserError, match=r"missing among \['query', 'pos'\]"):
    read(path)
  with pytest.raises(UserError, match="no row has a column 'passage'"):
    read(path, strict=False)


def test_a_used_column_occurs_twice(tmp_path):
  path = write(tmp_path / 'a.tsv', 'q\tp\tn')
  with pytest.raises(UserError, match="two columns 'negatives'"):
    read(path, columns=('query', 'passage', 'negatives', 'negatives'))
  (example,) = read(
      path, query='x', passage='y', columns=('x', 'y', 'negatives_1')
  )
  assert example['negatives'] == ['n']
  path = write(tmp_path / 'a.tsv', 'q\tx\tp\ty')
  columns = ('query', '', 'passage', '')
  assert read(path, columns=columns)[0]['passage'] == 'p'


@pytest.mark.parametrize('cut', [20, 200])
def test_truncated_gzip(tmp_path, cut):
  path = tmp_path / 'a.jsonl.gz'
  write_rows(path, *[GOOD | {'name': str(i)} for i in range(500)])
  path.write_bytes(path.read_bytes()[:-cut])
  with pytest.raises(UserError, match=r'a\.jsonl\.gz is a damaged gzip'):
    read(path)


def test_damaged_gzip(tmp_path):
  path = tmp_path / 'a.tsv.gz'
  write(path, 'query\tpassage', *[f'q {i}\tp {i * i}' for i in range(5000)])
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 0xFF
  path.write_bytes(bytes(content))
  with pytest.raises(UserError, match=r'a\.tsv\.gz'):
    read(path)
  path.write_bytes(b'query\tpassage\nq\tp\n')
  with pytest.raises(
      UserError, match='damaged gzip file, after line 0.* Take .gz off its name'
  ):
    read(path)


def test_missing_files_and_splits(tmp_path):
  path = write_rows(tmp_path / 'a.jsonl', GOOD)
  with pytest.raises(UserError, match='it has train.*--gin.VALIDATION_FILE='):
    list(Pairs(train=path).examples('validation'))
  with pytest.raises(UserError, match="no split 'dev'"):
    Pairs(train=path).check_split('dev')
  with pytest.raises(
      SourceUnavailable, match='no file .*b.jsonl.*--gin.TRAIN_FILE='
  ):
    read(tmp_path / 'b.jsonl')
  with pytest.raises(UserError, match='is a folder'):
    read(tmp_path)


def test_unknown_formats(tmp_path):
  path = write(tmp_path / 'a.txt', 'query passage')
  with pytest.raises(UserError, match=r'a\.txt is of an unknown form.*FORMAT'):
    Pairs(train=path).check_split('train')
  with pytest.raises(UserError, match="'jsonlines'.*Did you mean 'jsonl'"):
    Pairs(train=path, format='jsonlines')


def test_options_are_checked():
  with pytest.raises(UserError, match="STRICT .* is 'skip'.*True or False"):
    Pairs(strict='skip')
  with pytest.raises(UserError, match="COLUMNS is the string 'query'"):
    Pairs(columns='query')


def test_a_flagembedding_file_without_its_column_names():
  path = FOLDER / 'flagembedding.jsonl'
  with pytest.raises(UserError, match=r"among \['query', 'pos', 'neg',"):
    read(path)
