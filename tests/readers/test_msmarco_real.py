"""msmarco's reader on real small collections, beside csv and json."""

import csv
import json

import pytest
from reading import judged, refused

from dualenc_jax.readers.msmarco import MsMarco

FILES = {
    'collection': 'val_collection/raw.tsv',
    'validation_qrels': 'qrel/qrel.json',
    'triples': 'triplets/raw.tsv',
}


def cells(path):
  with open(path, encoding='utf-8', newline='') as stream:
    return list(csv.reader(stream, delimiter='\t', quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize('folder', ['val_queries', 'dev_queries'])
def test_splade_toy(shared, folder):
  root = shared / 'data' / 'hardneg_samples' / 'splade_toy'
  queries_file = f'{folder}/raw.tsv'
  files = FILES | {'validation_queries': queries_file}
  options = {'root': str(root), 'files': files}
  # One query is there twice.
  strict = MsMarco(**options)
  refused(lambda: strict.examples('validation'), "raw.tsv:7: id '1048876'")
  reader = MsMarco(**options, strict=False)
  passages = dict(cells(root / FILES['collection']))
  queries = dict(reversed(cells(root / queries_file)))  # The first counts.
  of_query = json.loads((root / FILES['validation_qrels']).read_text())
  found = judged(reader.examples('validation'))
  assert {*found} == {
      (queries[query], passages[passage].strip(), query, passage, grade)
      for query, grades in of_query.items()
      for passage, grade in grades.items()
      if passage in passages
  }
  assert len(found) == 11
  corpus = {e['passage_id']: e['passage'] for e in reader.examples('corpus')}
  assert corpus == {name: text.strip() for name, text in passages.items()}


def test_triples_with_mojibake(shared):
  root = shared / 'data' / 'hardneg_samples' / 'splade_toy'
  reader = MsMarco(root=str(root), files=FILES, train_from='triples')
  found = list(reader.examples('train'))
  assert [[e['query'], e['passage'], *e['negatives']] for e in found] == cells(
      root / FILES['triples']
  )
  assert len(found) == 100 and any('\x80' in e['passage'] for e in found)
