"""`dualenc convert` of an index, of codes too: for faiss, and as Parquet."""

import json
import os
import pathlib
import re

import faiss
import faiss_levels
import numpy as np
from pyarrow import parquet
import pytest
from safetensors.numpy import load_file
import tiny_evaluation

from dualenc_jax import Retriever
from dualenc_jax.cli import encode, main as cli
from dualenc_jax.retrieval.index import Index

faiss_levels.keep_queries()
DOCS = pathlib.Path(__file__).parents[2] / 'docs' / 'vector_databases.md'
# Whose code in DOCS needs a client and a server.
SERVERS = 'qdrant_client', 'elasticsearch', 'pymilvus', 'psycopg', 'usearch'
ROWS, K = 50, 10
QUERIES = ['read the lines of a file', 'a date', 'sort by key']


def corpus_line(i: int) -> str:
  row = {'_id': f'{7 * i - 3}', 'text': f'def f_{i}(x): return x + {i * i}'}
  if i % 2:
    row['title'] = f'f_{i}'
  return json.dumps(row) + '\n'


@pytest.fixture(scope='module')
def model(tmp_path_factory) -> pathlib.Path:
  """A model_dir after two steps, with indexes: index and half."""
  folder = tmp_path_factory.mktemp('indexes') / 'model'
  tiny_evaluation.copy_model(folder)
  corpus = folder.parent / 'corpus.jsonl'
  corpus.write_text(''.join(map(corpus_line, range(ROWS))))
  for name, *flags in (
      ('index', '--shard_size=16'),
      ('half', '--codec=fp16'),
  ):
    encoded(folder, folder / name, *flags)
  return folder


def encoded(model, folder, *flags) -> Index:
  where = f'--model_dir={model}', f'--index_dir={folder}'
  encode.main([*where, f'--corpus={model.parent / "corpus.jsonl"}', *flags])
  return Index.open(folder)


def run(source, form, out, *flags) -> pathlib.Path:
  """As a user does."""
  argv = ['convert', str(source), f'--to={form}', f'--output_dir={out}', *flags]
  assert cli.main(argv) == 0
  return out


def error_of(capsys, *argv) -> str:
  """The message of an error."""
  assert cli.main(['convert', *map(str, argv)]) == 2
  return capsys.readouterr().err


@pytest.mark.parametrize('name', ['index', 'half'])
def test_faiss_finds_what_the_retriever_finds(model, tmp_path, name, capsys):
  out = run(model / name, 'faiss', tmp_path / 'out')
  printed = capsys.readouterr().out
  index = Index.open(model / name)
  assert f'50 passages, {index.header.dtype} [{index.header.dim}]' in printed
  assert 'about.json, ids.txt, index.faiss' in printed
  found = faiss.read_index(str(out / 'index.faiss'))
  retriever = Retriever.from_dir(model, index=model / name)
  queries = np.asarray(retriever.encode_queries(QUERIES))
  scores, hits = found.search(queries, K)
  ids = (out / 'ids.txt').read_text().split('\n')[:-1]
  assert ids == list(index.ids)
  ours, our_ids = retriever.search(QUERIES, K)
  assert [[ids[hit] for hit in row] for row in hits] == [
      list(row) for row in our_ids
  ]
  np.testing.assert_allclose(scores, ours, rtol=0, atol=1e-5)
  about = json.loads((out / 'about.json').read_text())
  assert about['faiss'] == 'read_index'
  assert about['metric'] == 'inner product' and about['normalised']
  assert about['model']['tower_sha256'] == (
      index.header.provenance['tower_sha256']
  )
  assert str(model) not in json.dumps(about)


@pytest.mark.parametrize('name', ['index', 'half'])
def test_parquet_has_a_row_a_passage(model, tmp_path, name, monkeypatch):
  """In several row groups, the last of which is shorter."""
  monkeypatch.setattr('dualenc_jax.retrieval.index.conversion.BLOCK', 20)
  out = run(model / name, 'vectors', tmp_path / 'out')
  assert os.listdir(out) == ['vectors.parquet']
  file = parquet.ParquetFile(out / 'vectors.parquet')
  groups = [file.metadata.row_group(i).num_rows for i in range(3)]
  assert groups == [20, 20, 10] and file.num_row_groups == 3
  schema = file.schema_arrow
  assert schema.names == ['id', 'name', 'location', 'text', 'vector']
  about = json.loads(schema.metadata[b'dualenc'])
  assert str(schema.field('vector').type) == (
      f'fixed_size_list<element: float>[{about["dim"]}]'
  )
  index, table = Index.open(model / name), file.read()
  assert about['dtype'] == about['codec'] == index.header.dtype
  assert about['tower'] == 'passage'
  assert table['id'].to_pylist() == list(index.ids)
  passages = [index.passage(row) for row in range(ROWS)]
  assert table['text'].to_pylist() == [p.text for p in passages]
  for column in ('name', 'location'):
    values = [getattr(p, column) or None for p in passages]
    assert table[column].to_pylist() == values
  assert table['name'].null_count == ROWS // 2
  vectors = np.stack(table['vector'].to_numpy(zero_copy_only=False))
  np.testing.assert_array_equal(vectors, index.embeddings[:].astype(np.float32))


