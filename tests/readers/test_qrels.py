"""Forms of qrels files, the first line among them."""

import pytest
from reading import refused, write

from dualenc_jax.data.readers import qrels

ROWS = [('q1', 'd1', 1), ('q1', 'd 2', 0), ('q2', 'd1', 3)]
BARE = ['q1\td1\t1', 'q1\td 2\t0', 'q2\td1\t3']
FORMS = {
    'header': ['query-id\tcorpus-id\tscore', *BARE],
    'no header': BARE,
    'four columns': [line.replace('\t', '\t0\t', 1) for line in BARE],
    'named columns': [
        'rank\tscore\tCorpus_ID\tqid',
        *(f'1\t{grade}\t{passage}\t{query}' for query, passage, grade in ROWS),
    ],
    'quoted': ['"' + line.replace('\t', '"\t"') + '"' for line in BARE],
    'carriage returns': [f'{line}\r' for line in (BARE[0], '', *BARE[1:])],
    'byte order mark': [f'\ufeff{BARE[0]}', *BARE[1:]],
    'floats': [f'{line}.0' for line in BARE],
}


def read(path):
  found = qrels.read(path).judgements
  return [(j.query_id, j.passage_id, j.grade) for j in found]


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('name', ['a.tsv', 'a.tsv.gz'])
def test_forms(tmp_path, form, name):
  assert read(write(tmp_path / name, *FORMS[form])) == ROWS


def test_white_space_and_repeats_as_trec_eval_has_them(tmp_path):
  lines = '19 Q0 10 0', '19  Q0\t11   -1', '19\t0 10\t0', '19 0 a\u00a0b 1 '
  path = write(tmp_path / 'a.txt', *lines, '19\t0\t"x"\t1')
  found = [('10', 0), ('11', -1), ('a\xa0b', 1), ('"x"', 1)]
  assert read(path) == [('19', *row) for row in found]
  assert qrels.read(path).rows == 5
  # Not where another line has an id with a space for sure.
  ids = [('why 0', 'd', 1), ('why 1', 'd', 1)]
  assert read(write(path, 'why 0\td\t1', 'why 1\td\t1')) == ids


def test_ids_with_quotes_as_csv_writes_them(tmp_path):
  names = ['"Heroes"_(song)', '"a" and "b', '5"']
  rows = [f'q1\t{n}\t1' for n in ('"""Heroes""_(song)"', *names[1:])]
  assert [name for _, name, _ in read(write(tmp_path / 'a', *rows))] == names
  assert qrels.cell(names[0]) == '"""Heroes""_(song)"'


@pytest.mark.parametrize('line, message', [
    ('', 'has no judgements'),
    ('query-id\tcorpus-id\tscore', 'has no judgements'),
    *((f'q\td\t{x}', f"a.tsv:1: grade '{x}'")
      for x in ('nan', '0.5', '1_0', '\u0661')),
    ('# by 3', 'a.tsv:1: a comment'),
    ('a\tb\tscore', "a.tsv:1: the columns are 'a', 'b', 'score'; expected"),
    ('q d', 'a.tsv:1: 2 columns, expected'),
    ('q,d,1', 'a.tsv:1: 1 columns, expected query id, passage id and'),
    ('q\td\t1\nq\td\t2', "a.tsv:2: grade 2 for query 'q' and passage 'd', whi"),
    ('\n'.join(f'q\td{i}\t{i}' for i in range(1, 11)), "MS MARCO's form. E"),
    (b'q\t\xff\t1', 'a.tsv:1: not UTF-8'),
    ('q\td\t1\nquery-id\tcorpus-id\tscore', "a.tsv:2: grade 'score'"),
    ('{"q": {"d": 1}}', "a.tsv:1: grade '1}}' is not an integer"),
    *((f'q\td\t{x}', f"a.tsv:1: grade '{x}' is not one of ±1,000,000")
      for x in ('2000000000', '1e19', '-3e9')),
])
def test_bad_files(tmp_path, line, message):
  path = write(tmp_path / 'a.tsv', line)
  refused(lambda: read(path), message, 'a.tsv')
