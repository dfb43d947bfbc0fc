"""Indexes of codes in faiss and Parquet: what each finds, what has no form."""

import json

import faiss
import faiss_levels
import numpy as np
from pyarrow import parquet
import pytest
import tiny_evaluation

from dualenc_jax import compression, Retriever
from dualenc_jax.commands import cli, encode
from dualenc_jax.errors import UserError
from dualenc_jax.index import faiss_forms, Index
from dualenc_jax.interop.rows import Rows

faiss_levels.keep_queries()
K = 10
QUERIES = ['read the lines of a file', 'a date', 'sort by key']


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  return tiny_evaluation.link_model(tmp_path_factory.mktemp('codes'))


def encoded(model, folder, codec):
  encode.main([
      f'--model_dir={model}', f'--index_dir={folder}', f'--codec={codec}'
  ])
  return Index.open(folder)


def converted(index, form, out):
  argv = ['convert', str(index.folder), f'--to={form}', f'--out={out}']
  assert cli.main(argv) == 0
  return out


@pytest.mark.parametrize(
    'codec',
    [
        'bf16', 'int8:uniform', 'rotated:1', 'rotated:3', 'opq:4x4', 'sign',
        'truncate:8+int8', 'pca:8+pq:4x3',
    ],
)
def test_faiss_finds_what_the_retriever_finds(codec, model, tmp_path):
  index = encoded(model, tmp_path / 'index', codec)
  out = converted(index, 'faiss', tmp_path / 'out')
  found = faiss.read_index(str(out / 'index.faiss'))
  retriever = Retriever.from_dir(model, index=index.folder)
  scores, rows = found.search(retriever.encode_queries(QUERIES), K)
  hits = retriever.search(QUERIES, len(index))
  np.testing.assert_allclose(scores, hits.scores[:, :K], atol=1e-5)
  ids = (out / 'ids.txt').read_text().splitlines()
  for own, expected, theirs, values in zip(*hits[::-1], rows, scores):
    by_id = dict(zip(own, expected))
    np.testing.assert_allclose(
        [by_id[ids[row]] for row in theirs], values, atol=1e-5
    )
  about = json.loads((out / 'about.json').read_text())
  assert about['codec'] == (index.header.codec or index.header.dtype)


@pytest.mark.parametrize('codec', ['binary', 'hamming'])
def test_bits_are_a_binary_index(codec, model, tmp_path):
  index = encoded(model, tmp_path / 'index', codec)
  out = converted(index, 'faiss', tmp_path / 'out')
  about = json.loads((out / 'about.json').read_text())
  assert (about['faiss'], about['bit_order']) == ('read_index_binary', 'big')
  found = faiss.read_index_binary(str(out / 'index.faiss'))
  queries = Retriever.from_dir(model).encode_queries(QUERIES)
  distances, _ = found.search(np.packbits(queries >= 0, axis=1), len(index))
  signs = np.where(queries >= 0, 1, -1) @ index.embeddings[:].T
  expected = np.sort((index.header.dim - signs) / 2, axis=1)
  np.testing.assert_array_equal(distances, expected)


@pytest.mark.parametrize('codec', ['pq:4x3', 'binary'])
def test_parquet_has_codes_and_what_decodes_them(codec, model, tmp_path):
  index = encoded(model, tmp_path / 'index', codec)
  out = converted(index, 'vectors', tmp_path / 'out')
  table = parquet.read_table(out / 'vectors.parquet')
  codes = [np.frombuffer(b, np.uint8) for b in table['codes'].to_pylist()]
  np.testing.assert_array_equal(np.stack(codes), index.embeddings.codes[:])
  about = json.loads(table.schema.metadata[b'dualenc'])
  assert about['codec'] == codec and about['dtype'] == 'uint8'
  if codec == 'binary':
    assert (about['bits'], about['bit_order']) == (1, 'big')
    return
  assert (about['bits'], about['bit_order']) == (3, 'little')
  arrays = np.load(out / 'codec.npz')
  centroids = arrays['quantiser_score']
  first = int.from_bytes(codes[0].tobytes(), 'little')
  numbers = [first >> (3 * m) & 7 for m in range(4)]
  vector = np.concatenate([centroids[m, j] for m, j in enumerate(numbers)])
  np.testing.assert_array_equal(vector, index.embeddings[0])


@pytest.mark.parametrize('codec', ['pca:8', 'truncate:8', 'pca:8+sign'])
def test_parquet_says_what_its_vectors_are(codec, model, tmp_path):
  index = encoded(model, tmp_path / 'index', codec)
  out = converted(index, 'vectors', tmp_path / 'out')
  table = parquet.read_table(out / 'vectors.parquet')
  about = json.loads(table.schema.metadata[b'dualenc'])
  assert (about['dim'], about['query_dim']) == (8, index.header.dim)
  assert about['normalised'] == (codec == 'truncate:8')
  matrix = np.load(out / 'codec.npz')['transform_0_matrix']
  assert matrix.shape == (about['dim'], about['query_dim'])
  if codec != 'pca:8+sign':
    vectors = np.array(table['vector'].to_pylist())
    assert vectors.shape == (len(index), about['dim'])
    lengths = np.linalg.norm(vectors, axis=1)
    assert np.allclose(lengths, 1, atol=1e-6) == about['normalised']


@pytest.mark.parametrize(
    'codec, why',
    [
        ('truncate:8+binary', 'no map of vectors in front'),
        ('truncate:8+pq:4x2', 'no product codes of two dimensions a part'),
    ],
)
def test_what_faiss_has_no_form_for(codec, why, model, tmp_path, capsys):
  index = encoded(model, tmp_path / 'index', codec)
  capsys.readouterr()
  assert cli.main([
      'convert', str(index.folder), '--to=faiss', f'--out={tmp_path / "out"}'
  ]) == 2
  shown = capsys.readouterr().err
  assert f'no index for the codec {codec}' in shown and why in shown
  assert not (tmp_path / 'out').exists()


def test_faiss_has_no_map_of_queries_alone():
  vectors = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
  codec = compression.spec('pca:4:queries').fit(vectors, vectors[:9])
  rows = Rows.of(codec.encode(vectors))
  with pytest.raises(UserError, match='4:queries: there queries go through'):
    faiss_forms.of_codec(codec, rows)
