"""BEIR's sets and their conventions."""

import csv

import pyarrow
from pyarrow import parquet
from reading import column, judged, objects, refused

from dualenc_jax.data.readers import beir
from dualenc_jax.data.readers.beir import Beir
from dualenc_jax.utils.errors import SourceUnavailable


def test_conventions():
  assert Beir(dataset='quora').self_hits
  assert not Beir(dataset='scifact').self_hits
  assert not Beir(folder='x').self_hits
  assert Beir(dataset='msmarco').evaluated == 'validation'
  assert Beir(dataset='fever').evaluated == 'test'
  assert Beir(dataset='cqadupstack/tex').evaluated == 'test'
  assert len(set(beir.CQADUPSTACK_PARTS)) == 12
  message = '12 data sets', 'cqadupstack/android'
  refused(lambda: Beir(dataset='cqadupstack'), *message)


def test_missing_sets_say_where_to_get_them(tmp_path):
  gis = Beir(dataset='cqadupstack/gis', data_root=str(tmp_path))
  assert gis.splits() == ()
  refused(
      lambda: gis.check_split('test'), f'{tmp_path}/beir/cqadupstack/gis',
      '/BEIR/datasets/cqadupstack.zip (5,344 MB)', error=SourceUnavailable,
  )


def test_sets_of_nanobeir(tmp_path):
  folder = tmp_path / 'beir' / 'NanoNQ'
  for part, columns in {
      'corpus': {'_id': ['d1', 'd2'], 'text': ['one', 'two']},
      'queries': {'_id': ['q1', 'q2'], 'text': ['who', 'what']},
      'qrels': {'query-id': ['q1', 'q2'], 'corpus-id': ['d2', 'd1']},
  }.items():
    (folder / part).mkdir(parents=True)
    path = folder / part / 'train-00000-of-00001.parquet'
    parquet.write_table(pyarrow.table(columns), path)
  reader = Beir(dataset='NanoNQ', data_root=str(tmp_path))
  assert (reader.splits(), reader.evaluated) == (('test', 'corpus'), 'test')
  found = [('who', 'two', 'q1', 'd2', 1), ('what', 'one', 'q2', 'd1', 1)]
  assert judged(reader.examples('test')) == found
  assert column(reader.examples('corpus'), 'passage') == ['one', 'two']
  assert len(reader.select_datasets('nanobeir')) == 13
  message = 'qrels/train.parquet', 'hf download zeta-alpha-ai/NanoNQ'
  refused(
      lambda: reader.check_split('train'), *message, error=SourceUnavailable
  )


def expected(folder, split):
  """As BEIR's own loader and models have it: title, space, text."""
  passages = {
      row['_id']: (row['title'] + ' ' + row['text']).strip()
      for row in objects(folder / 'corpus.jsonl')
  }
  queries = {r['_id']: r['text'] for r in objects(folder / 'queries.jsonl')}
  _, *lines = (folder / 'qrels' / f'{split}.tsv').read_text().splitlines()
  return [
      (queries[query], passages[passage], query, passage, int(grade))
      for query, passage, grade in csv.reader(lines, delimiter='\t')
  ]


def test_scifact_has_the_published_counts(shared):
  folder = shared / 'data' / 'scifact'
  reader = Beir(dataset='scifact', root=str(shared / 'data'))
  assert reader.splits() == ('train', 'test', 'corpus')
  corpus = column(reader.examples('corpus'), 'passage_id')
  assert corpus == column(objects(folder / 'corpus.jsonl'), '_id')
  assert len(corpus) == 5183
  for split, queries, count in (('train', 809, 919), ('test', 300, 339)):
    rows = judged(reader.examples(split))
    assert rows == expected(folder, split)
    assert (len({row[2] for row in rows}), len(rows)) == (queries, count)
