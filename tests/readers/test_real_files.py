"""Readers of real files of ../shared, beside json and csv."""

import csv
import json

from reading import column, judged, objects, refused

from dualenc_jax.readers import Beir, MsMarco

SPLADE = {
    'collection': 'val_collection/raw.tsv',
    'validation_qrels': 'qrel/qrel.json',
    'validation_queries': 'val_queries/raw.tsv',
}


def cells(path):
  with open(path, encoding='utf-8', newline='\n') as stream:
    return list(csv.reader(stream, delimiter='\t', quoting=csv.QUOTE_NONE))


def expected(folder, split):
  """As BEIR's own loader and models have it: title, space, text."""
  passages = {
      row['_id']: (row['title'] + ' ' + row['text']).strip()
      for row in objects(folder / 'corpus.jsonl')
  }
  queries = {r['_id']: r['text'] for r in objects(folder / 'queries.jsonl')}
  return [
      (queries[query], passages[passage], query, passage, int(grade))
      for query, passage, grade in cells(folder / 'qrels' / f'{split}.tsv')[1:]
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


def test_a_collection_of_splade(shared):
  root = shared / 'data' / 'hardneg_samples' / 'splade_toy'
  options = {'root': str(root), 'files': SPLADE}
  # One query is there twice.
  strict = MsMarco(**options)
  refused(lambda: strict.examples('validation'), "raw.tsv:7: id '1048876'")
  reader = MsMarco(**options, strict=False)
  passages = dict(cells(root / SPLADE['collection']))
  # The first counts.
  queries = dict(reversed(cells(root / SPLADE['validation_queries'])))
  of_query = json.loads((root / SPLADE['validation_qrels']).read_text())
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
