"""Digests of towers: what changes them, against hashlib and plain loops."""

import dataclasses
import hashlib
import json

from flax import traverse_util
import jax
import numpy as np
import pytest
import tiny_towers

from dualenc_jax import Retriever
from dualenc_jax.checkpoints import (
  conversion,
  formats,
  loading,
)
from dualenc_jax.cli import convert, saved_run
from dualenc_jax.models import abstract_params, einsum_attention
from dualenc_jax.parallel.partitioning import HostPartitioner
from dualenc_jax.retrieval.encoding import artifact as serving
from dualenc_jax.retrieval.encoding.embedder import Embedder
from dualenc_jax.retrieval.encoding.towers import LoadedModel

pytestmark = pytest.mark.devices(8)

PARTS = 'token_embedder', 'encoder', 'projection'


@pytest.fixture(scope='module')
def towers() -> LoadedModel:
  return tiny_towers.loaded(apart=True)


def flat(towers: LoadedModel) -> dict[str, np.ndarray]:
  params = jax.device_get(traverse_util.flatten_dict(towers.params, sep='/'))
  return {name: np.array(value) for name, value in params.items()}


def with_params(towers: LoadedModel, params, model=None) -> LoadedModel:
  """Other parameters, and perhaps another model, on all devices."""
  model, mesh = model or towers.embedder.model, HostPartitioner()
  tree = traverse_util.unflatten_dict(params, sep='/')
  return dataclasses.replace(
      towers,
      params=jax.device_put(tree, mesh.replicated),
      embedder=Embedder(model, mesh, mesh.replicated, 64),
  )


def reference(params, prefix) -> dict[str, str]:
  """What the docstring of `digest` says, of parts that are apart."""
  found = {}
  for part in PARTS:
    settings = {'activations': ['gelu', 'linear']} if part == 'encoder' else {}
    own = hashlib.sha256(json.dumps(settings).encode())
    names = [n for n in params if n.startswith(f'{prefix}{part}/')]
    assert names
    for name in sorted(names):
      shape = list(params[name].shape)
      own.update(json.dumps([name.removeprefix(prefix), *shape]).encode())
      own.update(b''.join(x.tobytes() for x in params[name].astype('<f4')))
    found[part] = own.hexdigest()
  return found


@pytest.mark.parametrize(
    'tower, prefix', [('query', ''), ('passage', 'passage_')]
)
def test_it_is_of_names_shapes_numbers_and_settings(towers, tower, prefix):
  expected = reference(flat(towers), prefix)
  assert towers.tower_digest(tower) == expected
  assert len(set(expected.values())) == 3


def test_one_bit_of_each_tensor_changes_its_part_alone(towers):
  params = flat(towers)
  for name, value in params.items():
    changed = value.copy()
    changed.reshape(-1).view(np.uint32)[-1] ^= 1
    other = with_params(towers, {**params, name: changed})
    part = name.removeprefix('passage_').split('/')[0]
    own = 'passage' if name.startswith('passage_') else 'query'
    for tower in ('query', 'passage'):
      before, after = (x.tower_digest(tower) for x in (towers, other))
      differing = {n for n in before if before[n] != after[n]}
      assert differing == ({part} if tower == own else set()), name


def test_stacked_layers_and_any_mesh_change_nothing():
  towers = tiny_towers.loaded()
  params = flat(towers)
  stacked = {n: v for n, v in params.items() if '/layers_' not in n}
  for name in params:
    if '/layers_0/' in name:
      layers = [params[name.replace('layers_0', f'layers_{i}')] for i in (0, 1)]
      stacked[name.replace('layers_0', 'layers')] = np.stack(layers)
  scanned = with_params(towers, stacked, tiny_towers.model(scan_layers=True))
  assert scanned.tower_digest('query') == towers.tower_digest('query')
  mesh = HostPartitioner(model_parallel=2, rules=(('embed', 'data'),))
  shardings = mesh.param_shardings(abstract_params(towers.embedder.model))
  params = jax.tree.map(jax.device_put, towers.params, shardings)
  kernel = params['encoder']['layers_0']['mlp']['wi_0']['kernel']
  assert not kernel.is_fully_replicated
  sharded = dataclasses.replace(towers, params=params)
  assert sharded.tower_digest('query') == towers.tower_digest('query')


@pytest.mark.parametrize('settings, same', [
    ({'dtype': 'bfloat16'}, True),
    ({'attention_fn': einsum_attention}, True),
    ({'activations': ('relu', 'linear')}, False),
    ({'attention_fn': np.add}, False),
], ids=['dtype', 'einsum', 'activations', 'own attention'])
def test_settings_count_if_they_change_the_embeddings(settings, same):
  towers = tiny_towers.loaded()
  model = towers.embedder.model
  changed = model.clone(encoder=model.encoder.clone(**settings))
  other = with_params(towers, flat(towers), changed)
  before, after = (x.tower_digest('passage') for x in (towers, other))
  differing = {n for n in before if before[n] != after[n]}
  assert differing == (set() if same else {'encoder'})


def test_all_forms_of_a_model_have_the_same(tmp_path):
  towers = tiny_towers.loaded(apart=True)
  lengths = {'query_length': 12, 'passage_length': 12}
  short = dataclasses.replace(towers.tokenizer, **lengths)
  towers = dataclasses.replace(towers, tokenizer=short)
  expected = {t: towers.tower_digest(t) for t in ('query', 'passage')}
  serving.write(towers, tmp_path / 'artifact', ('cpu',))
  weights = formats.read(tmp_path / 'artifact')
  for form in ('sentence_transformers', 't5x'):
    (tmp_path / form).mkdir()
    conversion.FORMS[form].write(weights, tmp_path / form)
  convert.write_model_dir(weights, tmp_path / 'model_dir')
  models = {
      'artifact': serving.Artifact.open(tmp_path / 'artifact'),
      'retriever': Retriever.from_dir(tmp_path / 'artifact').towers,
      'artifact as a checkpoint': loading.load(weights),
      'load_model_dir': loading.load_model_dir(tmp_path / 'model_dir'),
      'model_dir': saved_run.load(str(tmp_path / 'model_dir')),
      'sentence_transformers': formats.load(tmp_path / 'sentence_transformers'),
      't5x': formats.load(
          tmp_path / 't5x', vocabulary='python_code_8k', **lengths
      ),
  }
  for form, model in models.items():
    for tower, digest in expected.items():
      assert model.tower_digest(tower) == digest, form
