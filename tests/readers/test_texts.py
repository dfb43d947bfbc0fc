"""Files of texts to encode: their forms, and what is wrong with them."""

import gzip

import pytest
from reading import DATA, objects, refused, write

from dualenc_jax.readers import Beir, Texts

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
    ('a.jsonl', '{"id": "x", "title": "T", "contents": "one"}\n'),
    ('a.tsv', 'x\tone\tT\n'),
    ('a.tsv', '\ufeffx\tone\tT\r\n'),
    ('a', 'x\tone\tT\n'),
])
def test_forms(tmp_path, name, content, compress):
  data = content.encode()
  path = tmp_path / (name + '.gz' * compress)
  path.write_bytes(gzip.compress(data) if compress else data)
  assert read(path) == [('x', 'T', 'T one', 1)]


def test_cells_are_taken_as_they_are_but_a_line_of_names(tmp_path):
  path = write(tmp_path / 'a.tsv', 'id\ttext\ttitle', '1\tone\tT', '2\ttwo\t')
  assert read(path) == [('1', 'T', 'T one', 2), ('2', '', 'two', 3)]
  write(path, 'id\tquery', '1\twho')
  assert read(path, 'queries') == [('1', '', 'who', 2)]
  write(path, '1\t"quoted"', '2\t{"x": 1}')
  assert [row[2] for row in read(path)] == ['"quoted"', '{"x": 1}']


@pytest.mark.parametrize('name, lines, message', [
    ('q.tsv', ['1\twho', '', '2\twhat'], ':2: the line is empty'),
    ('q.tsv', ['who is it'], ':1: 1 columns; expected id and text'),
    ('q.jsonl', [{'_id': 'a', 'body': 'x'}], 'no text, query or q'),
    ('q.jsonl', [{'text': 'x'}], 'there is no _id, id or query_id'),
    ('q.jsonl', [{'_id': 'a', 'text': 3}], "'text' holds int, not a str"),
    ('q', [], ' is empty; expected one text'),
])
def test_bad_rows_are_named(tmp_path, name, lines, message):
  path = write(tmp_path / name, *lines)
  refused(lambda: read(path, 'queries'), name, message)


def test_bad_rows_may_be_left_out(tmp_path, caplog):
  path = write(tmp_path / 'a.tsv', '1\tone', '', '2', '3\t ', '1\tagain')
  refused(lambda: read(path), 'a.tsv:2: ', '--skip_bad_rows')
  # A passage may be blank.
  assert read(path, strict=False) == [('1', '', 'one', 1), ('3', '', '', 4)]
  assert '1 the line is empty' in caplog.text
  assert "'1' at" in caplog.text
  write(path, '1\tone', '2\ttwo', '1\tthree')
  message = f"a.tsv:3: id '1' is also that of {path}:1"
  refused(lambda: read(path), message, '--skip_bad')
