"""beir and msmarco from a data set of TFDS's form, prepared here."""

import json

from judged_rows import pairs
import numpy as np
import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.readers.beir import Beir
from dualenc_jax.readers.msmarco import MsMarco

QUERIES = {'q1': 'what causes tides', 'q2': 'which rocks are volcanic'}
PASSAGES = {
    'd1': ('Tides', 'The moon pulls the sea.'),
    'd2': ('', 'Basalt is volcanic, 北京.'),
    'd3': ('Bread', 'Yeast raises it.'),
}
JUDGED = {
    'train': [('q1', 'd1', 1.0), ('q1', 'd3', 0.0)],
    'validation': [('q2', 'd2', 1.0)],
    'test': [('q2', 'd2', 2.0), ('q2', 'd3', 0.0)],
}


def rows():
  """As TFDS's builder makes them."""

  def row(query_id='', passage_id='', score=-1.0):
    title, text = PASSAGES.get(passage_id, ('', ''))
    return {
        'query_id': query_id,
        'query': QUERIES.get(query_id, ''),
        'query_metadata': '{}',
        'passage_id': passage_id,
        'passage': text,
        'passage_metadata': json.dumps({'title': title} if title else {}),
        'score': np.float32(score),
    }

  return {
      'query': [row(query_id=name) for name in QUERIES],
      'passage': [row(passage_id=name) for name in PASSAGES],
      **{s: [row(*judged) for judged in pairs] for s, pairs in JUDGED.items()},
  }


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  """A TFDS data_dir with beir/scifact and beir/msmarco."""
  import tensorflow_datasets as tfds

  data_dir = tmp_path_factory.mktemp('root') / 'tensorflow_datasets'
  texts = {
      name: tfds.features.Text()
      for side in ('query', 'passage')
      for name in (side, f'{side}_id', f'{side}_metadata')
  }
  features = tfds.features.FeaturesDict({**texts, 'score': np.float32})
  for config in ('scifact', 'msmarco'):
    folder = data_dir / 'beir' / config / '1.0.0'
    folder.mkdir(parents=True)
    identity = tfds.core.dataset_info.DatasetIdentity(
        name='beir',
        config_name=config,
        version=tfds.core.Version('1.0.0'),
        data_dir=str(folder),
        module_name='',
    )
    info = tfds.core.DatasetInfo(builder=identity, features=features)
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=2)
    writer.initialize_splits(list(rows()))
    writer.add_examples(rows())
    writer.close_all()
  return data_dir


def test_beir_set(data_dir):
  reader = Beir(dataset='scifact', root=str(data_dir.parent), tolerance=1.0)
  assert reader.splits() == ('train', 'validation', 'test', 'corpus')
  assert pairs(reader.examples('train')) == [
      ('what causes tides', 'Tides The moon pulls the sea.', 'q1', 'd1', 1)
  ]
  assert pairs(reader.examples('test')) == [
      (QUERIES['q2'], 'Basalt is volcanic, 北京.', 'q2', 'd2', 2),
      (QUERIES['q2'], 'Bread Yeast raises it.', 'q2', 'd3', 0),
  ]
  corpus = {e['passage_id']: e['passage'] for e in reader.examples('corpus')}
  assert corpus == {
      'd1': 'Tides The moon pulls the sea.',
      'd2': 'Basalt is volcanic, 北京.',
      'd3': 'Bread Yeast raises it.',
  }


def test_judgements_that_tfds_lacks_are_no_ground_to_evaluate(data_dir):
  reader = Beir(dataset='scifact', root=str(data_dir.parent))
  with pytest.raises(UserError, match='keeps one query a passage') as error:
    list(reader.examples('test'))
  assert 'published 300' in str(error.value)
  # To train on fewer pairs is fine; passages must be all there.
  with pytest.raises(UserError) as error:
    list(reader.examples('train'))
  assert 'passages' in str(error.value) and 'queries' not in str(error.value)


def test_msmarco_in_the_users_own_data_dir(data_dir, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(data_dir))
  reader = MsMarco(tolerance=1.0)
  # msmarco has no titles.
  assert pairs(reader.examples('validation')) == [
      (QUERIES['q2'], 'Basalt is volcanic, 北京.', 'q2', 'd2', 1)
  ]
  assert [e['passage'] for e in reader.examples('train')] == [
      'The moon pulls the sea.'
  ]


def test_files_come_before_tfds(data_dir, tmp_path):
  (tmp_path / 'scifact').mkdir()
  (tmp_path / 'tensorflow_datasets').symlink_to(data_dir)
  reader = Beir(dataset='scifact', root=str(tmp_path))
  assert reader.splits() == ()
  with pytest.raises(UserError, match='no file .*scifact/corpus.jsonl'):
    reader.check_split('corpus')


def test_fingerprint_changes_with_the_shards(data_dir):
  reader = Beir(dataset='scifact', root=str(data_dir.parent))
  train, test = reader.fingerprint('train'), reader.fingerprint('test')
  assert train != test
  shard = next((data_dir / 'beir/scifact/1.0.0').glob('*-test.*'))
  data = shard.read_bytes()
  shard.write_bytes(data + b'x')
  try:
    assert reader.fingerprint('train') == train
    assert reader.fingerprint('test') != test
  finally:
    shard.write_bytes(data)
