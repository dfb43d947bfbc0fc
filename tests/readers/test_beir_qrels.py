"""Forms of qrels files, the first line among them."""

import gzip

import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.readers import qrels

ROWS = [('q1', 'd1', 1), ('q1', 'd 2', 0), ('q2', 'd1', 3)]
FORMS = {
    'header': 'query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td 2\t0\nq2\td1\t3\n',
    'no header': 'q1\td1\t1\nq1\td 2\t0\nq2\td1\t3\n',
    'four columns': 'q1\t0\td1\t1\nq1\t0\td 2\t0\nq2\t0\td1\t3\n',
    'json': '{\n"q1": {"d1": 1, "d 2": 0},\n"q2": {"d1": 3}}\n',
    'carriage returns': 'q1\td1\t1\r\n\r\nq1\td 2\t0\r\nq2\td1\t3\r\n',
    'byte order mark': '\ufeffq1\td1\t1\nq1\td 2\t0\nq2\td1\t3\n',
    'floats': 'q1\td1\t1.0\nq1\td 2\t0.0\nq2\td1\t3.0\n',
}


def rows(path, text):
  data = text.encode()
  path.write_bytes(gzip.compress(data) if path.suffix == '.gz' else data)
  found = qrels.read(path)
  return [(j.query_id, j.passage_id, j.grade) for j in found.judgements]


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('name', ['a.tsv', 'a.tsv.gz'])
def test_forms(tmp_path, form, name):
  assert rows(tmp_path / name, FORMS[form]) == ROWS


def test_trec_with_spaces(tmp_path):
  text = '19335 Q0 1017759 0\n19335  Q0  1082489   -1\n'
  assert rows(tmp_path / 'a.txt', text) == [
      ('19335', '1017759', 0),
      ('19335', '1082489', -1),
  ]


def test_ids_with_quotes_as_csv_writes_them(tmp_path):
  text = 'q1\t"""Heroes""_(song)"\t1\nq1\t"a" and "b\t1\nq1\t5"\t1\n'
  assert [name for _, name, _ in rows(tmp_path / 'a.tsv', text)] == [
      '"Heroes"_(song)',
      '"a" and "b',
      '5"',
  ]


def test_repeats_are_counted_as_rows(tmp_path):
  path = tmp_path / 'a.tsv'
  assert rows(path, 'q\td\t1\nq\td\t1\nq\te\t1\n') == [
      ('q', 'd', 1),
      ('q', 'e', 1),
  ]
  assert qrels.read(path).rows == 3


@pytest.mark.parametrize(
    'text, message',
    [
        ('', 'has no judgements'),
        ('query-id\tcorpus-id\tscore\n', 'has no judgements'),
        ('q\td\tnan\n', "a.tsv:1: grade 'nan'"),
        ('q\td\t1\nquery-id\tcorpus-id\tscore\n', "a.tsv:2: grade 'score'"),
        ('{"q": ["d"]}', "query 'q' has no object of passage ids"),
        ('{"q": {"d": "x"}}', "grade 'x' is not an integer"),
        ('{"q": {"d": 1%s}}' % ('0' * 400), '00 is not an integer'),
        ('{"q": {"d": 1}', 'not JSON'),
    ],
)
def test_bad_files(tmp_path, text, message):
  with pytest.raises(UserError) as error:
    rows(tmp_path / 'a.tsv', text)
  assert message in str(error.value) and 'a.tsv' in str(error.value)
