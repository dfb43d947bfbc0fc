"""msmarco's reader on files written by hand, in each layout that it knows."""

import gzip
import logging
import pathlib
import shutil

from judged_rows import pairs
import pytest

from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.readers import rows
from dualenc_jax.readers.msmarco import MsMarco

DATA = pathlib.Path(__file__).parents[1] / 'data'
TOY = DATA / 'msmarco'
PASSAGES = {
    '0': 'The moon pulls the sea twice a day.',
    '1': 'Basalt is a dark volcanic rock.',
    '2': 'Wild yeast raises sourdough.',
    '3': 'Itâ\x80\x99s cold, says "he".',
    '4': 'Granite is a pale rock.',
}
TIDES = ('what causes tides', PASSAGES['0'], '100', '0', 1)
ROCKS = 'which rocks are volcanic'
TRAIN = [
    TIDES,
    (ROCKS, PASSAGES['1'], '101', '1', 1),
    (ROCKS, PASSAGES['4'], '101', '4', 1),
]


@pytest.fixture
def toy(tmp_path):
  return shutil.copytree(TOY, tmp_path / 'msmarco')


def make(root, **options):
  return MsMarco(root=str(root), **{'tolerance': 1.0, **options})


def test_official_files():
  reader = make(TOY)
  assert reader.splits() == ('train', 'validation', 'test', 'corpus')
  assert pairs(reader.examples('train')) == TRAIN
  assert pairs(reader.examples('validation')) == [
      ('how does sourdough rise', PASSAGES['2'], '200', '2', 1)
  ]
  assert pairs(reader.examples('test')) == [
      ('who is cold', PASSAGES['3'], '300', '3', 3),
      ('who is cold', PASSAGES['1'], '300', '1', 0),
  ]
  corpus = list(reader.examples('corpus'))
  assert {e['passage_id']: e['passage'] for e in corpus} == PASSAGES
  assert corpus[2]['location'] == f'{TOY}/collection.tsv:3'
  assert reader.corpus_split('validation') == 'corpus'


def test_gzip_files_in_the_folder_that_unpacking_makes(toy):
  folder = toy / 'collectionandqueries'
  folder.mkdir()
  for name in ('collection.tsv', 'queries.train.tsv', 'qrels.train.tsv'):
    (folder / f'{name}.gz').write_bytes(gzip.compress(
        (toy / name).read_bytes()
    ))
    (toy / name).unlink()
  assert pairs(make(toy).examples('train')) == TRAIN


def test_below_data_root(toy):
  reader = MsMarco(data_root=str(toy.parent), tolerance=1.0)
  assert pairs(reader.examples('train')) == TRAIN


def test_counts_beside_the_published_ones(caplog):
  with pytest.raises(UserError) as error:
    list(make(TOY, tolerance=None).examples('train'))
  message = str(error.value)
  assert '2 queries, published 502,939' in message
  assert '4 judgements, published 532,761' in message
  assert '--gin.MSMARCO_TOLERANCE' in message
  with pytest.raises(UserError, match='1 queries, published 6,980'):
    list(make(TOY, tolerance=None).examples('validation'))
  with pytest.raises(UserError, match='5 passages, published 8,841,823'):
    list(make(TOY, tolerance=None).examples('corpus'))
  with caplog.at_level(logging.INFO):
    list(make(TOY).examples('validation'))
  assert '5 passages, published 8,841,823' in caplog.text


def test_files_of_other_names_are_not_compared(toy):
  (toy / 'collection.tsv').rename(toy / 'raw.tsv')
  (toy / 'qrels.train.tsv').rename(toy / 'train.tsv')
  names = {'collection': 'raw.tsv', 'train_qrels': 'train.tsv'}
  reader = make(toy, files=names, tolerance=None)
  assert pairs(reader.examples('train')) == TRAIN
  with pytest.raises(UserError, match='published 6,980'):
    list(reader.examples('validation'))


def test_triples_are_streamed():
  reader = make(TOY, train_from='triples')
  assert reader.splits() == ('train', 'validation', 'test', 'corpus')
  found = list(reader.examples('train'))
  assert [(e['query'], e['passage'], e['negatives']) for e in found] == [
      ('what causes tides', 'The moon pulls the sea.', ['Basalt is a rock.']),
      ('what causes tides', 'The moon pulls the sea.', ['Bread rises.']),
  ]
  assert found[1]['location'] == f'{TOY}/triples.train.small.tsv:2'
  assert len(list(reader.examples('validation'))) == 1
  assert reader.fingerprint('train') == rows.fingerprint(
      [TOY / 'triples.train.small.tsv']
  )
  with pytest.raises(UserError, match='2 triples, published 39,780,811'):
    list(make(TOY, train_from='triples', tolerance=None).examples('train'))


