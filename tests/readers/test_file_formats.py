"""CSV, quoted TSV, JSON arrays, Arrow folders; aliases; other encodings."""

import csv
import json

import pytest
from reading import pack, refused
from test_pairs import read as read_pairs, texts

from dualenc_jax.data.readers import Pairs, Texts

HARD = [
    ['query', 'passage', 'negatives'],
    ['a "quoted" word', 'two\nlines, and a comma', 'tab\there'],
    ['é', '""', '; one'],
    ['q3', 'p3', ''],
]


def read(path, **options):
  return texts(read_pairs(path, **options))


def write(path, rows, **options):
  with path.open('w', encoding='utf-8', newline='') as file:
    csv.writer(file, **options).writerows(rows)
  return path


def check(path):
  """The rows are those of HARD, by csv's own reading of them."""
  assert read(path) == [[c for c in row if c] for row in HARD[1:]]


@pytest.mark.parametrize('name, delimiter, quoting, end', [
    ('a.csv', ',', csv.QUOTE_MINIMAL, '\n'),
    ('a.csv', ';', csv.QUOTE_ALL, '\r\n'),
    # Told from a plain one.
    ('a.tsv', '\t', csv.QUOTE_MINIMAL, '\n'),
])
def test_cells_in_quotes(tmp_path, name, delimiter, quoting, end):
  options = {'delimiter': delimiter, 'quoting': quoting, 'lineterminator': end}
  path = write(tmp_path / name, HARD, **options)
  check(path)
  path.write_bytes(b'\xef\xbb\xbf' + path.read_bytes())
  check(pack(path))


@pytest.mark.parametrize('line', [
    'who said "x"\tp', '"Hamlet" by whom\tp', '"Hamlet"\tp', '"open\tp',
    'q\t"open\nnext "one\tp', '"all of it"\t"or ""some"""\nq\ta "word"',
    '"a\tb"',
])
def test_a_plain_tsv_with_quotes_stays_plain(tmp_path, line):
  path = tmp_path / 'a.tsv'
  path.write_text(f'query\tpassage\nq0\tp0\n{line}\n', encoding='utf-8')
  with path.open(encoding='utf-8', newline='') as file:
    plain = csv.reader(file, delimiter='\t', quoting=csv.QUOTE_NONE)
    assert read(path) == [*plain][1:]


def test_bad_csv_names_the_line_where_the_row_begins(tmp_path):
  path = tmp_path / 'a.csv'
  no_row = 'not a row of cells in quotes'
  lines = ['query,passage', 'q,"two', 'lines"', 'q,"p"x', 'q,p,r', 'q,p']
  path.write_text('\n'.join(lines))
  refused(lambda: read(path), f'a.csv:4: {no_row}')
  assert read(path, strict=False) == [['q', 'two\nlines'], ['q', 'p']]
  path.write_text('q,p\n')
  refused(lambda: read(path), "no column 'query'",
          'with --gin.COLUMNS those')
  assert read(path, columns=('query', 'passage')) == [['q', 'p']]
  path.write_text('passage,query\np,q\n')  # Its own names count.
  assert read(path, columns=('query', 'passage')) == [['q', 'p']]


@pytest.mark.parametrize('cell, found', [
    ("['a', 'it\\'s']", ['a', "it's"]), ('["a", "\\u0062"]', ['a', 'b']),
    ('[]', []), ('[1] a [2]', ['[1] a [2]']),
])
def test_lists_in_cells(tmp_path, caplog, cell, found):
  path = write(tmp_path / 'a.csv', [HARD[0], ['q', 'p', cell]])
  assert read(path, list_cells=True) == [['q', 'p', *found]]
  assert read(path) == [['q', 'p', cell]]
  assert ('--gin.LIST_CELLS=True reads' in caplog.text) == (found != [cell])
  # Of NumPy; to Python it is one text.
  write(path, [HARD[0], ['q', "['a' 'b']", '']])
  refused(lambda: read(path, list_cells=True), 'a.csv:2: ', 'no comma')


def test_text_filess(tmp_path):
  rows = [dict(zip(HARD[0], row)) for row in HARD[1:]]
  path = tmp_path / 'a.json'
  path.write_text(json.dumps(rows))
  check(path)
  path.write_text('\n'.join(map(json.dumps, rows)))  # As many are called.
  check(path)


def test_arrow_folders(tmp_path):
  datasets = pytest.importorskip('datasets')
  columns = dict(zip(HARD[0], map(list, zip(*HARD[1:]))))
  rows = datasets.Dataset.from_dict(columns)
  rows.save_to_disk(tmp_path / 'train', num_shards=2)
  folder, both = tmp_path / 'train', tmp_path / 'both'
  datasets.DatasetDict(train=rows, dev=rows).save_to_disk(both)
  check(folder)
  check(both / 'dev')
  refused(lambda: read(both), 'is a folder. Expected ')
  dataset = Pairs(train=str(folder))
  before = dataset.fingerprint('train')
  (file, *_) = sorted(folder.glob('*.arrow'))
  content = file.read_bytes()
  file.write_bytes(content[:-40] + b'\1' + content[-39:])
  assert dataset.fingerprint('train') != before
  file.write_bytes(content[: len(content) // 2])
  refused(lambda: read(folder), 'not an Arrow stream, or is damaged')


@pytest.mark.parametrize('name, columns', [
    ('a.csv', ['anchor', 'positive', 'negative_1', 'negative_2']),
    ('a.jsonl', ['anchor', 'positive', 'negative_1']),
])
def test_aliases_stand_for_missing_columns(tmp_path, caplog, columns, name):
  cells = [f'text {i}' for i in range(len(columns))]
  path = tmp_path / name
  if name == 'a.csv':
    write(path, [columns, cells])
  else:
    path.write_text(json.dumps(dict(zip(columns, cells))))
  assert read(path) == [cells]
  assert f"'{columns[1]}' as 'passage'" in caplog.text


TABLE = 'query,passage\nq,p\n'


@pytest.mark.parametrize('name, content, message', [
    ('a.csv', TABLE.encode('utf-16'), 'a.csv:1: the file is in UTF-16'),
    ('a.json', TABLE.encode('utf-16-be'), 'a.json:1: the file is in UTF-16'),
    ('a.json', b'[{"query": "caf\xe9"}]', "from Latin-1 perhaps: iconv"),
])
def test_other_encodings_are_named(tmp_path, name, content, message):
  path = tmp_path / name
  path.write_bytes(content)
  refused(lambda: read(path), message)


def test_documents_of_each_form(tmp_path):
  datasets = pytest.importorskip('datasets')
  table = datasets.Dataset.from_list([
      {'id': '1', 'title': 'T', 'text': 'a\n"b"'},
      {'id': '2', 'title': '', 'text': ''},
  ])
  table.save_to_disk(tmp_path / 'folder')
  table.to_csv(tmp_path / 'a.tsv', index=False, sep='\t')
  table.to_json(tmp_path / 'a.json', lines=False)
  for name in ('folder', 'a.tsv', 'a.json'):
    documents = Texts(str(tmp_path / name))
    rows = documents.examples('corpus')
    found = [(r['passage_id'], r['passage']) for r in rows]
    assert found == [('1', 'T a\n"b"'), ('2', '')], name
