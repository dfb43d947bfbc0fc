"""BEIR's sets: their conventions, and counts that are not the published."""

import csv
import logging
import shutil

from reading import column, DATA, judged, objects, refused

from dualenc_jax.data.readers import beir_sets
from dualenc_jax.data.readers.beir import Beir
from dualenc_jax.utils.errors import SourceUnavailable

TOY = DATA / 'beir' / 'toy'


def test_conventions():
  self_hits = {n for n, row in beir_sets.SETS.items() if row.self_hits}
  assert self_hits == {'arguana', 'quora'}
  assert Beir(dataset='quora').self_hits
  assert not Beir(dataset='scifact').self_hits
  assert not Beir(folder='x').self_hits
  assert Beir(dataset='msmarco').evaluated == 'validation'
  assert Beir(dataset='fever').evaluated == 'test'
  assert Beir(dataset='cqadupstack/tex').evaluated == 'test'
  assert len(set(beir_sets.CQADUPSTACK_PARTS)) == 12
  # Of all parts together, as BEIR's README has them.
  parts = [beir_sets.SETS[n] for n in beir_sets.parts('cqadupstack')]
  assert sum(part.splits['test'][0] for part in parts) == 13145
  message = '12 data sets', 'cqadupstack/android'
  refused(lambda: Beir(dataset='cqadupstack'), *message)


def test_missing_sets_say_where_to_get_them(tmp_path):
  gis = Beir(dataset='cqadupstack/gis', data_root=str(tmp_path))
  assert gis.splits() == ()
  refused(
      lambda: gis.check_split('test'), f'{tmp_path}/beir/cqadupstack/gis',
      '/BEIR/datasets/cqadupstack.zip (5,344 MB)', error=SourceUnavailable,
  )


def test_other_counts_than_the_published_ones(tmp_path, caplog):
  caplog.set_level(logging.INFO)
  shutil.copytree(TOY, tmp_path / 'beir' / 'scifact')

  def reader(**options):
    return Beir(dataset='scifact', data_root=str(tmp_path), **options)

  counts = '2 queries, published 300', '4 judgements, published 339'
  refused(lambda: reader().examples('test'), *counts, '--gin.BEIR_TOLERANCE')
  corpus = '5 passages, published 5,183'
  # A part of a set is read when one says so; its counts are logged.
  assert len(list(reader(tolerance=1.0).examples('test'))) == 4
  assert corpus in caplog.text
  # It is a share of the published count.
  share = 1 - 5 / 5183
  assert list(reader(tolerance=share + 1e-9).examples('corpus'))
  refused(lambda: reader(tolerance=share - 1e-9).examples('corpus'), corpus)


def test_notes_and_titles_of_sets(tmp_path):
  for name in ('webis-touche2020', 'fiqa'):
    shutil.copytree(TOY, tmp_path / name)
  touche = Beir(dataset='webis-touche2020', root=str(tmp_path))
  refused(lambda: touche.examples('test'), '2,962 of grades -2 to 5')
  # Titles of sets that have none are left out.
  fiqa = Beir(dataset='fiqa', root=str(tmp_path), tolerance=1.0)
  first, *_ = fiqa.examples('corpus')
  assert first['passage'] == 'The moon pulls the sea twice a day.'


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
