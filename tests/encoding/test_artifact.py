"""Artifacts: the same vectors with little installed, and nothing half-right.

Of artifacts of strangers nothing runs, or is written elsewhere.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import zlib

from flax import traverse_util
import jax
from jax import export as jax_export
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import tiny_towers

from dualenc_jax import Retriever
from dualenc_jax.retrieval.encoding import (
  artifact as serving,
  towers as towers_lib,
)
from dualenc_jax.retrieval.encoding.artifact import digest_file
from dualenc_jax.utils.errors import UserError

TEXTS = tiny_towers.TEXTS
PREFIXES = 'find: ', 'code: '
PROGRAM = 'programs/query-12.bin'


@pytest.fixture(scope='module')
def towers():
  return tiny_towers.loaded(apart=True, prefixes=PREFIXES)


@pytest.fixture(scope='module')
def written(towers, tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp('artifact') / 'new/deep'
  serving.write(towers, folder)
  return folder


@pytest.fixture
def copied(written, tmp_path) -> pathlib.Path:
  return pathlib.Path(shutil.copytree(written, tmp_path / 'copy'))


@pytest.fixture(scope='module')
def opened(written):
  """Its chunks are of few texts."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(towers_lib, 'CPU', towers_lib.Shapes(80, 8))
    return serving.Artifact.open(written)


def vectors(artifact, tower, texts=TEXTS):
  if tower == 'query':
    return artifact.queries(artifact.tokenizer.encode_queries(texts))
  return artifact.passages(artifact.tokenizer.encode_passages(texts))


@pytest.mark.parametrize('tower', ['query', 'passage'])
def test_vectors_are_those_of_the_model(towers, opened, tower):
  assert opened.dim == tiny_towers.DIM
  texts = [*TEXTS, *(' '.join(TEXTS[: i % 7]) for i in range(101))]
  expected = tiny_towers.embed(towers, tower, texts)
  found = vectors(opened, tower, texts)
  np.testing.assert_allclose(found, expected, atol=1e-6)
  assert vectors(opened, tower, []).shape == (0, tiny_towers.DIM)


@pytest.mark.parametrize(
    'kind, atol',
    [({'scan_layers': True}, 1e-6), ({'dtype': 'bfloat16'}, 4e-3)],
    ids=['scanned', 'bfloat16'],
)
def test_other_models(tmp_path, kind, atol):
  towers = tiny_towers.loaded(**kind)
  passages = towers_lib.PassageTower(40, '', {})
  serving.write(towers, tmp_path / 'new', ('cpu',), passages)
  artifact = serving.Artifact.open(tmp_path / 'new')
  expected = tiny_towers.embed(towers, 'query', TEXTS)
  np.testing.assert_allclose(vectors(artifact, 'query'), expected, atol=atol)


def test_programs_run_without_this_library(towers, written):
  """As another program reads the folder: with any parameters of its shapes."""
  manifest = json.loads((written / 'artifact.json').read_text())
  params = safetensors.numpy.load_file(written / 'weights.safetensors')
  assert {n: list(p.shape) for n, p in params.items()} == manifest['params']
  tower = manifest['towers']['query']
  assert tower['lengths'] == [12] and tower['prefix'] == 'find: '
  assert manifest['towers']['passage']['lengths'] == [16, 32, 40]
  program = zlib.decompress((written / 'programs/query-12.bin').read_bytes())
  exported = jax_export.deserialize(bytearray(program))
  assert set(exported.platforms) == {'cpu', 'cuda', 'tpu'}
  tokens = np.zeros((3, 12), np.int32)
  for row, text in zip(tokens, TEXTS):
    ids = towers.tokenizer.vocabulary.encode(['find: ' + text], 12).values
    row[: len(ids)] = ids
  call = jax.jit(exported.call)
  other = tiny_towers.loaded(seed=1, apart=True, prefixes=PREFIXES)
  others = jax.device_get(traverse_util.flatten_dict(other.params, sep='/'))
  for model, values in ((towers, params), (other, others)):
    found = call({name: values[name] for name in tower['params']}, tokens)
    expected = tiny_towers.embed(model, 'query', TEXTS[:3])
    np.testing.assert_allclose(found, expected, atol=1e-6)


