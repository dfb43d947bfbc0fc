"""Artifacts: the same vectors with little installed, and nothing half-right."""

import json
import pathlib
import shutil
import subprocess
import sys
import zlib

from flax import traverse_util
import jax
from jax import export as jax_export
import numpy as np
import pytest
import safetensors.numpy
import tiny_towers

from dualenc_jax.errors import UserError
from dualenc_jax.inference import artifact as serving, towers as towers_lib

TEXTS = tiny_towers.TEXTS
PREFIXES = 'find: ', 'code: '


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
    patch.setattr(towers_lib, 'CPU', towers_lib.Grid(80, 8))
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
needed = {'jax', 'sentencepiece', 'flatbuffers', 'filelock'}
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


def test_files_may_be_links_as_in_the_cache_of_a_hub(copied, tmp_path):
  path = copied / 'vocabulary.model'
  path.rename(tmp_path / 'blob')
  path.symlink_to(tmp_path / 'blob')
  assert serving.Artifact.open(copied).dim == tiny_towers.DIM
  (tmp_path / 'blob').write_text('another')
  with pytest.raises(UserError, match='vocabulary.model'):
    serving.Artifact.open(copied)


@pytest.mark.parametrize(
    'name',
    ['weights.safetensors', 'vocabulary.model', 'programs/passage-32.bin'],
)
def test_a_damaged_file_is_refused(copied, name):
  path = copied / name
  whole = path.read_bytes()
  path.write_bytes(whole[:-1])
  with pytest.raises(UserError, match=f'{name} has .* bytes'):
    serving.Artifact.open(copied)
  path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
  with pytest.raises(UserError, match=f'{name} was changed'):
    serving.Artifact.open(copied)
  path.unlink()
  with pytest.raises(UserError, match=f'{name} is missing'):
    serving.Artifact.open(copied)


def test_a_copy_is_the_same(written, tmp_path):
  serving.write(serving.Artifact.open(written), tmp_path / 'copy')
  for path in written.rglob('*'):
    if path.is_file():
      copy = tmp_path / 'copy' / path.relative_to(written)
      assert copy.read_bytes() == path.read_bytes()
