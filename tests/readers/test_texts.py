"""Files of texts to encode: their forms, and what is wrong with them."""

import gzip
import json
import pathlib

import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.readers import Beir, Texts

TOY = pathlib.Path(__file__).parents[1] / 'data' / 'beir' / 'toy'


def read(path, split='corpus', **options):
  """(id, name, text, line) of every row."""
  side = 'query' if split == 'queries' else 'passage'
  return [
      (
          row[f'{side}_id'],
          row['name'],
          row[side],
          int(row['location'].rpartition(':')[2]),
      )
      for row in Texts(path=str(path), **options).examples(split)
  ]


def test_a_beir_folder_is_what_beir_reads():
  beir = Beir(folder=str(TOY))
  found = list(Texts(str(TOY)).examples('corpus'))
  assert found == list(beir.examples('corpus')) and len(found) == 5
  lines = (TOY / 'queries.jsonl').read_text().splitlines()
  assert [(i, text) for i, _, text, _ in read(TOY, 'queries')] == [
      (str(row['_id']), row['text']) for row in map(json.loads, lines)
  ]


@pytest.mark.parametrize('compress', [False, True])
@pytest.mark.parametrize(
    'name, content',
    [
        ('a.jsonl', '{"_id": "x", "title": "T", "text": "one"}\n'),
        ('a.jsonl', '{"id": "x", "title": "T", "contents": "one"}\n'),
        ('a.txt', '{"passage_id": "x", "title": "T", "passage": "one"}'),
        ('a.tsv', 'x\tone\tT\n'),
        ('a.tsv', '\ufeffx\tone\tT\r\n'),
        ('a', 'x\tone\tT\n'),
    ],
)
def test_forms(tmp_path, name, content, compress):
  data = content.encode()
  path = tmp_path / (name + '.gz' * compress)
  path.write_bytes(gzip.compress(data) if compress else data)
  assert read(path) == [('x', 'T', 'T one', 1)]


def test_a_first_line_of_names_is_left_out(tmp_path):
  path = tmp_path / 'psgs.tsv'
  path.write_text('id\ttext\ttitle\n1\tone\tT\n2\ttwo\t\n')
  assert read(path) == [('1', 'T', 'T one', 2), ('2', '', 'two', 3)]
  path.write_text('id\tquery\n1\twho\n')
  assert read(path, 'queries') == [('1', '', 'who', 2)]


def test_cells_are_taken_as_they_are(tmp_path):
  path = tmp_path / 'a.tsv'
  path.write_text('1\t"quoted"\n2\t{"x": 1}\n')
  assert [row[2] for row in read(path)] == ['"quoted"', '{"x": 1}']


@pytest.mark.parametrize(
    'name, content, message',
    [
        ('q.tsv', '1\twho\n\n2\twhat\n', 'q.tsv:2: the line is empty'),
        ('q.tsv', '1\twho\n \t \n', 'q.tsv:2: the line is empty'),
        ('q.tsv', '1\twho\n\n', 'q.tsv:2: the line is empty'),
        ('q.tsv', '\n1\twho\n', 'q.tsv:1: the line is empty'),
        ('q.jsonl', '{"_id": 1, "text": "x"}\n\n', 'l:2: the line is empty'),
        ('q.tsv', '1\twho\n2\t \n', 'q.tsv:2: the text is empty'),
        ('q.tsv', '1\twho\n\twhat\n', 'q.tsv:2: the id is empty'),
        ('q.tsv', 'who is it\n', 'q.tsv:1: 1 columns; expected id and text'),
        ('q.tsv', '1\ta\tb\tc\n', 'q.tsv:1: 4 columns; expected id and text'),
        ('q.jsonl', '{"_id": "a", "text": ""}\n', 'l:1: the text is empty'),
        ('q.jsonl', '{"_id": "", "text": "x"}\n', 'l:1: the id is empty'),
        ('q.jsonl', '{"_id": "a", "body": "x"}\n', 'no text, query or q'),
        ('q.jsonl', '{"text": "x"}\n', 'there is no _id, id or query_id'),
        ('q.jsonl', '{"_id": "a", "text": 3}\n', "'text' holds int, not a str"),
        ('q.jsonl', '["a", "x"]\n', 'l:1: not a JSON object but an array'),
        ('q.jsonl', 'a\tx\n', 'q.jsonl:1: not JSON'),
        ('q.tsv', b'1\t\xff\n', 'q.tsv:1: not UTF-8'),
        ('q', '', 'is empty; expected a text a line'),
    ],
)
def test_bad_rows_are_named(tmp_path, name, content, message):
  data = content if isinstance(content, bytes) else content.encode()
  (tmp_path / name).write_bytes(data)
  with pytest.raises(UserError, match=message):
    read(tmp_path / name, 'queries')


def test_bad_rows_may_be_left_out(tmp_path, caplog):
  path = tmp_path / 'a.tsv'
  path.write_text('1\tone\n\n2\n3\t \n1\tagain\n')
  with pytest.raises(UserError, match='a.tsv:2: .*--skip_bad_rows'):
    read(path)
  assert read(path, strict=False) == [
      ('1', '', 'one', 1),
      ('3', '', '', 4),  # A passage may be blank.
  ]
  assert '1 the line is empty' in caplog.text
  assert "'1' at" in caplog.text


def test_an_id_that_comes_twice(tmp_path):
  path = tmp_path / 'a.tsv'
  path.write_text('1\tone\n2\ttwo\n1\tthree\n')
  with pytest.raises(
      UserError, match=r"a.tsv:3: id '1' is the one of .*tsv:1.*--skip_bad"
  ):
    read(path)


def test_files_that_are_not_there(tmp_path):
  with pytest.raises(UserError, match='There is no file or folder .*none'):
    read(tmp_path / 'none')
  with pytest.raises(UserError, match='has no corpus.jsonl'):
    read(tmp_path)
  (tmp_path / 'corpus.jsonl').touch()
  with pytest.raises(UserError, match='has no queries.jsonl'):
    read(tmp_path, 'queries')
  with pytest.raises(UserError, match="no split 'query'. Did you mean"):
    read(tmp_path, 'query')


def test_the_fingerprint_is_of_the_content(tmp_path):
  def fingerprint(folder, content):
    path = tmp_path / folder / 'a.tsv'
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    return Texts(str(path)).fingerprint('corpus')

  assert fingerprint('a', '1\tx\n') == fingerprint('b', '1\tx\n')
  assert fingerprint('a', '1\tx\n') != fingerprint('b', '1\ty\n')