# Nothing but what docs/interop.md says is needed, and what that brings.
ELSEWHERE = """
import importlib.metadata, sys
needed = {'jax', 'sentencepiece', 'flatbuffers', 'filelock', 'safetensors'}
brought = {'jaxlib', 'numpy', 'scipy', 'ml_dtypes', 'opt_einsum'}
brought |= {'dualenc_jax'}
for name, owners in importlib.metadata.packages_distributions().items():
  if not {owner.replace('-', '_') for owner in owners} & (needed | brought):
    sys.modules[name] = None
import dualenc_jax, numpy as np
retriever = dualenc_jax.Retriever.from_dir(sys.argv[1])
np.save(sys.argv[2], retriever.encode_passages(sys.argv[3:]))
retriever.index(['a passage'])
retriever.save(sys.argv[2] + '.saved')
"""


def test_it_runs_with_what_docs_say_suffices(towers, written, tmp_path):
  argv = [sys.executable, '-c', ELSEWHERE, written, tmp_path / 'out.npy']
  done = subprocess.run(
      [*argv, *TEXTS], capture_output=True, text=True, timeout=120
  )
  assert done.returncode == 0, done.stderr
  expected = tiny_towers.embed(towers, 'passage', TEXTS)
  np.testing.assert_allclose(np.load(tmp_path / 'out.npy'), expected, atol=1e-6)


@pytest.mark.parametrize('name', ['weights.safetensors', 'vocabulary.model'])
def test_a_damaged_file_is_refused(copied, name):
  path = copied / name
  whole = path.read_bytes()
  path.write_bytes(whole[:-1])
  with pytest.raises(UserError, match=f'{name} is missing or was changed'):
    serving.Artifact.open(copied)
  path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
  with pytest.raises(UserError, match=f'{name} is missing or was changed'):
    serving.Artifact.open(copied)
  path.unlink()
  with pytest.raises(UserError, match=f'{name} is missing or was changed'):
    serving.Artifact.open(copied)


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
  change(folder, 'files', name, value=digest_file(folder / name))


def refused(folder, *words):
  """What opening and encoding says."""
  with pytest.raises(UserError) as caught:
    Retriever.from_dir(folder).encode_queries(['a query'])
  for word in words:
    assert word in str(caught.value), str(caught.value)
  assert len(str(caught.value)) < 800


@pytest.mark.parametrize('path, value, word', [
    (['version'], 1, 'version 1'),
    (['dim'], 'x', 'dim is'),
    (['towers'], {'query': {}}, "towers: query lacks 'length'"),
    (['towers', 'query', 'length'], '12', "length is '12'"),
    (['platforms'], ['tpu'], 'run on tpu, but JAX runs on cpu'),
    (['files', PROGRAM], {}, f"{PROGRAM} lacks 'bytes'"),
    (['files', 'programs/query-12.bin'], {'bytes': 0, 'sha256': ''}, 'changed'),
])
def test_field(copied, path, value, word):
  change(copied, *path, value=value)
  refused(copied, 'artifact.json', word)


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
], ids=range(4))
def test_programs(copied, content, word):
  replace(copied, PROGRAM, content)
  refused(copied, PROGRAM, word)


def test_native_code(copied):
  """A program may name any function of the process, and its arguments."""
  manifest = json.loads((copied / 'artifact.json').read_text())
  params = {
      name: jax.ShapeDtypeStruct(manifest['params'][name], jnp.float32)
      for name in manifest['towers']['query']['params']
  }
  (rows,) = jax_export.symbolic_shape('b')

  def encode(params, tokens):
    shape = tokens.shape[0], manifest['dim']
    result = jax.ShapeDtypeStruct(shape, jnp.float32)
    return jax.ffi.ffi_call('a_stranger', result)(tokens)

  allowed = jax_export.DisabledSafetyCheck.custom_call('a_stranger')
  exported = jax_export.export(
      jax.jit(encode), platforms=['cpu'], disabled_checks=[allowed]
  )(params, jax.ShapeDtypeStruct((rows, 12), jnp.int32))
  replace(copied, PROGRAM, zlib.compress(bytes(exported.serialize())))
  refused(copied, PROGRAM, 'calls native code', 'a_stranger')
