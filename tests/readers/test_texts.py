"""Files of texts to encode: their forms, and what is wrong with them."""

import gzip

import pytest
from reading import DATA, objects, refused, write

from dualenc_jax.data.readers import Beir, Texts

TOY = DATA / 'beir' / 'toy'


def read(path, split='corpus', **options):
  """(id, name, text, line) of every row."""
  side = 'query' if split == 'queries' else 'passage'
  return [
      (row[f'{side}_id'], row['name'], row[side],
       int(row['location'].rpartition(':')[2]))
      for row in Texts(path=str(path), **options).examples(split)
  ]


def test_a_beir_folder_is_what_beir_reads():
  beir = Beir(folder=str(TOY))
  found = list(Texts(str(TOY)).examples('corpus'))
  assert found == list(beir.examples('corpus')) and len(found) == 5
  assert [(i, text) for i, _, text, _ in read(TOY, 'queries')] == [
      (str(row['_id']), row['text']) for row in objects(TOY / 'queries.jsonl')
  ]


@pytest.mark.parametrize('compress', [False, True])
@pytest.mark.parametrize('name, content', [
    ('a.jsonl', '{"_id": "x", "title": "T", "text": "one"}\n'),
    ('a.jsonl', '{"docno": "x", "title": "T", "document": "one"}\n'),
    ('a.tsv', '\ufeffx\tone\tT\r\n'),
    ('a', 'x\tone\tT\n'),
])
def test_forms(tmp_path, name, content, compress):
  data = content.encode()
  path = tmp_path / (name + '.gz' * compress)
  path.write_bytes(gzip.compress(data) if compress else data)
  assert read(path) == [('x', 'T', 'T one', 1)]


@pytest.mark.parametrize('split, lines, found', [
    ('corpus', 'id\ttitle\ttext\n1\tT\tone\n2\t\ttwo', ['1 T one', '2 two']),
    ('corpus', 'text\turl\tdocid\none\tx\t1', ['1 one']),
    ('queries', 'qid\tquery\n1\twho', ['1 who']),
    # Cells are taken as they are.
    ('corpus', '1\t"quoted"\n2\t{"x": 1}', ['1 "quoted"', '2 {"x": 1}']),
    ('queries', 'a\ttitle', ['a title']),
])
def test_a_first_line_of_names_decides_the_columns(
    tmp_path, split, lines, found
):
  rows = read(write(tmp_path / 'a.tsv', lines), split)
  assert [f'{name} {text}' for name, _, text, _ in rows] == found


@pytest.mark.parametrize('name, lines, message', [
    ('q.tsv', ['who is it'], ':1: 1 columns, expected 2 (id, text)'),
    ('q.tsv', ['docno\tbody'], ' query_id or qid), and none of texts (text, q'),
    ('q.tsv', ['id\ttext\ttext'], " has two columns 'text'"),
    ('q.jsonl', [{'_id': 'a', 'body': 'x'}], 'no column of texts (text, qu'),
    ('q.jsonl', [{'_id': 'a', 'text': 3}], "'text' holds a whole number, n"),
    ('q', [], ' is empty; expected one text'),
])
def test_bad_rows_are_named(tmp_path, name, lines, message):
  path = write(tmp_path / name, *lines)
  refused(lambda: read(path, 'queries'), name, message)


def test_bad_rows_may_be_left_out(tmp_path, caplog):
  path = write(tmp_path / 'a.tsv', '1\tone', '', '2', '3\t ', '1\tagain')
  refused(lambda: read(path), 'a.tsv:3: ', '--gin.STRICT=False')
  # A passage may be blank.
  assert read(path, strict=False) == [('1', '', 'one', 1), ('3', '', '', 4)]
  assert '1 1 columns, expected 2' in caplog.text
  assert '1 the id of an earlier row' in caplog.text
  write(path, '1\tone', '2\ttwo', '1\tthree')
  message = f"a.tsv:3: id '1' is also that of {path}:1"
  refused(lambda: read(path), message)
