"""pairs' reader on real files of ../shared, beside json and csv."""

import csv

import pytest
from reading import column, objects
from test_pairs import FLAG_EMBEDDING, read, texts, TRIPLES


@pytest.fixture
def samples(shared):
  return shared / 'data' / 'hardneg_samples'


def csv_rows(path):
  with path.open(encoding='utf-8', newline='\n') as stream:
    return list(csv.reader(stream, delimiter='\t', quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize('name, negatives', [
    ('msmarco', 250), ('nq', 979), ('reranker_examples', 250)
])
def test_flagembedding(samples, name, negatives):
  path = samples / 'flagembedding' / f'{name}.jsonl'
  examples = read(path, **FLAG_EMBEDDING)
  assert texts(examples) == [
      [row['query'], passage, *row['neg']]
      for row in objects(path) for passage in row['pos']
  ]
  assert len(examples) == 10
  assert sum(map(len, column(examples, 'negatives'))) == negatives


@pytest.mark.parametrize('name, options, count', [
    ('splade_toy/triplets/raw.tsv', TRIPLES, 100),
    ('rocketqa/marco.tp.1k', TRIPLES | {'columns': ('query', 'passage')}, 1000),
])
def test_cells_are_taken_as_they_are(samples, name, options, count):
  examples = read(samples / name, **options)
  assert texts(examples) == csv_rows(samples / name)
  assert len(examples) == count
  # Next to U+0080 there is U+0085, which str.splitlines would break a line at.
  assert any('\x85' in e['passage'] for e in examples) or count < 1000


@pytest.mark.parametrize('split, pairs, sentences', [
    ('test', 11877, 6652), ('dev', 10570, 6795)
])
def test_squad_nqg(shared, split, pairs, sentences):
  path = shared / 'data' / 'squad_nqg' / f'pairs.{split}.jsonl'
  examples = read(path, query='question', passage='sentence')
  assert len(examples) == pairs
  assert len(set(column(examples, 'passage'))) == sentences
  rows = [[row['question'], row['sentence']] for row in objects(path)]
  assert texts(examples) == rows


def test_medquad(shared):
  path = shared / 'data' / 'medquad' / 'pairs.jsonl.gz'
  names = {'query': 'question', 'passage': 'answer', 'passage_id': 'id',
           'name': 'focus'}
  examples, rows = read(path, **names), objects(path)
  assert len(examples) == 16407
  for field, name in names.items():
    assert column(examples, field) == column(rows, name)
