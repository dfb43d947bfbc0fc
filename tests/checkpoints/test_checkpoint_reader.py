"""A model_dir without its config, or an artifact: the model in it."""

import json
import shutil

from bit_flips import flip_bit
from flax import traverse_util
import jax
import numpy as np
import pytest
import tiny_towers

from dualenc_jax.checkpoints import checkpoint_reader, formats, loading
from dualenc_jax.checkpoints.weights import VOCABULARY
from dualenc_jax.models import describe, DualEncoder, Projection
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.retrieval.encoding import artifact as serving
from dualenc_jax.training.checkpoints import Checkpoints
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)


PATHS = {
    'DualEncoder': 'dual_encoder', 'Projection': 'dual_encoder',
    'T5Encoder': 't5_encoder', 'dot_product_attention': 't5_encoder',
    'TokenEmbedder': 'layers',
}


def of_old_paths(described):
  """Facts of a model as of a run that names classes by their modules."""
  text = json.dumps(described)
  for name, module in PATHS.items():
    assert f'"dualenc_jax.models.{name}"' in text
    text = text.replace(f'models.{name}"', f'models.{module}.{name}"')
  return json.loads(text)


def save(folder, *steps, **kind):
  """A model_dir with a model of another seed at each step; the last one."""
  for step in steps:
    towers = tiny_towers.loaded(seed=step, **kind)
    tokenizer = towers.tokenizer
    lengths = 'query_length', 'passage_length'
    data = {
        'vocabulary': tokenizer.vocabulary.sha256,
        'seed': 3,
        **{name: getattr(tokenizer, name) for name in lengths},
        **tokenizer.prefixes,
    }
    model = of_old_paths(describe(towers.embedder.model))
    meta = {'run_id': 'r', 'model': model, 'data': data}
    Checkpoints(folder).save_params(towers.params, step, meta)
  shutil.copyfile(tokenizer.vocabulary.file, folder / VOCABULARY)
  return towers


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  save(folder, 1, 2)
  return folder


@pytest.fixture
def copied(folder, tmp_path):
  return shutil.copytree(folder, tmp_path / 'run')


# Of one length, as each length is a program.
TEXTS = ['parse a date'] * 2


def flat(params):
  flattened = traverse_util.flatten_dict(params, sep='/')
  return {name: np.asarray(leaf) for name, leaf in flattened.items()}


@pytest.mark.parametrize(
    'kind',
    [
        {'apart': True, 'prefixes': ('find: ', ''), 'scan_layers': True},
        {'dtype': 'bfloat16', 'hidden': (40, 20)},
    ],
)
def test_the_model_is_the_one_that_was_trained(tmp_path, kind):
  """Its dtype and its scan, too."""
  towers = save(tmp_path, 7, **kind)
  found = formats.load(tmp_path)
  assert found.embedder.model == towers.embedder.model
  assert found.tokenizer.prefixes == towers.tokenizer.prefixes
  assert_equal(flat(found.params), flat(towers.params))
  wanted = {'checkpoint_step': 7, 'seed': 3, 'dtype': 'float32'} | kind
  wanted = {name: wanted[name] for name in ('checkpoint_step', 'seed', 'dtype')}
  assert wanted.items() <= found.provenance.items()


@pytest.mark.parametrize(
    'path, value, word',
    [
        (['step'], 'x', "step is 'x'"),
        (['model', 'encoder', 'num_layers'], 10_000_000, 'num_layers'),
        (['model', 'encoder', 'activations'], [1], 'activations'),
        (['model', 'projection'], describe(tiny_towers.model().encoder),
         'projection'),
    ],
)
def test_what_is_saved_of_a_model_may_be_hostile(copied, path, value, word):
  file = copied / 'checkpoints/2/meta/metadata'
  found = inner = json.loads(file.read_text())
  for key in path[:-1]:
    inner = inner[key]
  inner[path[-1]] = value
  # Whoever writes it anew can leave out what would tell.
  del found['files'], found['sha256']
  file.write_text(json.dumps(found))
  shutil.rmtree(copied / 'checkpoints/1')
  with pytest.raises(UserError, match=word):
    formats.load(copied)


# Orbax leaves the other reads of a damaged checkpoint unfinished.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_a_step_or_the_newest_that_can_be_read(copied, caplog):
  def step_of(step=None):
    return checkpoint_reader.restore(copied, step, lambda c: c.meta['step'])

  assert checkpoint_reader.steps(copied) == [1, 2]
  assert [step_of(1), step_of(2), step_of()] == [1, 2, 2]
  with pytest.raises(UserError, match='the step is 3; expected .*, 1, 2'):
    step_of(3)
  shutil.rmtree(copied / 'checkpoints/2/params/d')
  assert loading.load_model_dir(copied).provenance['checkpoint_step'] == 1
  assert 'checkpoint 2 cannot be read' in caplog.text
  with pytest.raises(UserError, match='No checkpoint in .* can be read .*2: '):
    loading.load_model_dir(copied, 2)
  (copied / 'checkpoints/1/meta/metadata').write_text('{"data": ')
  with pytest.raises(UserError, match='No checkpoint .*2: .*1: .*metadata'):
    loading.load_model_dir(copied)
  shutil.rmtree(copied / 'checkpoints/2')
  (copied / 'checkpoints/1').rename(copied / 'checkpoints/1.tmp')
  with pytest.raises(UserError, match='has no checkpoint yet'):
    loading.load_model_dir(copied)
  for wrong, why in (
      (copied / 'checkpoints/1.tmp/meta/metadata', 'is a file. Expected the'),
      (copied.with_name('none'), 'does not exist. Expected the folder of a'),
  ):
    with pytest.raises(UserError, match=why):
      loading.load_teacher(wrong)