def test_triples_need_no_other_file(tmp_path):
  shutil.copy(TOY / 'triples.train.small.tsv', tmp_path)
  reader = make(tmp_path, train_from='triples')
  assert reader.splits() == ('train',)
  assert len(list(reader.examples('train'))) == 2
  (tmp_path / 'triples.train.small.tsv').unlink()
  with pytest.raises(SourceUnavailable, match=r'triples.*\.tar\.gz \(7,931 MB'):
    reader.check_split('train')


def test_a_triple_whose_negative_is_its_positive(toy):
  path = toy / 'triples.train.small.tsv'
  path.write_text('q\tp\tp \nq\tp\tn\n')
  with pytest.raises(UserError, match=':1: the negative is the positive'):
    list(make(toy, train_from='triples').examples('train'))
  kept = make(toy, train_from='triples', strict=False)
  assert [e['negatives'] for e in kept.examples('train')] == [[], ['n']]
  with rows.collecting() as bad:
    list(make(toy, train_from='triples').examples('train'))
  assert bad['the negative is the positive'].places == [f'{path}:1']


@pytest.mark.parametrize('place', ['', 'msmarco', '../beir/msmarco'])
def test_a_folder_in_beirs_layout(tmp_path, place):
  root = tmp_path / 'msmarco'
  root.mkdir()
  shutil.copytree(DATA / 'beir' / 'toy', root / place, dirs_exist_ok=True)
  reader = MsMarco(data_root=str(tmp_path), tolerance=1.0)
  assert [e['query_id'] for e in reader.examples('train')] == ['q1', 'q3']
  with pytest.raises(UserError, match='published 532,751'):
    list(MsMarco(data_root=str(tmp_path)).examples('train'))


def test_nothing_there(tmp_path, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path / 'none'))
  assert make(tmp_path).splits() == ()
  with pytest.raises(SourceUnavailable) as error:
    make(tmp_path).check_split('corpus')
  assert f'{tmp_path}/collection.tsv' in str(error.value)
  assert 'collectionandqueries.tar.gz (1,058 MB)' in str(error.value)
  with pytest.raises(SourceUnavailable, match='--gin.DATA_ROOT'):
    MsMarco().check_split('train')


BAD = [
    ('collection.tsv', '5 text', '1 columns, expected 2 (passage id, passage)'),
    ('collection.tsv', '5\ta\tb', '3 columns, expected 2'),
    ('collection.tsv', '\ttext', 'the id is empty'),
    ('collection.tsv', b'5\t\xff', 'not UTF-8'),
    ('queries.train.tsv', '5\t ', "'query' is empty"),
    ('queries.train.tsv', '5', '1 columns, expected 2 (query id, query)'),
    ('qrels.train.tsv', '100\t0', '2 columns, expected query id, passage id'),
]


@pytest.mark.parametrize('name, line, reason', BAD)
def test_bad_rows_name_file_and_line(toy, name, line, reason):
  path = toy / name
  number = len(path.read_bytes().splitlines()) + 1
  with open(path, 'ab') as stream:
    stream.write(line if isinstance(line, bytes) else line.encode())
  with pytest.raises(UserError) as error:
    list(make(toy).examples('train'))
  assert str(error.value).startswith(f'{path}:{number}: {reason}')
  assert pairs(make(toy, strict=False).examples('train')) == TRAIN


def test_truncated_gzip_names_the_last_good_line(toy):
  rows = ''.join(f'{i}\tpassage {i * i}\n' for i in range(3000))
  data = gzip.compress(rows.encode())
  (toy / 'collection.tsv').unlink()
  (toy / 'collection.tsv.gz').write_bytes(data[: len(data) // 2])
  with pytest.raises(UserError, match='collection.tsv.gz is a damaged gzip'):
    list(make(toy).examples('corpus'))


def test_bad_options():
  with pytest.raises(UserError, match="Did you mean 'triples'"):
    MsMarco(train_from='triple')
  with pytest.raises(UserError, match='negatives of their own'):
    MsMarco(train_from='triples', hard_negatives='x')
  with pytest.raises(UserError, match="'colection'. Did you mean 'collection'"):
    MsMarco(root='x', files={'colection': 'y'}).check_split('corpus')
  with pytest.raises(UserError, match="no split 'dev'"):
    make(TOY).check_split('dev')


def test_as_a_task_by_name():
  task = MsMarco(root=str(TOY), tolerance=1.0)
  assert pairs(task.examples('train')) == TRAIN
  assert MsMarco().evaluated == 'validation'
