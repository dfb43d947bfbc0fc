"""What the library itself has written, small and good, and what reads it."""

import json
import pathlib

from fuzz_files import PAIR, Reader, TEXTS, write
import numpy as np

from dualenc_jax import compression
from dualenc_jax.compression import codec_file, model_codec
from dualenc_jax.compression.product import Product
from dualenc_jax.data.cache import format as cache_format, prepare
from dualenc_jax.errors import UserError
from dualenc_jax.index import Index, Passage
from dualenc_jax.index.conversion import is_index
from dualenc_jax.index.corpus import Corpus
from dualenc_jax.inference import calibration
from dualenc_jax.io import json_file
from dualenc_jax.readers import Pairs
from dualenc_jax.report import curves
from dualenc_jax.results import folder as results
from dualenc_jax.text.tokenizer import SHIPPED, Tokenizer, Vocabulary


def result_folder(folder: pathlib.Path) -> Reader:
  """What `dualenc evaluate` writes, as `compare` and `report` read it."""
  facts = {
      'task': 't', 'label': 't-x', 'split': 'test', 'dataset': 'x',
      'model_dir': 'm', 'checkpoint_step': 3, 'queries': 2, 'k': 10,
  }
  ids, values = ['q1', 'q2'], {'MRR': np.array([0.5, 1]), 'P@1': np.eye(2)[0]}
  results.write_per_query(folder / results.PER_QUERY, ids, values)
  metrics = {'metrics': {'MRR': 0.75, 'P@1': 0.5}, **facts}
  paths = write(
      folder,
      {
          results.METRICS: json.dumps(metrics, indent=2),
          'metrics.jsonl': [
              {'step': i, 'group': 'train', 'loss': 1.5 * i} for i in range(3)
          ],
          calibration.FILE: json.dumps(
              {'slope': 1.5, 'intercept': 0.5, 'step': 3}
          ),
      },
  )

  def read():
    curves.read(paths[1])
    calibration.of_step(folder, 3)
    for model in results.read_all(folder):
      for result in model.results.values():
        result.per_query()

  return Reader([*paths, folder / results.PER_QUERY], read)


def _index(folder: pathlib.Path, codec: str | None) -> Reader:
  count, dim = 6, 8
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(count, dim)).astype(np.float32)
  stored = vectors
  if codec:
    of_vectors = compression.spec(codec).fit(vectors)
    stored = compression.Coded(of_vectors, of_vectors.encode(vectors))
  corpus = Corpus(
      stored,
      [f'd{i}' for i in range(count)],
      lambda i: Passage(f'd{i}', 'name', 'file:1', f'text {i}'),
      normalised=False,
  )
  corpus.write(folder / 'index', dim, 256, {'model_dir': 'x'})

  def read():
    is_index(folder / 'index')
    index = Index.open(folder / 'index')
    np.asarray(index.embeddings[:])
    list(index.ids)
    _ = index.ids[3]
    for row in range(len(index)):
      index.passage(row)
    if codec:
      index.embeddings.codec.queries(vectors)
      _ = index.embeddings.longest

  files = [p for p in sorted((folder / 'index').rglob('*')) if p.is_file()]
  return Reader(files, read)


def index(folder: pathlib.Path) -> Reader:
  return _index(folder, None)


def index_of_codes(folder: pathlib.Path) -> Reader:
  return _index(folder, 'pca:4+int8')


def codecs(folder: pathlib.Path) -> Reader:
  """Codec files, and the facts of a codec in a model."""
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(64, 8)).astype(np.float32)
  made = {
      name: compression.spec(name).fit(vectors)
      for name in ('fp16', 'int8', 'rotated:3', 'binary', 'pca:4+binary:8')
  }
  assign = rng.normal(size=(4, 16, 2)).astype(np.float32)
  made['jpq:4x4'] = compression.Codec('jpq:4x4', 8, (), Product(assign, assign))
  paths = []
  for number, codec in enumerate(made.values()):
    paths.append(folder / f'{number}.safetensors')
    codec_file.write(paths[-1], codec)
  trained = made['jpq:4x4']
  facts = folder / 'facts.json'
  facts.write_text(json.dumps(model_codec.facts(trained)))

  def read():
    found = [codec_file.read(path)[0] for path in paths]
    known = json_file.read(facts)
    found.append(model_codec.of(known, model_codec.arrays(trained)))
    for codec in found:
      codec.decode(codec.encode(vectors))
      codec.queries(vectors)
      _ = codec.quantiser.norm_bound

  return Reader([*paths, facts], read)


def token_cache(folder: pathlib.Path) -> Reader:
  (path,) = write(folder, {'a.jsonl': [PAIR, PAIR]})
  task = Pairs(train=str(path), title='title')
  cache = prepare(
      task, 'train', Tokenizer(Vocabulary('python_code_8k')), folder / 'caches'
  )

  def read():
    try:
      found = cache_format.Cache.open(cache.folder)
    except cache_format.DamagedCache as e:
      raise UserError(str(e)) from e
    for row in range(len(found)):
      found.query_texts.text(row)
      found.locations.text(row)
      found.negative_tokens.row(int(found.negative_offsets[row]))
    found.passage_tokens.padded(np.arange(len(found)), 16)

  files = [p for p in sorted(cache.folder.iterdir()) if p.stat().st_size]
  return Reader(files, read)


def vocabulary(folder: pathlib.Path) -> Reader:
  path = folder / 'v.model'
  path.write_bytes((SHIPPED / 'python_code_8k.model').read_bytes())

  def read():
    found = Vocabulary(str(path))
    ids = found.encode(list(TEXTS), 16, threads=1)
    found.decode(ids.row(0))

  return Reader([path], read)


READERS = {
    'results': result_folder,
    'index': index,
    'index of codes': index_of_codes,
    'codecs': codecs,
    'token cache': token_cache,
    'vocabulary': vocabulary,
}
