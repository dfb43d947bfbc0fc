"""What the library itself writes, small and good, and what reads it."""

from collections.abc import Callable
import json
import pathlib
import sys

from fuzz_files import files, PAIR, Reader, write
import numpy as np

from dualenc_jax import Retriever
from dualenc_jax.checkpoints.conversion import Source
from dualenc_jax.data.cache import Cache, DamagedCache, prepare
from dualenc_jax.data.readers import Pairs
from dualenc_jax.data.text.tokenizer import SHIPPED, Tokenizer, Vocabulary
from dualenc_jax.evaluation.metrics import Scores
from dualenc_jax.evaluation.report import curves
from dualenc_jax.evaluation.results import result_files
from dualenc_jax.retrieval import compression
from dualenc_jax.retrieval.compression import codec as codec_lib, model_codec
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.retrieval.encoding import artifact, teacher
from dualenc_jax.retrieval.encoding.artifact import digest_file
from dualenc_jax.retrieval.index import Index, Passage
from dualenc_jax.retrieval.index.build import Corpus
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import UserError

# Those of tests of hostile files.
_TESTS = pathlib.Path(__file__).parents[1] / 'tests'
sys.path += [str(_TESTS / 'helpers'), str(_TESTS / 'checkpoints')]

import small_folders  # noqa: E402
import tiny_towers  # noqa: E402


def _results(folder: pathlib.Path) -> Reader:
  """What `dualenc evaluate` writes, as `compare` and `report` read it."""
  facts = {
      'task': 't', 'label': 't-x', 'split': 'test', 'dataset': 'x',
      'model_dir': 'm', 'checkpoint_step': 3, 'queries': 2, 'k': 10,
  }
  values = {'MRR': np.array([0.5, 1]), 'P@1': np.eye(2)[0]}
  result_files.write_per_query(
      folder / result_files.PER_QUERY, Scores(['q1', 'q2'], values)
  )
  metrics = {'metrics': {'MRR': 0.75, 'P@1': 0.5}, **facts}
  fit = {'slope': 1.5, 'intercept': 0.5, 'step': 3}
  paths = write(
      folder,
      {
          result_files.METRICS: json.dumps(metrics, indent=2),
          'metrics.jsonl': [
              {'step': i, 'group': 'train', 'loss': 1.5 * i} for i in range(3)
          ],
          teacher.CALIBRATION: json.dumps(fit),
      },
  )

  def read():
    curves.read(paths[1])
    teacher.load_calibration(folder, 3)
    for model in result_files.read_all(folder):
      for result in model.results.values():
        result.per_query()

  return Reader([*paths, folder / result_files.PER_QUERY], read)


def _index(folder: pathlib.Path, codec: str | None = None) -> Reader:
  vectors = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
  stored = vectors
  if codec:
    of_vectors = compression.spec(codec).fit(vectors)
    stored = compression.Coded(of_vectors, of_vectors.encode(vectors))
  corpus = Corpus(
      stored,
      [f'd{i}' for i in range(6)],
      lambda i: Passage(f'd{i}', 'name', 'file:1', f'text {i}'),
      normalised=False,
  )
  corpus.write(folder / 'index', 8, 256, {'model_dir': 'x'})

  def read():
    index = Index.open(folder / 'index')
    np.asarray(index.embeddings[:])
    for row, _ in enumerate(list(index.ids)):
      index.passage(row)
    if codec:
      index.embeddings.codec.queries(vectors)
      _ = index.embeddings.longest

  return Reader(files(folder / 'index'), read)


def _index_of_codes(folder: pathlib.Path) -> Reader:
  return _index(folder, 'pca:4+int8')


def _codecs(folder: pathlib.Path) -> Reader:
  """Codec files, and the facts of a codec in a model."""
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(64, 8)).astype(np.float32)
  names = 'fp16', 'int8', 'pq:4x3', 'binary', 'pca:4+binary:8'
  assign = rng.normal(size=(4, 16, 2)).astype(np.float32)
  trained = compression.Codec('jpq:4x4', 8, (), Product(assign, assign))
  made = [*(compression.spec(name).fit(vectors) for name in names), trained]
  paths = []
  for number, codec in enumerate(made):
    paths.append(folder / f'{number}.safetensors')
    codec_lib.save(paths[-1], codec)
  facts = folder / 'facts.json'
  facts.write_text(json.dumps(model_codec.facts(trained)))

  def read():
    found = [codec_lib.load(path)[0] for path in paths]
    known = json_file.read(facts)
    found.append(model_codec.from_arrays(known, model_codec.arrays(trained)))
    for codec in found:
      codec.decode(codec.encode(vectors))
      codec.queries(vectors)
      _ = codec.quantiser.norm_bound

  return Reader([*paths, facts], read)


def _token_cache(folder: pathlib.Path) -> Reader:
  (path,) = write(folder, {'a.jsonl': [PAIR, PAIR]})
  task = Pairs(train=str(path), title='title')
  cache = prepare(
      task, 'train', Tokenizer(Vocabulary('python_code_8k')), folder / 'caches'
  )

  def read():
    try:
      found = Cache.open(cache.folder)
    except DamagedCache as e:
      raise UserError(str(e)) from e
    for row in range(len(found)):
      found.query_texts.text(row)
      found.locations.text(row)
      found.negative_tokens.row(int(found.negative_offsets[row]))
    found.passage_tokens.padded(np.arange(len(found)), 16)

  return Reader(files(cache.folder), read)


def _vocabulary(folder: pathlib.Path) -> Reader:
  path = folder / 'v.model'
  path.write_bytes((SHIPPED / 'python_code_8k.model').read_bytes())

  def read():
    found = Vocabulary(str(path))
    ids = found.encode(['a text', 'naïve 文; it is longer'], 16, threads=1)
    found.decode(ids.row(0))

  return Reader([path], read)


def _model(form: str) -> Callable[[pathlib.Path], Reader]:
  def reader(folder: pathlib.Path) -> Reader:
    small_folders.write(folder)
    model, vocabulary = folder / form, str(folder / 'spiece.model')

    def read():
      weights, _ = Source(str(model), vocabulary=vocabulary).read()
      for tensor in weights.tensors.values():
        tensor.read()

    return Reader(files(model), read)

  return reader


def _saved_retriever(folder: pathlib.Path) -> Reader:
  """A saved retriever; what is changed has the digest that it should have."""
  out = folder / 'saved'
  artifact.write(tiny_towers.loaded(), out, ('cpu',))
  header = out / 'artifact.json'
  known = {p: p.read_bytes() for p in files(out) if p != header}
  good = header.read_bytes()

  def read():
    changed = [p for p, content in known.items() if p.read_bytes() != content]
    if changed:
      facts = json.loads(good)
      for path in changed:
        facts['files'][str(path.relative_to(out))] = digest_file(path)
      header.write_text(json.dumps(facts))
    try:
      Retriever.from_dir(out)
    finally:
      if changed:
        header.write_bytes(good)

  return Reader([header, *known], read)


READERS = {
    'results': _results,
    'index': _index,
    'index of codes': _index_of_codes,
    'codecs': _codecs,
    'token cache': _token_cache,
    'vocabulary': _vocabulary,
    **{f'model, {form}': _model(form) for form in small_folders.FORMS},
    'saved retriever': _saved_retriever,
}
