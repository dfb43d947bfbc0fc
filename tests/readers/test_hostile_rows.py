"""Files that hang, fill the memory or break the parser of who reads them."""

import os

import pytest
from reading import refused, write

from dualenc_jax.data import readers
from dualenc_jax.data.readers import files, MsMarco, OpenNQ, Pairs, Texts
from dualenc_jax.evaluation import trec
from dualenc_jax.evaluation.teacher_scores import read_scores

READ = {
    'corpus.jsonl': lambda path: [*Texts(str(path)).examples('corpus')],
    'pairs.jsonl': lambda path: [*Pairs(train=str(path)).examples('train')],
    'array.json': lambda path: [*readers.files.elements(path)],
    'qrels.tsv': readers.qrels.read,
    'run.trec': trec.read_run,
    'scores.tsv': lambda path: [*read_scores(path)],
    'pairs.parquet': lambda path: [*Pairs(train=str(path)).examples('train')],
    'nq-test.qa.csv': lambda path: [*OpenNQ(str(path.parent)).examples('test')],
    'mrqa.jsonl': lambda path: [*readers.multireqa.contexts(path)],
    'collection.tsv': lambda path: [
        *MsMarco(root=str(path.parent)).examples('corpus')
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
  refused(lambda: READ[name](path), name)


# The parser's own limit is near a thousand; printing a value has another.
@pytest.mark.parametrize('depth', [65, 900, 980, 100_000])
@pytest.mark.parametrize('name, line', [
    ('corpus.jsonl', '{"_id": %s, "text": "a"}'),
    ('pairs.jsonl', '{"query": "q", "passage": %s}'),
    ('array.json', '[%s]'),
    ('mrqa.jsonl', '{"context": "c", "qas": %s}'),
])
def test_values_within_values(tmp_path, name, line, depth):
  path = write(tmp_path / name, line % ('[' * depth + ']' * depth))
  told = refused(lambda: READ[name](path), name)
  assert 'deep' in told or 'JSON' in told


def test_a_key_twice(tmp_path):
  row = '{"query": "%s", "passage": "p", "query": "q"}'
  for name, line in ('pairs.jsonl', row), ('array.json', f'[{row}]'):
    path = write(tmp_path / name, line % 'r')
    refused(lambda: READ[name](path), name, "the key 'query' twice")
    # One value is no matter.
    assert READ[name](write(path, line % 'q'))


def test_a_packed_file_that_is_one_line(tmp_path, monkeypatch):
  monkeypatch.setattr(files, 'LONGEST_LINE', 2**20)
  long = b'a' * (2**20 + 1)
  path = write(tmp_path / 'a.jsonl.gz', {'_id': 1, 'text': 'a'}, long)
  message = 'gz:2: a line of more than 1 MiB'
  refused(lambda: READ['corpus.jsonl'](path), message)
