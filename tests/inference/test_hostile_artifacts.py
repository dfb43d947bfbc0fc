"""Artifacts of strangers: nothing of them runs, or is written elsewhere."""

import json
import os
import pathlib
import shutil
import zlib

import jax
from jax import export as jax_export
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tiny_towers

from dualenc_jax import Retriever
from dualenc_jax.errors import UserError
from dualenc_jax.inference import artifact
from dualenc_jax.inference.artifact.manifest import of_file

PROGRAM = 'programs/query-12.bin'


@pytest.fixture(scope='module')
def base(tmp_path_factory):
  folder = tmp_path_factory.mktemp('artifact') / 'base'
  artifact.write(tiny_towers.loaded(), folder, ('cpu',))
  return folder


@pytest.fixture
def copied(base, tmp_path) -> pathlib.Path:
  return pathlib.Path(shutil.copytree(base, tmp_path / 'copy'))


def change(folder, *path, value):
  """Sets a field of artifact.json."""
  file = folder / 'artifact.json'
  found = json.loads(file.read_text())
  inner = found
  for key in path[:-1]:
    inner = inner[key]
  inner[path[-1]] = value
  file.write_text(json.dumps(found))


def replace(folder, name, content):
  """Puts other content into a file, and its digest into artifact.json."""
  (folder / name).write_bytes(content)
  change(folder, 'files', name, value=of_file(folder / name))


def refused(folder, *words):
  """What opening and encoding says."""
  with pytest.raises(UserError) as caught:
    Retriever.from_dir(folder).encode_queries(['a query'])
  for word in words:
    assert word in str(caught.value), str(caught.value)
  assert len(str(caught.value)) < 800


@pytest.mark.parametrize('path, value, word', [
    (['version'], 1, 'version 1'),
    (['format'], 'other', "'dualenc-artifact'"),
    (['dim'], 'x', 'dim is'),
    (['dim'], 10**30, 'dim has 31 digits'),
    (['towers'], {'query': {}}, "towers: query lacks 'length'"),
    (['towers', 'query', 'length'], '12', "length is '12'"),
    (['towers', 'query', 'length'], 10**9, 'the lengths'),
    (['towers', 'query', 'lengths'], [12, 12], 'the lengths'),
    (['towers', 'query', 'lengths'], [5, 12], 'files lacks'),
    (['towers', 'query', 'params'], ['other'], "takes 'other'"),
    (['params', 'projection/kernel'], [1], 'projection/kernel'),
    (['params', 'another'], [1], 'another'),
    (['platforms'], ['tpu'], 'run on tpu, but JAX runs on cpu'),
    (['calling_convention'], 99, 'calling convention 99'),
    (['passage_tower'], {'length': 1}, "lacks 'prefix'"),
    (['files', PROGRAM], {}, f"{PROGRAM} lacks 'bytes'"),
    (['files', 'evil.sh'], {'bytes': 0, 'sha256': ''}, "'evil.sh'"),
])
def test_field(copied, path, value, word):
  change(copied, *path, value=value)
  refused(copied, 'artifact.json', word)


def test_deep_json(copied):
  deep = '{"a":' * 100_000 + '1' + '}' * 100_000
  (copied / 'artifact.json').write_text(deep)
  refused(copied, 'artifact.json', 'JSON')


def test_parameters_that_are_not_finite(copied):
  name = 'weights.safetensors'
  arrays = safetensors.numpy.load_file(copied / name)
  arrays['projection/kernel'][1, 2] = np.inf
  replace(copied, name, safetensors.numpy.save(arrays))
  refused(copied, f'{name}: projection/kernel', 'NaN')


@pytest.mark.parametrize('name', ['../.bashrc', '/etc/passwd', 'index/../../x'])
def test_names_of_files(copied, tmp_path, name):
  (tmp_path / '.bashrc').write_text('mine')
  change(copied, 'files', name, value={'bytes': 4, 'sha256': ''})
  with pytest.raises(UserError, match='within its own folder'):
    Retriever.from_dir(copied).save(tmp_path / 'saved')
  assert (tmp_path / '.bashrc').read_text() == 'mine'
  assert not (tmp_path / 'saved').exists()


@pytest.mark.parametrize('name', [PROGRAM, 'vocabulary.model'])
def test_a_file_without_a_digest(copied, name):
  files = json.loads((copied / 'artifact.json').read_text())['files']
  files.pop(name)
  change(copied, 'files', value=files)
  refused(copied, f'files lacks {name}')


@pytest.mark.parametrize('name', ['artifact.json', PROGRAM])
@pytest.mark.parametrize('special', ['pipe', 'endless'])
def test_special_files(copied, name, special):
  (copied / name).unlink()
  if special == 'pipe':
    os.mkfifo(copied / name)
  else:
    (copied / name).symlink_to('/dev/zero')
  refused(copied, name)


@pytest.mark.parametrize('content, word', [
    (b'', 'cut off'),
    (b'not of zlib', 'damaged'),
    (zlib.compress(b'x' * 99)[:-8], 'cut off'),
    (zlib.compress(bytes(1000)), 'cannot be read by JAX'),
    # 64 MB in 64 kB, more than a program of 12 tokens can have.
    (zlib.compress(bytes(2**26)), 'once decompressed'),
], ids=range(5))
def test_programs(copied, content, word):
  replace(copied, PROGRAM, content)
  refused(copied, PROGRAM, word)


def test_the_program_of_another_length(copied):
  other = next((copied / 'programs').glob('passage-*'))
  replace(copied, PROGRAM, other.read_bytes())
  refused(copied, PROGRAM, 'is not the program')


def test_native_code(copied):
  """A program may name any function of the process, and its arguments."""
  manifest = json.loads((copied / 'artifact.json').read_text())
  params = {
      name: jax.ShapeDtypeStruct(manifest['params'][name], jnp.float32)
      for name in manifest['towers']['query']['params']
  }
  (rows,) = jax_export.symbolic_shape('b')

  def encode(params, tokens):
    shape = jax.ShapeDtypeStruct(
        (tokens.shape[0], manifest['dim']), jnp.float32
    )
    return jax.ffi.ffi_call('a_stranger', shape)(tokens)

  allowed = jax_export.DisabledSafetyCheck.custom_call('a_stranger')
  exported = jax_export.export(
      jax.jit(encode), platforms=['cpu'], disabled_checks=[allowed]
  )(params, jax.ShapeDtypeStruct((rows, 12), jnp.int32))
  replace(copied, PROGRAM, zlib.compress(bytes(exported.serialize())))
  refused(copied, PROGRAM, 'calls native code', 'a_stranger')
