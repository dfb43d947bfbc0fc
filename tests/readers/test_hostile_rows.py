"""Files that hang, fill the memory or break the parser of who reads them."""

import gzip
import json
import os

import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.evaluation import trec
from dualenc_jax.evaluation.teacher_scores import _entries
from dualenc_jax.readers import (
  json_array,
  multireqa_join,
  packed,
  python_functions,
  qrels,
  rows,
)
from dualenc_jax.readers.msmarco import MsMarco
from dualenc_jax.readers.open_nq import OpenNQ
from dualenc_jax.readers.pairs import Pairs
from dualenc_jax.readers.texts import Texts
from dualenc_jax.report import curves

READ = {
    'corpus.jsonl': lambda path: [*Texts(str(path)).examples('corpus')],
    'pairs.jsonl': lambda path: [*Pairs(train=str(path)).examples('train')],
    'array.json': lambda path: [*json_array.elements(path)],
    'qrels.tsv': qrels.read,
    'qrels.json': qrels.read,
    'run.trec': trec.read_run,
    'scores.tsv': lambda path: [*_entries(path)],
    'pairs.parquet': lambda path: [*Pairs(train=str(path)).examples('train')],
    'nq-test.qa.csv': lambda path: [
        *OpenNQ(root=str(path.parent)).examples('test')
    ],
    'mrqa.jsonl': lambda path: [*multireqa_join.contexts(path)],
    'collection.tsv': lambda path: [
        *MsMarco(root=str(path.parent), tolerance=1.0).examples('corpus')
    ],
}


@pytest.mark.parametrize('name', READ)
@pytest.mark.parametrize('kind', ['pipe', 'device', 'folder'])
def test_what_is_no_regular_file_is_refused(tmp_path, name, kind):
  path = tmp_path / name
  {
      'pipe': os.mkfifo,
      'device': lambda path: path.symlink_to('/dev/zero'),
      'folder': os.mkdir,
  }[kind](path)
  with pytest.raises(UserError, match=name):
    READ[name](path)


def test_a_pipe_among_modules_and_curves(tmp_path):
  os.mkfifo(tmp_path / 'x')
  with pytest.raises(UserError, match='no regular file'):
    list(python_functions.find_functions(tmp_path / 'x', 'x.py'))
  assert 'no regular file' in curves.read(tmp_path / 'x')[1][0]


def test_a_link_to_a_file_is_read(tmp_path):
  (tmp_path / 'there.jsonl').write_text('{"_id": "1", "text": "a"}\n')
  (tmp_path / 'here.jsonl').symlink_to('there.jsonl')
  (row,) = Texts(str(tmp_path / 'here.jsonl')).examples('corpus')
  assert row['passage'] == 'a'


# The parser's own limit is near a thousand; printing a value has another.
@pytest.mark.parametrize('depth', [65, 900, 980, 100_000])
@pytest.mark.parametrize('name', [n for n in READ if 'json' in n])
def test_values_within_values(tmp_path, name, depth):
  deep = '[' * depth + ']' * depth
  line = {
      'corpus.jsonl': f'{{"_id": {deep}, "text": "a"}}',
      'pairs.jsonl': f'{{"query": "q", "passage": {deep}}}',
      'array.json': f'[{deep}]',
      'qrels.json': f'{{"q": {{"d": {deep}}}}}',
      'mrqa.jsonl': f'{{"context": "c", "qas": {deep}}}',
  }[name]
  path = tmp_path / name
  path.write_text(line)
  with pytest.raises(UserError, match=f'{name}.*(deep|JSON)'):
    READ[name](path)


def test_brackets_in_a_text_are_not_values():
  row = {'text': '[{' * 500, 'list': [[1], {'a': {}}] * 50}
  assert rows.json_object(json.dumps(row).encode()) == row


def test_a_packed_file_that_is_one_line(tmp_path, monkeypatch):
  monkeypatch.setattr(packed, 'LONGEST_LINE', 2**20)
  path = tmp_path / 'a.jsonl.gz'
  start = b'{"_id": 1, "text": "a"}\n'
  path.write_bytes(gzip.compress(start + b'a' * (2**20 + 1)))
  with pytest.raises(UserError, match='gz:2: a line of more than 1 MiB'):
    READ['corpus.jsonl'](path)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
  path = tmp_path / 'a.jsonl'
  path.write_text('{}\n')

  def refused(*_):
    raise PermissionError(13, 'Permission denied')

  monkeypatch.setattr(os, 'open', refused)
  with pytest.raises(UserError, match='a.jsonl cannot be read: Permission'):
    READ['pairs.jsonl'](path)
