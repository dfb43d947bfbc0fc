"""BEIR's table against its README, and counts that are not the published."""

import logging
import pathlib
import shutil

import pytest

from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.readers import beir_sets, rows
from dualenc_jax.readers.beir import Beir

TOY = pathlib.Path(__file__).parents[1] / 'data' / 'beir' / 'toy'
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
UNITS = {'K': 1e3, 'M': 1e6}


def test_every_set_of_the_readme_is_there():
  assert set(beir_sets.NAMES) == set(README)


@pytest.mark.parametrize('name', README)
def test_counts_are_those_of_the_readme(name):
  queries, passages, splits = README[name]
  rows = [beir_sets.SETS[part] for part in beir_sets.parts(name)]
  assert sum(row.splits[row.evaluated][0] for row in rows) == queries
  # It rounds some to the nearest and cuts others off.
  unit = UNITS[passages[-1]]
  decimals = len(passages[:-1].partition('.')[2])
  total = sum(row.passages for row in rows) / unit
  assert abs(total - float(passages[:-1])) < 10**-decimals
  renamed = {'dev': 'validation'}
  for row in rows:
    assert list(row.splits) == [renamed.get(s, s) for s in splits.split()]


def test_conventions():
  self_hits = {n for n, row in beir_sets.SETS.items() if row.self_hits}
  assert self_hits == {'arguana', 'quora'}
  assert Beir(dataset='quora').self_hits
  assert not Beir(dataset='scifact').self_hits
  assert not Beir(folder='x').self_hits
  assert Beir(dataset='msmarco').evaluated == 'validation'
  assert Beir(dataset='fever').evaluated == 'test'


def test_cqadupstack_is_read_part_by_part():
  with pytest.raises(UserError, match='12 data sets.*cqadupstack/android'):
    Beir(dataset='cqadupstack')
  assert Beir(dataset='cqadupstack/tex').evaluated == 'test'
  assert len(set(beir_sets.CQADUPSTACK_PARTS)) == 12


def test_a_wrong_name():
  with pytest.raises(UserError, match="no data set 'touche'"):
    Beir(dataset='touche')
  with pytest.raises(UserError, match="Did you mean 'scifact'"):
    Beir(dataset='sci-fact')


def test_missing_sets_say_where_to_get_them(tmp_path, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path / 'none'))
  reader = Beir(dataset='cqadupstack/gis', data_root=str(tmp_path))
  assert reader.splits() == ()
  with pytest.raises(SourceUnavailable) as error:
    reader.check_split('test')
  assert f'{tmp_path}/beir/cqadupstack/gis' in str(error.value)
  assert '/BEIR/datasets/cqadupstack.zip (5,344 MB)' in str(error.value)
  with pytest.raises(SourceUnavailable, match='--gin.DATA_ROOT'):
    Beir(dataset='nq').check_split('test')
  with pytest.raises(SourceUnavailable, match='where to ask for them'):
    Beir(dataset='robust04').check_split('test')


def test_other_counts_than_the_published_ones(tmp_path, caplog):
  shutil.copytree(TOY, tmp_path / 'beir' / 'scifact')
  options = {'dataset': 'scifact', 'data_root': str(tmp_path)}
  with pytest.raises(UserError) as error:
    list(Beir(**options).examples('test'))
  message = str(error.value)
  assert "beir/scifact, split 'test': 2 queries, published 300" in message
  assert '4 judgements, published 339' in message
  assert '--gin.BEIR_TOLERANCE' in message
  with pytest.raises(UserError, match='5 passages, published 5,183'):
    list(Beir(**options).examples('corpus'))
  # A part of a set is read when one says so; its counts are logged.
  with caplog.at_level(logging.INFO):
    assert len(list(Beir(**options, tolerance=1.0).examples('test'))) == 4
  assert '5 passages, published 5,183' in caplog.text
  with rows.collecting() as bad:
    assert len(list(Beir(**options).examples('test'))) == 4
  assert '5 passages, published 5,183' in bad


def test_the_tolerance_is_a_share_of_the_published_count(tmp_path):
  shutil.copytree(TOY, tmp_path / 'scifact')
  options = {'dataset': 'scifact', 'root': str(tmp_path)}
  share = 1 - 5 / 5183
  assert list(Beir(**options, tolerance=share + 1e-9).examples('corpus'))
  with pytest.raises(UserError, match='published 5,183'):
    list(Beir(**options, tolerance=share - 1e-9).examples('corpus'))


def test_another_version_of_touche_is_named(tmp_path):
  shutil.copytree(TOY, tmp_path / 'webis-touche2020')
  with pytest.raises(UserError, match='2,962 of grades -2 to 5'):
    list(
        Beir(dataset='webis-touche2020', root=str(tmp_path)).examples('test')
    )


def test_titles_of_sets_that_have_none_are_left_out(tmp_path):
  shutil.copytree(TOY, tmp_path / 'fiqa')
  reader = Beir(dataset='fiqa', root=str(tmp_path), tolerance=1.0)
  first, *_ = reader.examples('corpus')
  assert first['passage'] == 'The moon pulls the sea twice a day.'


def test_a_split_that_a_set_never_had_is_told_as_such(tmp_path):
  reader = Beir(dataset='scifact', data_root=str(tmp_path))
  with pytest.raises(
      UserError, match="no split 'validation'.*Splits: t.*, t.*, corpus"
  ):
    list(reader.examples('validation'))