@pytest.mark.parametrize(
    'source, flags, message',
    [
        ('index', ['--to=hf'], 'is an index, but --to=hf'),
        ('index', ['--to=faiss', '--tower=query'], '--tower needs a model'),
        ('.', ['--to=faiss'], 'is a model, but --to=faiss takes an index'),
    ],
)
def test_what_does_not_go_together(
    model, tmp_path, capsys, source, flags, message
):
  output = f'--output_dir={tmp_path / "out"}'
  found = error_of(capsys, model / source, output, *flags)
  assert message in found and found.count('\n') == 1
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    'codec',
    [
        'bf16', 'int8:uniform', 'opq:4x4', 'sign',
        'truncate:8+int8', 'pca:8+pq:4x3',
    ],
)
def test_faiss_finds_the_codes_that_the_retriever_finds(codec, model, tmp_path):
  index = encoded(model, tmp_path / 'index', f'--codec={codec}')
  out = run(index.folder, 'faiss', tmp_path / 'out')
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
  index = encoded(model, tmp_path / 'index', f'--codec={codec}')
  out = run(index.folder, 'faiss', tmp_path / 'out')
  about = json.loads((out / 'about.json').read_text())
  assert (about['faiss'], about['bit_order']) == ('read_index_binary', 'big')
  found = faiss.read_index_binary(str(out / 'index.faiss'))
  queries = Retriever.from_dir(model).encode_queries(QUERIES)
  distances, _ = found.search(np.packbits(queries >= 0, axis=1), len(index))
  signs = np.where(queries >= 0, 1, -1) @ index.embeddings[:].T
  expected = np.sort((index.header.dim - signs) / 2, axis=1)
  np.testing.assert_array_equal(distances, expected)


def test_parquet_has_codes_and_what_decodes_them(model, tmp_path):
  index = encoded(model, tmp_path / 'index', '--codec=pq:4x3')
  out = run(index.folder, 'vectors', tmp_path / 'out')
  table = parquet.read_table(out / 'vectors.parquet')
  codes = [np.frombuffer(b, np.uint8) for b in table['codes'].to_pylist()]
  np.testing.assert_array_equal(np.stack(codes), index.embeddings.codes[:])
  about = json.loads(table.schema.metadata[b'dualenc'])
  assert (about['codec'], about['dtype']) == ('pq:4x3', 'uint8')
  assert (about['bits'], about['bit_order']) == (3, 'little')
  centroids = load_file(out / 'codec.safetensors')['0/assign']
  first = int.from_bytes(codes[0].tobytes(), 'little')
  numbers = [first >> (3 * m) & 7 for m in range(4)]
  vector = np.concatenate([centroids[m, j] for m, j in enumerate(numbers)])
  np.testing.assert_array_equal(vector, index.embeddings[0])


def test_parquet_says_what_its_vectors_are(model, tmp_path):
  index = encoded(model, tmp_path / 'index', '--codec=pca:8')
  out = run(index.folder, 'vectors', tmp_path / 'out')
  table = parquet.read_table(out / 'vectors.parquet')
  about = json.loads(table.schema.metadata[b'dualenc'])
  assert (about['dim'], about['query_dim']) == (8, index.header.dim)
  assert not about['normalised']
  matrix = load_file(out / 'codec.safetensors')['0/matrix']
  assert matrix.shape == (about['dim'], about['query_dim'])
  vectors = np.array(table['vector'].to_pylist())
  assert vectors.shape == (len(index), about['dim'])


def test_what_faiss_has_no_form_for(model, tmp_path, capsys):
  out = tmp_path / 'out'
  index = encoded(model, tmp_path / 'index', '--codec=truncate:8+binary')
  shown = error_of(capsys, index.folder, '--to=faiss', f'--output_dir={out}')
  assert 'no map of vectors in front' in shown
  assert not out.exists()


def test_the_code_of_the_docs(model, tmp_path, monkeypatch):
  """Runs what needs no database; the rest is compiled."""
  monkeypatch.chdir(tmp_path)
  os.symlink(model, 'my_model')
  run('my_model/index', 'faiss', 'my_faiss')
  run('my_model/index', 'vectors', 'my_vectors')
  text = DOCS.read_text()
  names = {}
  for code in re.findall(r'```python\n(.*?)```', text, re.DOTALL):
    program = compile(code, DOCS.name, 'exec')
    if not re.search(rf'(from|import) ({"|".join(SERVERS)})\b', code):
      exec(program, names)
  retriever = Retriever.from_dir(model, index=model / 'index')
  _, ids = retriever.search(['a question', 'another'], 10)
  assert names['hits'] == [list(row) for row in ids]

  index, found = Index.open(model / 'index'), list(names['batches'](7))
  assert [len(texts) for texts, _ in found] == [7] * 7 + [1]
  passages = [passage for texts, _ in found for passage in texts]
  assert [p['id'] for p in passages] == list(index.ids)
  vectors = np.concatenate([vectors for _, vectors in found])
  np.testing.assert_array_equal(vectors, index.embeddings[:])

  bits = names['bits'](vectors)
  signs = [[f'{byte:08b}' for byte in row] for row in bits]
  dim = index.header.dim
  for row, vector in zip(signs, vectors):
    assert ''.join(row)[:dim] == ''.join('01'[int(x >= 0)] for x in vector)
  assert names['signed'](bits).tobytes() == bits.tobytes()
  largest = np.abs(vectors).max()
  codes = names['int8'](vectors, largest)
  assert codes.dtype == np.int8 and np.abs(codes.astype(int)).max() == 127
  step = largest / 127
  np.testing.assert_allclose(codes * step, vectors, rtol=0, atol=0.5001 * step)

  feed = [json.loads(line) for line in open('feed.jsonl')]
  assert feed[3]['put'] == f'id:ns:passage::{index.ids[3]}'
  np.testing.assert_array_equal(
      np.float32(feed[3]['fields']['embedding']['values']), vectors[3]
  )
