"""hf:// paths, against a hub on this machine."""

import json
import pathlib

import pytest

from dualenc_jax.cli import main as cli
from dualenc_jax.data.readers import Texts
from dualenc_jax.data.readers.pairs import Pairs
from dualenc_jax.utils import hub as hub_lib
from dualenc_jax.utils.errors import SourceUnavailable, UserError

constants = pytest.importorskip('huggingface_hub.constants')
fake_hub = pytest.importorskip('fake_hub')


@pytest.fixture(name='hub')
def _hub(tmp_path, monkeypatch):
  with fake_hub.running(monkeypatch, tmp_path / 'cache') as hub:
    yield hub


def test_a_model_without_what_other_programs_read(hub):
  kept = {'config.json': b'{}', '2_Dense/pytorch_model.bin': b'x'}
  others = {'pytorch_model.bin': b'x', 'onnx/model.onnx': b'x'}
  hub.files['models/org/name'] = kept | others
  folder = pathlib.Path(hub_lib.model('hf://org/name'))
  found = {str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file()}
  assert found == kept.keys()
  assert hub_lib.model('gs://bucket/x') == 'gs://bucket/x'


def test_what_was_fetched_is_read_without_the_hub(hub, monkeypatch):
  hub.files['datasets/org/set'] = {'train.csv': b'query,passage\nq,p\n'}
  first = hub_lib.data('hf://org/set/train.csv')
  hub_lib.data.cache_clear()
  monkeypatch.setattr(constants, 'ENDPOINT', 'http://127.0.0.1:1')
  assert hub_lib.data('hf://org/set/train.csv') == first
  with pytest.raises(SourceUnavailable, match='hf://org/new cannot be fetched'):
    hub_lib.model('hf://org/new')


def test_pairs_and_texts(hub, tmp_path):
  hub.files['datasets/org/set'] = {
      'data/train.csv': b'query,passage\nq,p\n',
      'docs.jsonl': b'{"id": "1", "text": "t"}\n',
  }
  path = 'hf://org/set/data/train.csv'
  (pair,) = Pairs(train=path).examples('train')
  assert (pair['query'], pair['passage']) == ('q', 'p')
  (text,) = Texts('hf://datasets/org/set@main/docs.jsonl').examples('corpus')
  assert text['passage'] == 't'
  cli.main(['data', 'check', path, f'--output_dir={tmp_path / "out"}'])
  report = json.loads((tmp_path / 'out/report.json').read_text())
  assert report['splits'][0]['rows'] == 1
  with pytest.raises(UserError, match='is a data set; expected a file'):
    Pairs(train='hf://org/set').check_split('train')
  with pytest.raises(UserError, match='org/set has no doc.jsonl'):
    Texts('hf://org/set/doc.jsonl').check_split('corpus')


@pytest.mark.parametrize('status', [None, 403, 500])
def test_what_the_hub_refuses(hub, status):
  if status:
    hub.status['models/org/name'] = status
  with pytest.raises(SourceUnavailable, match='name cannot be.*log in'):
    hub_lib.model('hf://org/name')


def test_paths_that_are_none(hub):
  hub.files['models/org/name'] = {'config.json': b'{}'}
  with pytest.raises(SourceUnavailable, match='name@v9 cannot be fetched'):
    hub_lib.model('hf://org/name@v9')
  for path in ('hf://name', 'hf://org/name@', 'hf:///x/y'):
    with pytest.raises(UserError, match='not a path on the hub; expected'):
      hub_lib.model(path)
  with pytest.raises(UserError, match='within its own folder'):
    hub_lib.data('hf://org/name/../../x.csv')
