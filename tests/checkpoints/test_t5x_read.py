"""Checkpoints of T5X and t5x_retrieval, in the layouts that those write."""

import json
import shutil

from flax import serialization
import numpy as np
import pytest
import t5x_files

from dualenc_jax.checkpoints import t5x
from dualenc_jax.utils.errors import UserError

RNG = np.random.default_rng(0)
BIAS = 'encoder/relpos_bias/rel_embedding'
PROJECTION = RNG.normal(size=(32, 24)).astype(np.float32)


GATED, PLAIN = 't5_1_1_tiny', 't5_1_0_tiny'
of_each_version = pytest.mark.parametrize('name', [GATED, PLAIN])


@pytest.fixture(scope='module')
def arrays():
  return t5x_files.parameters(GATED)


def assert_holds(weights, arrays):
  assert weights.tensors.keys() == arrays.keys()
  for path, array in arrays.items():
    assert weights.tensors[path].shape == array.shape
    np.testing.assert_array_equal(weights.tensors[path].read(), array)


@of_each_version
@pytest.mark.parametrize('form', ['t5x_legacy', 't5x_orbax'])
def test_golden(name, form):
  folder = t5x_files.GOLDEN / name / form
  assert t5x.matches(folder)
  weights = t5x.read(folder)
  assert_holds(weights, t5x_files.parameters(name))
  assert weights.path == str(folder / 'checkpoint_1000')
  assert form.removeprefix('t5x_').lower() in weights.kind.lower()
  assert weights.step == 1000
  assert weights.passage_encoder is None and not weights.has_projection
  # Left out are the decoder, its head if it has one, and all statistics.
  config = json.loads((t5x_files.GOLDEN / name / 'config.json').read_text())
  decoder = {n for n in config['param_shapes'] if n.startswith('decoder/')}
  left_out = {
      f'state/param_states/{path}/{kind}': 'optimizer'
      for path in config['param_shapes']
      for kind in ('m', 'v', 'v_col', 'v_row')
  }
  left_out |= {f'target/{path}': 'decoder' for path in decoder}
  if name == GATED:
    left_out['target/decoder/logits_dense/kernel'] = 'head'
  assert weights.left_out == left_out


@pytest.mark.parametrize(
    'form, path', [('t5x_legacy', '.'), ('t5x_orbax', 'checkpoint_1000')]
)
def test_a_relative_path(arrays, form, path, monkeypatch):
  monkeypatch.chdir(t5x_files.GOLDEN / GATED / form)
  assert t5x.matches(path)
  weights = t5x.read(path)
  # Its tensors are read later, from wherever that is.
  monkeypatch.chdir('/')
  assert_holds(weights, arrays)


def test_positions_in_other_numbers_of_buckets(tmp_path, arrays):
  few, many = (
      arrays | {BIAS: RNG.normal(size=(4, count)).astype(np.float32)}
      for count in (3, 64)
  )
  t5x_files.write_legacy(tmp_path / 'checkpoint_5', many)
  weights = t5x.read(tmp_path)
  assert_holds(weights, many)
  assert weights.encoder.num_buckets == 64
  t5x_files.write_legacy(tmp_path / 'checkpoint_6', few)
  with pytest.raises(UserError, match='the second axis is 3; expected 4 to'):
    t5x.read(tmp_path)


def test_a_checkpoint_its_state_and_the_newest_in_a_folder(tmp_path, arrays):
  for step in (90, 1000, 200):
    changed = arrays | {'encoder/encoder_norm/scale': np.full(32, step, 'f4')}
    t5x_files.write_legacy(
        tmp_path / f'checkpoint_{step}', changed, {'step': np.int32(step)}
    )
  for name in ('2000.tmp-17', '\u0669000', '02000'):
    (tmp_path / f'checkpoint_{name}').mkdir()
  for path, step in [(tmp_path, 1000), (tmp_path / 'checkpoint_90', 90)]:
    assert t5x.matches(path)
    weights = t5x.read(path)
    assert weights.step == step
    assert weights.path == str(tmp_path / f'checkpoint_{step}')
    scale = weights.tensors['encoder/encoder_norm/scale'].read()
    np.testing.assert_array_equal(scale, np.full(32, step))
  # What TensorFlow writes beside its checkpoints has the name of T5X's file.
  (tmp_path / 'checkpoint').write_bytes(b'model_checkpoint_path: "model.ckpt"')
  assert t5x.read(tmp_path).step == 1000
  assert not t5x.matches(tmp_path / 'absent')
  state = t5x_files.GOLDEN / PLAIN / t5x_files.STATE
  assert t5x.matches(state) and t5x.read(state).step == 1000


@pytest.mark.parametrize(
    'place',
    [
        # As in the checkpoint of its tests: T5X's files at Google, of 2021.
        lambda name: {'kvstore': {'driver': 'gfile', 'path': name}},
        # Written to gs:// before the path came to lie in the kvstore.
        lambda name: {'kvstore': {'driver': 'gcs'}, 'path': name},
    ],
)
def test_dual_encoder_of_t5x_retrieval(tmp_path, arrays, place):
  """With a temperature, too."""
  inline = [
      'projection_layer/kernel', 'encoder/encoder_norm/scale',
      'loss/log_temperature',
  ]
  target = {inline[0]: PROJECTION, inline[2]: np.float32(-3)}
  t5x_files.write_legacy(
      tmp_path / 'checkpoint_5', arrays | target, {'step': np.int32(5)}, inline,
      lambda name, meta: {'driver': 'zarr', 'metadata': meta, **place(name)},
  )
  weights = t5x.read(tmp_path)
  assert_holds(weights, arrays | {'projection/kernel': PROJECTION})
  assert weights.loss['loss/log_temperature'].read() == -3
  assert weights.has_projection and not weights.left_out
  assert weights.model().projection.features == 24


