"""BEIR's table against its README, and counts that are not the published."""

import logging
import shutil

from reading import DATA, refused

from dualenc_jax.errors import SourceUnavailable
from dualenc_jax.readers import beir_sets, rows
from dualenc_jax.readers.beir import Beir

TOY = DATA / 'beir' / 'toy'
# The README's table: queries of the evaluated split, passages as it rounds
# them, and splits.
README = {
    'msmarco': (6980, '8.84M', 'train dev test'),
    'trec-covid': (50, '171K', 'test'),
    'nfcorpus': (323, '3.6K', 'train dev test'),
    'bioasq': (500, '14.91M', 'test'),
    'nq': (3452, '2.68M', 'test'),
    'hotpotqa': (7405, '5.23M', 'train dev test'),
    'fiqa': (648, '57K', 'train dev test'),
    'signal1m': (97, '2.86M', 'test'),
    'trec-news': (57, '595K', 'test'),
    'robust04': (249, '528K', 'test'),
    'arguana': (1406, '8.67K', 'test'),
    'webis-touche2020': (49, '382K', 'test'),
    'cqadupstack': (13145, '457K', 'test'),
    'quora': (10000, '523K', 'dev test'),
    'dbpedia-entity': (400, '4.63M', 'dev test'),
    'scidocs': (1000, '25K', 'test'),
    'fever': (6666, '5.42M', 'train dev test'),
    'climate-fever': (1535, '5.42M', 'test'),
    'scifact': (300, '5K', 'train test'),
}


def test_counts_and_splits_are_those_of_the_readme():
  assert set(beir_sets.NAMES) == set(README)
  for name, (queries, passages, splits) in README.items():
    sets = [beir_sets.SETS[part] for part in beir_sets.parts(name)]
    assert sum(each.splits[each.evaluated][0] for each in sets) == queries
    # It rounds some to the nearest and cuts others off.
    unit = {'K': 1e3, 'M': 1e6}[passages[-1]]
    decimals = len(passages[:-1].partition('.')[2])
    total = sum(each.passages for each in sets) / unit
    assert abs(total - float(passages[:-1])) < 10**-decimals
    for each in sets:
      assert [*each.splits] == splits.replace('dev', 'validation').split()


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


def test_wrong_names():
  parts = '12 data sets', 'cqadupstack/android'
  refused(lambda: Beir(dataset='cqadupstack'), *parts)
  refused(lambda: Beir(dataset='touche'), "no data set 'touche'")
  refused(lambda: Beir(dataset='sci-fact'), "Did you mean 'scifact'")


def test_missing_sets_say_where_to_get_them(tmp_path):
  def missing(reader, *parts):
    check = reader.check_split
    refused(lambda: check('test'), *parts, error=SourceUnavailable)

  data_root = {'data_root': str(tmp_path)}
  gis = Beir(dataset='cqadupstack/gis', **data_root)
  assert gis.splits() == ()
  zip_file = '/BEIR/datasets/cqadupstack.zip (5,344 MB)'
  missing(gis, f'{tmp_path}/beir/cqadupstack/gis', zip_file)
  missing(Beir(dataset='nq'), '--gin.DATA_ROOT')
  missing(Beir(dataset='robust04'), 'where to ask for them')
  # A split that a set never had.
  reader = Beir(dataset='scifact', **data_root)
  message = "no split 'validation'"
  refused(lambda: reader.examples('validation'), message, 't, corpus')


def test_other_counts_than_the_published_ones(tmp_path, caplog):
  caplog.set_level(logging.INFO)
  shutil.copytree(TOY, tmp_path / 'beir' / 'scifact')

  def reader(**options):
    return Beir(dataset='scifact', data_root=str(tmp_path), **options)

  refused(
      lambda: reader().examples('test'),
      "beir/scifact, split 'test': 2 queries, published 300",
      '4 judgements, published 339', '--gin.BEIR_TOLERANCE',
  )
  corpus = '5 passages, published 5,183'
  refused(lambda: reader().examples('corpus'), corpus)
  # A part of a set is read when one says so; its counts are logged.
  assert len(list(reader(tolerance=1.0).examples('test'))) == 4
  assert corpus in caplog.text
  with rows.collecting() as bad:
    assert len(list(reader().examples('test'))) == 4
  assert corpus in bad
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
