"""pairs' reader on real files of ../shared, beside json and csv."""

import csv

import pytest
from reading import column, objects
from test_pairs import read, texts, TRIPLES


@pytest.fixture
def samples(shared):
  return shared / 'data' / 'hardneg_samples'


def csv_rows(path):
  with path.open(encoding='utf-8', newline='\n') as stream:
    return list(csv.reader(stream, delimiter='\t', quoting=csv.QUOTE_NONE))


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


def test_medquad(shared):
  path = shared / 'data' / 'medquad' / 'pairs.jsonl.gz'
  names = {'query': 'question', 'passage': 'answer', 'passage_id': 'id',
           'name': 'focus'}
  examples, rows = read(path, **names), objects(path)
  assert len(examples) == 16407
  for field, name in names.items():
    assert column(examples, field) == column(rows, name)
