"""pairs' reader on real files of ../shared, against the json and csv modules.

"""

import csv
import gzip
import json

import pytest
from test_pairs import FLAG_EMBEDDING, read, TRIPLES


@pytest.fixture
def samples(shared):
  return shared / 'data' / 'hardneg_samples'


def json_rows(path):
  opener = gzip.open if path.suffix == '.gz' else open
  with opener(path, 'rt', encoding='utf-8', newline='\n') as stream:
    return [json.loads(line) for line in stream]


def csv_rows(path):
  with path.open(encoding='utf-8', newline='\n') as stream:
    return list(
        csv.reader(
            stream, delimiter='\t', quoting=csv.QUOTE_NONE, lineterminator='\n'
        )
    )


@pytest.mark.parametrize(
    'name, negatives',
    [('msmarco', 250), ('nq', 979), ('reranker_examples', 250)],
)
def test_flagembedding(samples, name, negatives):
  path = samples / 'flagembedding' / f'{name}.jsonl'
  examples = read(path, **FLAG_EMBEDDING)
  assert [(e['query'], e['passage'], e['negatives']) for e in examples] == [
      (row['query'], passage, row['neg'])
      for row in json_rows(path)
      for passage in row['pos']
  ]
  assert len(examples) == 10
  assert sum(len(e['negatives']) for e in examples) == negatives


def test_triples(samples):
  path = samples / 'splade_toy' / 'triplets' / 'raw.tsv'
  examples = read(path, **TRIPLES)
  assert [[e['query'], e['passage'], *e['negatives']] for e in examples] == (
      csv_rows(path)
  )
  assert len(examples) == 100


def test_titles_and_passages_with_mojibake(samples):
  path = samples / 'rocketqa' / 'marco.tp.1k'
  examples = read(path, format='tsv', columns=('query', 'passage'))
  assert [[e['query'], e['passage']] for e in examples] == csv_rows(path)
  assert len(examples) == 1000
  # Next to U+0080 there is U+0085, which str.splitlines would break a line at.
  assert sum('\x85' in e['passage'] for e in examples) > 0
  titled = read(
      path,
      format='tsv',
      columns=('query', 'passage'),
      title='query',
  )
  assert titled[0]['passage'] == (
      examples[0]['query'] + ' ' + examples[0]['passage']
  )


@pytest.mark.parametrize(
    'split, pairs, sentences', [('test', 11877, 6652), ('dev', 10570, 6795)]
)
def test_squad_nqg(shared, split, pairs, sentences):
  path = shared / 'data' / 'squad_nqg' / f'pairs.{split}.jsonl'
  examples = read(path, query='question', passage='sentence')
  assert len(examples) == pairs
  assert len({e['passage'] for e in examples}) == sentences
  assert [(e['query'], e['passage']) for e in examples] == [
      (row['question'], row['sentence']) for row in json_rows(path)
  ]


def test_medquad(shared):
  path = shared / 'data' / 'medquad' / 'pairs.jsonl.gz'
  examples = read(
      path, query='question', passage='answer', passage_id='id', name='focus'
  )
  assert len(examples) == 16407
  rows = json_rows(path)
  for field, column in (
      ('query', 'question'),
      ('passage', 'answer'),
      ('passage_id', 'id'),
      ('name', 'focus'),
  ):
    assert [e[field] for e in examples] == [row[column] for row in rows]
