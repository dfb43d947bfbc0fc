"""beir's reader on real folders, beside json and csv."""

import collections
import csv

from reading import column, judged, objects

from dualenc_jax.readers.beir import Beir


def tsv(path):
  with open(path, encoding='utf-8', newline='') as stream:
    return list(csv.reader(stream, delimiter='\t'))


def expected(folder, split):
  """As BEIR's own loader and models have it: title, space, text."""
  passages = {
      row['_id']: (row['title'] + ' ' + row['text']).strip()
      for row in objects(folder / 'corpus.jsonl')
  }
  queries = {r['_id']: r['text'] for r in objects(folder / 'queries.jsonl')}
  return [
      (queries[query], passages[passage], query, passage, int(grade))
      for query, passage, grade in tsv(folder / 'qrels' / f'{split}.tsv')[1:]
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


def test_a_cut_down_corpus_with_grades(shared):
  folder = shared / 'data' / 'msmarco_v1_dl1920'
  rows = judged(Beir(folder=str(folder)).examples('test'))
  assert rows == expected(folder, 'test')
  assert len(rows) == 9490 and len({row[2] for row in rows}) == 97


def test_gpl_pairs_and_hard_negatives(shared):
  folder = shared / 'data/hardneg_samples/gpl_sample-data/generated/fiqa'
  mined = folder / 'hard-negatives.jsonl'
  options = {'hard_negatives': str(mined), 'max_negatives': 6}
  reader = Beir(folder=str(folder), prefix='qgen', **options)
  texts = {r['_id']: r['text'] for r in objects(folder / 'corpus.jsonl')}
  lists = {row['qid']: row['neg'] for row in objects(mined)}
  pairs = tsv(folder / 'qgen-qrels' / 'train.tsv')[1:]
  rows = list(reader.examples('train'))
  ids = zip(column(rows, 'query_id'), column(rows, 'passage_id'))
  assert [*map(list, ids)] == [pair[:2] for pair in pairs] and len(rows) == 30
  by_text = collections.defaultdict(set)
  for name, text in texts.items():
    by_text[text.strip()].add(name)
  for row in rows:
    first, second = lists[row['query_id']].values()
    merged = [name for ranks in zip(first, second) for name in ranks]
    kept = list(dict.fromkeys(merged))[:6]
    assert row['negatives'] == [texts[name].strip() for name in kept]
    assert not by_text[row['passage']] & {*first, *second}