def test_a_flipped_bit_is_noticed_by_whatever_opens_it(copied, caplog):
  params = copied / 'checkpoints/2/params'
  flip_bit(params, 'encoder.layers_1.mlp.wo.kernel', (3, 1), 0)
  said = 'checkpoints/2/params/manifest.ocdbt is not what was saved'
  assert formats.load(copied).provenance['checkpoint_step'] == 1
  assert said in caplog.text
  with pytest.raises(UserError, match=said):
    loading.load_model_dir(copied, 2)
  with pytest.raises(UserError, match=said):
    formats.read(copied, 2)


def apart(arrays):
  """Stacked layers as layers by number."""
  found = {}
  for name, array in arrays.items():
    stack, is_stacked, rest = name.partition('/layers/')
    if is_stacked:
      found |= {f'{stack}/layers_{i}/{rest}': x for i, x in enumerate(array)}
    else:
      found[name] = array
  return found


def assert_equal(found, expected):
  assert found.keys() == expected.keys()
  for name, array in expected.items():
    np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize('saved, wanted', [(False, True), (True, False)])
def test_layers_are_stacked_as_the_model_wants_them(tmp_path, saved, wanted):
  towers = save(tmp_path, 1, scan_layers=saved)
  checkpoint = checkpoint_reader.open_checkpoint(tmp_path, 1)
  params, _ = loading.place(
      tiny_towers.model(scan_layers=wanted), checkpoint.tensors, 'x'
  )
  assert ('layers' in params['encoder']) == wanted
  assert_equal(apart(flat(params)), apart(flat(towers.params)))


def test_an_artifact_is_read_unless_a_file_has_changed(tmp_path):
  towers = tiny_towers.loaded(
      prefixes=('find: ', 'code: '), apart=True, scan_layers=True, hidden=(40,)
  )
  folder = tmp_path / 'new'
  serving.write(towers, folder)
  assert formats.detect(folder) == 'artifact'
  again = loading.load(formats.read(folder))
  assert again.tokenizer.prefixes == towers.tokenizer.prefixes
  assert again.tokenizer.query_length == 12
  assert_equal(flat(again.params), apart(flat(towers.params)))
  encoder = towers.embedder.model.encoder.clone(scan_layers=False)
  assert again.embedder.model.encoder == encoder
  with (folder / 'weights.safetensors').open('ab') as file:
    file.write(b'!')
  with pytest.raises(UserError, match='weights.safetensors .* was changed'):
    formats.read(folder)


class Mine(DualEncoder):
  """A class of the user's own."""


def test_a_class_of_ones_own_takes_its_parameters_by_rules(folder):
  tensors = checkpoint_reader.open_checkpoint(folder, 2).tensors
  ours = tiny_towers.model()
  mine = Mine(ours.token_embedder, ours.encoder, ours.projection)
  params, embedder = loading.place(mine, tensors, 'x')
  towers = tiny_towers.loaded(seed=2)
  tokens = towers.tokenizer.encode_queries(TEXTS)
  np.testing.assert_array_equal(
      embedder.queries(params, tokens), towers.queries(tokens)
  )
  partitioner = Partitioner(2, (('embed', 'data'),))
  params, _ = loading.place(mine, tensors, 'x', partitioner)
  kernel = params['encoder']['layers_0']['mlp']['wo']['kernel']
  assert tuple(kernel.sharding.spec) == ('model', 'data')
  assert_equal(flat(params), flat(towers.params))
  wide = ours.clone(projection=Projection(8))
  with pytest.raises(UserError, match=r'projection/kernel: \(32, 24\) in '):
    loading.place(wide, tensors, 'x')


def test_another_vocabulary_and_numbers_that_are_not_finite(tmp_path):
  towers = save(tmp_path, 1)
  params = jax.tree.map(np.array, towers.params)
  params['encoder']['layers_1']['mlp']['wo']['kernel'][3, 1] = -np.inf
  meta = checkpoint_reader.open_checkpoint(tmp_path, 1).meta
  Checkpoints(tmp_path).save_params(params, 2, meta)
  said = 'checkpoints/2/params: encoder/layers_1/mlp/wo/kernel .*NaN or inf'
  with pytest.raises(UserError, match=said):
    formats.load(tmp_path)
  with (tmp_path / VOCABULARY).open('ab') as file:
    file.write(b'\x1a\x00')
  with pytest.raises(UserError, match='another vocabulary'):
    formats.load(tmp_path)
