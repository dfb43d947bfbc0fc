"""beir's reader on real folders, beside json and csv."""

import collections
import csv
import json

from judged_rows import pairs

from dualenc_jax.readers.beir import Beir


def objects(path):
  with open(path, encoding='utf-8') as stream:
    return [json.loads(line) for line in stream]


def judged(path):
  with open(path, encoding='utf-8', newline='') as stream:
    rows = list(csv.reader(stream, delimiter='\t'))
  return [(query, passage, int(grade)) for query, passage, grade in rows[1:]]


def expected(folder, split):
  """As BEIR's own loader and models have it: title, space, text."""
  passages = {
      row['_id']: (row['title'] + ' ' + row['text']).strip()
      for row in objects(folder / 'corpus.jsonl')
  }
  queries = {r['_id']: r['text'] for r in objects(folder / 'queries.jsonl')}
  return [
      (queries[query], passages[passage], query, passage, grade)
      for query, passage, grade in judged(folder / 'qrels' / f'{split}.tsv')
  ]


def found(reader, split):
  return pairs(reader.examples(split))


def test_scifact_has_the_published_counts(shared):
  reader = Beir(dataset='scifact', root=str(shared / 'data'))
  assert reader.splits() == ('train', 'test', 'corpus')
  corpus = list(reader.examples('corpus'))
  assert len(corpus) == 5183
  assert [e['passage_id'] for e in corpus] == [
      row['_id'] for row in objects(shared / 'data/scifact/corpus.jsonl')
  ]
  for split, queries, count in (('train', 809, 919), ('test', 300, 339)):
    rows = found(reader, split)
    assert rows == expected(shared / 'data' / 'scifact', split)
    assert (len({row[2] for row in rows}), len(rows)) == (queries, count)


def test_a_cut_down_corpus_with_grades(shared):
  folder = shared / 'data' / 'msmarco_v1_dl1920'
  reader = Beir(folder=str(folder))
  rows = found(reader, 'test')
  assert rows == expected(folder, 'test')
  assert len(rows) == 9490 and len({row[2] for row in rows}) == 97
  assert len(list(reader.examples('corpus'))) == 30005


def test_trec_qrels_in_place_of_a_file(shared):
  folder = shared / 'data' / 'msmarco_v1_dl1920'
  name = 'qrels_full/qrels.dl19-passage.txt'
  reader = Beir(
      folder=str(folder), files={'test': name}, strict=False
  )
  there = {row['_id'] for row in objects(folder / 'corpus.jsonl')}
  rows = [line.split() for line in (folder / name).read_text().splitlines()]
  assert [row[2:] for row in found(reader, 'test')] == [
      (query, passage, int(grade))
      for query, _, passage, grade in rows
      if passage in there
  ]


def test_gpl_training_data_as_hard_negatives(shared):
  """A triple of ids and a margin a line, no query twice."""
  folder = shared / 'data/hardneg_samples/gpl_sample-data/generated/fiqa'
  triples = folder / 'gpl-training-data.tsv'
  reader = Beir(
      folder=str(folder), prefix='qgen', hard_negatives=str(triples)
  )
  texts = {r['_id']: r['text'] for r in objects(folder / 'corpus.jsonl')}
  with open(triples, encoding='utf-8', newline='') as stream:
    rows = list(csv.reader(stream, delimiter='\t'))
  expected = {query: [texts[p].strip()] for query, _, p, _ in rows}
  assert len(expected) == len(rows) == 20
  found = {e['query_id']: e['negatives'] for e in reader.examples('train')}
  assert len(found) == 30
  assert {q: n for q, n in found.items() if n} == expected


def test_gpl_pairs_and_hard_negatives(shared):
  folder = shared / 'data/hardneg_samples/gpl_sample-data/generated/fiqa'
  mined = folder / 'hard-negatives.jsonl'
  reader = Beir(
      folder=str(folder),
      prefix='qgen',
      hard_negatives=str(mined),
      max_negatives=6,
  )
  texts = {r['_id']: r['text'] for r in objects(folder / 'corpus.jsonl')}
  lists = {row['qid']: row['neg'] for row in objects(mined)}
  pairs = judged(folder / 'qgen-qrels' / 'train.tsv')
  rows = list(reader.examples('train'))
  assert [(e['query_id'], e['passage_id']) for e in rows] == [
      pair[:2] for pair in pairs
  ]
  assert len(rows) == 30
  by_text = collections.defaultdict(set)
  for name, text in texts.items():
    by_text[text.strip()].add(name)
  for row in rows:
    first, second = lists[row['query_id']].values()
    merged = [name for ranks in zip(first, second) for name in ranks]
    kept = list(dict.fromkeys(merged))[:6]
    assert row['negatives'] == [texts[name].strip() for name in kept]
    assert not by_text[row['passage']] & {*first, *second}
