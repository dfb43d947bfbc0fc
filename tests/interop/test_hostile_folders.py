"""Models of strangers: refused by one error, in no time and no memory."""

import json
import os
import pathlib
import shutil

import pytest
from small_folders import DEEP, ZARR

from dualenc_jax import Retriever
from dualenc_jax.interop import peers
from dualenc_jax.interop.weights import Usage


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


HF, ST, PLAIN = 'hf', 'sentence_transformers', 'safetensors'
CONFIG = 'config_sentence_transformers.json'
BERT = 'sentence_bert_config.json'


@pytest.mark.parametrize(
    'form, file',
    [
        (HF, 'config.json'), (HF, 'tokenizer_config.json'), (ST, CONFIG),
        (ST, 'modules.json'), (PLAIN, 'towers.json'), ('t5x', 'dualenc.json'),
        ('t5x', f'{ZARR}/.zarray'),
    ],
)
def test_deep_json(refused, form, file):
  refused(form, write_json(file, DEEP), pathlib.Path(file).parent.name)


@pytest.mark.parametrize(
    'form, file, path, value, word',
    [
        (HF, 'config.json', ['num_layers'], 10_000_000, '22 tensors'),
        (HF, 'config.json', ['num_layers'], True, 'num_layers is True'),
        (HF, 'config.json', ['d_kv'], 10**30, 'head_dim is 1000'),
        (HF, 'config.json', ['feed_forward_proj'], [], 'feed_forward_proj'),
        (HF, 'tokenizer_config.json', ['model_max_length'], '9',
         'model_max_length'),
        (HF, 'dualenc.json', ['passage_prefix'], None, 'passage_prefix'),
        (HF, 'dualenc.json', ['query_length'], -1, 'query_length is -1'),
        (ST, CONFIG, ['prompts'], {'query': 1}, 'prompts: query is 1'),
        (ST, CONFIG, ['similarity_fn_name'], {}, 'similarity_fn_name'),
        (ST, BERT, ['max_seq_length'], 2**62, '_length is 461168601842738790'),
        (ST, BERT, ['processor_kwargs'], {'model_max_length': '9'},
         'processor_kwargs: model_max_length'),
        (ST, BERT, ['model_args'], {'weights_only': False},
         'model_args has weights_only'),
        (ST, 'modules.json', [0], 'x', 'modules.json: an entry'),
        (ST, 'modules.json', [1, 'path'], '../model/1_Pooling', 'its own'),
        (ST, 'modules.json', [1, 'path'], '/etc', 'its own folder'),
        (ST, 'modules.json', [1, 'path'], 'a\0b', 'its own folder'),
        (PLAIN, 'towers.json', ['encoder', 'num_layers'], 10_000_000,
         'towers.json'),
        (PLAIN, 'towers.json', ['encoder', 'num_heads'], 0, 'towers.json'),
        (PLAIN, 'towers.json', ['encoder', 'mlp_din'], 64, 'towers.json'),
        (PLAIN, 'towers.json', ['passage_prefix'], None, 'towers.json'),
        (PLAIN, 'towers.json', ['query_length'], 2**31 - 1,
         'model (plain tensors): Tokenizer.query_length is 2147483647'),
        (PLAIN, 'towers.json', ['encoder', 'activations'],
         ['set_logical_axis_rules'], "the activation 'set_"),
        *(('t5x', f'{ZARR}/.zarray', [name], value, word)
          for name, value, word in (
              ('chunks', [10**9, 10**9], 'chunks'),
              ('chunks', [0, 0], 'embedding'),
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
        (ST, '2_Dense/model.safetensors', 'pipe'),
        (PLAIN, 'weights.safetensors', 'endless'),
        ('t5x', 'checkpoint_7/checkpoint', 'pipe'),
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


def test_links_of_a_hub_are_read(small_forms, tmp_path):
  """As huggingface_hub lays a snapshot out: every file a link to a blob."""
  (tmp_path / 'blobs').mkdir()
  snapshot = tmp_path / 'snapshots/abc'
  snapshot.mkdir(parents=True)
  for i, file in enumerate(sorted((small_forms / HF).iterdir())):
    shutil.copy(file, tmp_path / f'blobs/{i}')
    (snapshot / file.name).symlink_to(f'../../blobs/{i}')
  assert Retriever.from_dir(snapshot).dim == 6


def test_a_config_beside_a_checkpoint_is_not_run(
    small_forms, tmp_path, monkeypatch
):
  folder = shutil.copytree(small_forms / PLAIN, tmp_path / 'model')
  ran = tmp_path / 'ran'
  (folder / 'a_strangers.py').write_text(f'import os\nos.mkdir({str(ran)!r})')
  (folder / 'config.gin').write_text('import a_strangers\n')
  monkeypatch.syspath_prepend(folder)
  assert Retriever.from_dir(folder).dim == 6
  assert not ran.exists()


@pytest.mark.parametrize('name', ['../model/one.safetensors', '/etc/passwd'])
def test_names_of_shards(refused, name):
  def damage(folder):
    (folder / 'model.safetensors').rename(folder / 'one.safetensors')
    index = {'weight_map': {'shared.weight': name}}
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
  pytest.importorskip('transformers')
  folder = shutil.copytree(small_forms / HF, tmp_path / 'model')
  ran = tmp_path / 'ran'
  code = f'import os\nos.mkdir({str(ran)!r})\nclass Theirs: pass\n'
  (folder / 'theirs.py').write_text(code)
  tokenizer = {'AutoTokenizer': ['theirs.Theirs', None]}
  change_json('tokenizer_config.json', 'auto_map', value=tokenizer)(folder)
  model = dict.fromkeys(('AutoConfig', 'AutoModel'), 'theirs.Theirs')
  change_json('config.json', 'auto_map', value=model)(folder)
  # Nobody is asked either whether to run it.
  monkeypatch.setattr('builtins.input', lambda *_: 'y')
  usage = Usage(folder / 'spiece.model', None, 16, 40)
  assert peers.other_ids(folder, usage, ['a text']) == set()
  assert peers.hugging_face(folder, usage)(['a text']).shape == (2, 1, 6)
  assert not ran.exists()
