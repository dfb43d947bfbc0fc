"""Models of strangers: refused by one error, in no time and no memory."""

import bz2
import gzip
import json
import os
import pathlib
import resource
import shutil

from flax import serialization
import msgpack
import numpy as np
import pytest
from small_folders import DEEP, FORMS, weights as small_weights, ZARR

from dualenc_jax import Retriever
from dualenc_jax.checkpoints import conversion, formats, verification
from dualenc_jax.utils import finite
from dualenc_jax.utils.errors import UserError


def write_json(file, value):
  return lambda folder: (folder / file).write_text(
      value if isinstance(value, str) else json.dumps(value)
  )


def change_json(file, *path, value):
  """Sets a field of a JSON file."""

  def damage(folder):
    found = json.loads((folder / file).read_text())
    inner = found
    for key in path[:-1]:
      inner = inner[key]
    inner[path[-1]] = value
    (folder / file).write_text(json.dumps(found))

  return damage


HF, ST = 'hf', 'sentence_transformers'
CONFIG = 'config_sentence_transformers.json'
BERT = 'sentence_bert_config.json'


@pytest.mark.parametrize(
    'form, file',
    [
        (HF, 'tokenizer_config.json'), (ST, 'modules.json'),
        ('t5x', f'{ZARR}/.zarray'),
    ],
)
def test_deep_json(refused, form, file):
  refused(form, write_json(file, DEEP), pathlib.Path(file).parent.name)


@pytest.mark.parametrize(
    'form, file, path, value, word',
    [
        (HF, 'config.json', ['num_layers'], 10_000_000, 'expected 2'),
        (HF, 'config.json', ['d_kv'], 10**30, 'd_kv is 1000'),
        (HF, 'tokenizer_config.json', ['model_max_length'], '9',
         'model_max_length'),
        (HF, 'dualenc.json', ['passage_prefix'], None, 'passage_prefix'),
        (HF, 'dualenc.json', ['query_length'], -1, 'query_length is -1'),
        (ST, CONFIG, ['prompts'], {'query': 1}, 'prompts: query is 1'),
        (ST, BERT, ['max_seq_length'], 2**62, '_length is 461168601842738790'),
        (ST, BERT, ['processor_kwargs'], {'model_max_length': '9'},
         'processor_kwargs: model_max_length'),
        (ST, BERT, ['model_args'], {'weights_only': False},
         'model_args has weights_only'),
        (ST, 'modules.json', [0], 'x', 'modules.json: an entry'),
        (ST, 'modules.json', [1, 'path'], '../model/1_Pooling', 'its own'),
        (ST, 'modules.json', [1, 'path'], 'a\0b', 'its own folder'),
        (HF, 'dualenc.json', ['query_length'], 2**31 - 1,
         'Tokenizer.query_length is 2147483647'),
        *(('t5x', f'{ZARR}/.zarray', [name], value, word)
          for name, value, word in (
              ('chunks', [10**9, 10**9], 'chunks'),
              ('shape', [10**9, 10**6], 'shape'),
              ('dtype', '|O', 'embedding'),
          )),
    ],
)
def test_field(refused, form, file, path, value, word):
  damage = change_json(file, *path, value=value)
  refused(form, damage, word)


@pytest.mark.parametrize(
    'form, file, special',
    [
        (HF, 'config.json', 'pipe'), (HF, 'projection.safetensors', 'endless'),
        ('t5x', f'{ZARR}/.zarray', 'endless'), ('t5x', f'{ZARR}/0.0', 'pipe'),
    ],
)
def test_special_files(refused, form, file, special):
  def damage(folder):
    (folder / file).unlink()
    if special == 'pipe':
      os.mkfifo(folder / file)
    else:
      (folder / file).symlink_to('/dev/zero')

  refused(form, damage, f'{file} is not a regular file')


def test_a_config_beside_a_checkpoint_is_not_run(
    small_forms, tmp_path, monkeypatch
):
  folder = shutil.copytree(small_forms / ST, tmp_path / 'model')
  ran = tmp_path / 'ran'
  (folder / 'a_strangers.py').write_text(f'import os\nos.mkdir({str(ran)!r})')
  (folder / 'config.gin').write_text('import a_strangers\n')
  monkeypatch.syspath_prepend(folder)
  assert Retriever.from_dir(folder).dim == 6
  assert not ran.exists()


def test_names_of_shards(refused):
  def damage(folder):
    (folder / 'model.safetensors').rename(folder / 'one.safetensors')
    index = {'weight_map': {'shared.weight': '../model/one.safetensors'}}
    write_json('model.safetensors.index.json', index)(folder)

  refused(HF, damage, 'index.json', 'within its own folder')


TOKENIZER = 'tokenizer.json'
SPLIT = {
    'type': 'Split', 'pattern': {'Regex': '(' * 50}, 'behavior': 'Isolated',
    'invert': False,
}


def test_a_conversion_says_so(refused):
  pytest.importorskip('transformers')
  damage = change_json(TOKENIZER, 'pre_tokenizer', value=SPLIT)
  refused(ST, damage, 'transformers cannot read', '/model: ')