def as_first_orbax(tree):
  """References to folders as names, which say no shapes."""
  if isinstance(tree, dict) and 'kvstore' in tree:
    return f'PLACEHOLDER://{tree["kvstore"]["path"].strip("/")}'
  if isinstance(tree, dict):
    return {key: as_first_orbax(child) for key, child in tree.items()}
  return tree


@of_each_version
def test_a_download_of_the_encoder_alone(tmp_path, name):
  """As docs/interop.md says it is enough."""
  golden = t5x_files.GOLDEN / name / t5x_files.LEGACY
  folder = tmp_path / 'checkpoint_1000'
  for part in ('target.encoder.*', 'target.token_embedder*'):
    for zarr in golden.glob(part):
      shutil.copytree(zarr, folder / zarr.name)
  tree = serialization.msgpack_restore((golden / 'checkpoint').read_bytes())
  (folder / 'checkpoint').write_bytes(
      serialization.msgpack_serialize(as_first_orbax(tree))
  )
  weights = t5x.read(folder)
  assert_holds(weights, t5x_files.parameters(name))
  assert weights.left_out == t5x.read(golden).left_out


def test_bfloat16_and_a_token_embedder_within_the_encoder(tmp_path, arrays):
  halves = {k: v.astype('bfloat16') for k, v in arrays.items()}
  table = 'token_embedder/embedding'
  moved = {k if k != table else f'encoder/{k}': v for k, v in halves.items()}
  t5x_files.write_legacy(
      tmp_path / 'checkpoint_5', moved, inline=['encoder/encoder_norm/scale'],
      flax_mutables={'count': np.ones(2)},
  )
  weights = t5x.read(tmp_path)
  assert_holds(weights, {k: v.astype('f4') for k, v in halves.items()})
  assert weights.step is None
  assert weights.left_out == {'flax_mutables/count': 'flax_mutables'}


def stacked(arrays, axis, subtree='encoder'):
  """The layers along an axis, as a scan of them stores its parameters."""
  tree = {k: v for k, v in arrays.items() if '/layers_' not in k}
  for path in arrays:
    if '/layers_0/' in path:
      layers = [arrays[path.replace('_0/', f'_{i}/', 1)] for i in range(3)]
      inner = path.removeprefix('encoder/layers_0/')
      tree[f'encoder/{subtree}/{inner}'] = np.stack(layers, axis)
  return tree


@pytest.mark.parametrize(
    'axis, subtree, name',
    [(1, 'encoder', PLAIN), (0, 'layers', GATED)],
)
def test_scanned_layers(tmp_path, axis, subtree, name):
  arrays = t5x_files.parameters(name)
  tree = stacked(arrays, axis, subtree)
  state = {
      'step': np.int32(5),
      f'param_states/encoder/{subtree}/mlp/wo/kernel/v': np.zeros((3, 2)),
  }
  t5x_files.write_legacy(tmp_path / 'checkpoint_5', tree, state)
  weights = t5x.read(tmp_path)
  assert_holds(weights, arrays)
  assert weights.left_out == {
      f'state/param_states/encoder/{subtree}/mlp/wo/kernel/v': 'optimizer'
  }


def scalable(arrays):
  """T5X's scalable T5: kernels of three axes, relative positions by layer."""
  tree = {}
  for path, array in arrays.items():
    if '/attention/' in path:
      shape = (4, 8, 32) if '/out/' in path else (32, 4, 8)
      array = array.reshape(shape)
    tree[path] = array
  bias = tree.pop(BIAS)
  for i in range(3):
    tree[f'encoder/layers_{i}/relpos_bias/rel_embedding'] = bias.copy()
  return tree


def test_umt5(tmp_path, arrays):
  tree = scalable(arrays)
  bias = 'encoder/layers_1/relpos_bias/rel_embedding'
  tree[bias] = 2 * tree[bias]
  t5x_files.write_legacy(tmp_path / 'checkpoint_5', stacked(tree, 1))
  weights = t5x.read(tmp_path)
  assert weights.encoder.bias_per_layer
  np.testing.assert_array_equal(weights.tensors[bias].read(), tree[bias])
  tree |= {name.replace('encoder', 'decoder'): tree[name] for name in (
      bias, 'encoder/encoder_norm/scale', bias.replace('_1', '_0')
  )}
  t5x_files.write_legacy(tmp_path / 'checkpoint_6', tree)
  with pytest.raises(UserError, match='as in umT5, and no decoder here has'):
    t5x.read(tmp_path).read_decoder()


def test_scalable_t5(tmp_path, arrays):
  tree = stacked(scalable(arrays), 1)
  assert tree['encoder/encoder/attention/out/kernel'].shape == (4, 3, 8, 32)
  t5x_files.write_legacy(tmp_path / 'checkpoint_5', tree)
  assert_holds(t5x.read(tmp_path), arrays)