def test_code_of_a_folder_is_not_run(small_forms, tmp_path, monkeypatch):
  pytest.importorskip('sentence_transformers')
  folder = shutil.copytree(small_forms / ST, tmp_path / 'model')
  ran = tmp_path / 'ran'
  code = f'import os\nos.mkdir({str(ran)!r})\nclass Theirs: pass\n'
  (folder / 'theirs.py').write_text(code)
  tokenizer = {'AutoTokenizer': ['theirs.Theirs', None]}
  change_json('tokenizer_config.json', 'auto_map', value=tokenizer)(folder)
  model = dict.fromkeys(('AutoConfig', 'AutoModel'), 'theirs.Theirs')
  change_json('config.json', 'auto_map', value=model)(folder)
  # Nobody is asked either whether to run it.
  monkeypatch.setattr('builtins.input', lambda *_: 'y')
  encode = verification.sentence_transformers_encoder(folder)
  assert encode(['a text']).shape == (2, 1, 6)
  assert not ran.exists()


@pytest.mark.parametrize('name, value', zip(FORMS, [np.nan, np.inf] * 2))
def test_it_is_refused_by_the_name_of_the_tensor(
    tmp_path, monkeypatch, name, value
):
  weights = small_weights(tmp_path)
  kernel = weights.tensors['encoder/layers_1/mlp/wo/kernel'].load()
  with monkeypatch.context() as patch:
    # Nothing of ours writes them otherwise.
    patch.setattr(finite, 'check_tensor', lambda *args: None)
    for folder in ('good', 'bad'):
      (tmp_path / folder).mkdir()
      conversion.FORMS[name].write(weights, tmp_path / folder)
      kernel[3, 1] = value
  lengths = {'query_length': 12, 'passage_length': 20}
  given = {'vocabulary': weights.usage.vocabulary, **lengths}
  formats.load(tmp_path / 'good', **given)
  said = r'(layers_1|block\.1)\b.*\bwo\b.* holds NaN or infinity'
  with pytest.raises(UserError, match=said):
    formats.load(tmp_path / 'bad', **given)


TREE = 'optimizer', 'target', 'encoder'
SCALE = *TREE, 'encoder_norm', 'scale'


@pytest.mark.parametrize('open_file', [gzip.open, bz2.open])
def test_a_chunk_that_is_a_bomb(refused, open_file):
  def damage(folder):
    header = folder / ZARR / '.zarray'
    facts = json.loads(header.read_text())
    facts['compressor']['id'] = 'gzip' if open_file is gzip.open else 'bz2'
    header.write_text(json.dumps(facts))
    with open_file(folder / ZARR / '0.0', 'wb', compresslevel=1) as file:
      for _ in range(128):
        file.write(bytes(2**20))

  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  refused('t5x', damage, 'embedding')
  after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  # Kilobytes: nothing near the 128 MB was unpacked.
  assert after - before < 100_000


def tree(*path, value):
  """Sets a value in the msgpack file; a function of what was there."""

  def damage(folder):
    file = folder / 'checkpoint_7/checkpoint'
    found = serialization.msgpack_restore(file.read_bytes())
    inner = found
    for key in path[:-1]:
      inner = inner.setdefault(key, {})
    is_function = callable(value)
    inner[path[-1]] = value(inner) if is_function else value
    file.write_bytes(serialization.msgpack_serialize(found))

  return damage


@pytest.mark.parametrize(
    'path, value, word',
    [
        ((*SCALE, 'kvstore'), {'path': '../../x'}, 'its own folder'),
        (SCALE, 'PLACEHOLDER://../../x', 'its own folder'),
        ((*SCALE, 'metadata'), {'shape': [10**12]}, 'the shape'),
        (SCALE, np.zeros(8, complex), 'complex128'),
        (('optimizer', 'state', 'step'), np.float32(np.nan), 'state/step'),
        ((*TREE, 'layers_999999999'), lambda e: e['layers_0'],
         'num_layers is 1000000000'),
        (('optimizer', 'target', *'a' * 200), 1, 'names within names'),
    ],
)
def test_msgpack(refused, path, value, word):
  refused('t5x', tree(*path, value=value), word)


def extension(shape, dtype='float32', data=b'1234'):
  """An array as Flax packs it."""
  return msgpack.ExtType(1, msgpack.packb((shape, dtype, data)))


@pytest.mark.parametrize(
    'content',
    [
        b'\xdf\xff\xff\xff\xff',
        b'\x81\xa1a' * 100_000 + b'\x01',
        *(
            msgpack.packb({'target': {'token_embedder': {'embedding': value}}})
            for value in (
                extension([10**13]), msgpack.ExtType(9, b'zz'),
            )
        ),
    ],
)
def test_msgpack_of_other_bytes(refused, content):
  def damage(folder):
    (folder / 'checkpoint_7/checkpoint').write_bytes(content)

  refused('t5x', damage, 'checkpoint_7')
