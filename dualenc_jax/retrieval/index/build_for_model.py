"""Indexes of a model's embeddings: made, continued, opened."""

from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
import dataclasses
import logging
import os
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.data import corpus as corpus_lib, Dataset, Mixture
from dualenc_jax.data.cache import Cache
from dualenc_jax.data.corpus import Corpus
from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.parallel import hosts
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval.compression import Codec, Coded, FLOATS, Spec, spec
from dualenc_jax.retrieval.compression.specs import SAMPLE
from dualenc_jax.retrieval.encoding.towers import LoadedModel
from dualenc_jax.retrieval.index import header as header_lib
from dualenc_jax.retrieval.index.build import IndexBuild
from dualenc_jax.retrieval.index.header import Header
from dualenc_jax.retrieval.index.index import (
  agree,
  codec_provenance,
  Index,
  open_index,
  tower_provenance,
)
from dualenc_jax.retrieval.index.shard import IndexFolders, Passage
from dualenc_jax.retrieval.search.search_programs import allocate_rows
from dualenc_jax.utils import finite, machine
from dualenc_jax.utils.errors import SourceUnavailable, UserError
from dualenc_jax.utils.progress import Progress

# The share of memory for embeddings; the rest is for the model and the search.
_SHARE_OF_MEMORY = 0.6
# Fields of the provenance that tell people which model encoded it.
_MODEL_FIELDS = ('run_id', 'checkpoint_step', 'model_dir')
_LOG = logging.getLogger(__name__)

# Positions among some texts, int64 [b], with their embeddings, float32 [b, D].
Batches = Iterable[tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class TextSource:
  """Texts of one side of a token cache, in the order of an index's rows.

  Attributes:
    rows: int64 [N], the row of the cache of each text.
    tower: 'passage' or 'query': the side, and the tower that encodes it.
  """

  cache: Cache
  rows: np.ndarray
  tower: str

  @classmethod
  def passages(cls, cache: Cache) -> 'TextSource':
    """The distinct passages of a split, or UserError if an id has two."""
    return cls(cache, corpus_lib.Corpus.from_cache(cache).rows, 'passage')

  @classmethod
  def queries(cls, cache: Cache) -> 'TextSource':
    """The queries of a split, each once, or UserError if an id has two."""
    rows = np.flatnonzero(cache.query_texts.lengths)
    if not len(rows):
      raise UserError(
          f'{corpus_lib.describe(cache)} has only passages; expected a split'
          ' with queries for the query tower.'
      )
    return cls(cache, corpus_lib.queries_by_id(cache, rows)[0], 'query')

  @property
  def tokens(self) -> Ragged:
    """Tokens of the cache; those of text i have row rows[i]."""
    return self._column('tokens')

  @property
  def unit(self) -> str:
    """'passages' or 'queries'."""
    return 'queries' if self.tower == 'query' else 'passages'

  def embed(self, model: LoadedModel, rows: np.ndarray) -> Batches:
    """Encodes rows of the cache [n], every position once, in any order."""
    return model.embedder.batches(
        f'encode_{self.tower}', model.params, self.tokens, rows
    )

  def fill(
      self, out: np.ndarray, batches: Batches,
      texts: Sequence[int] | np.ndarray, progress: Progress,
      encode: Callable[[np.ndarray], Any] = lambda x: x,
  ) -> None:
    """Puts embeddings of `texts`, or what `encode` makes, into `out` [n, W].

    Raises UserError for one that is not finite, and names its text.
    """
    for positions, vectors in batches:

      def name(i: int) -> str:
        text = texts[positions[i]]
        return f'row {text} ({self.tower} {self.passage(text).id!r})'

      finite.check_rows('embeddings', vectors, name)
      out[positions] = encode(vectors)
      progress(len(positions))

  def __len__(self) -> int:
    return len(self.rows)

  def passage(self, index: int) -> Passage:
    """A text as the index keeps it."""
    row = self.rows[index]
    # The name of a row is that of its passage.
    return Passage(
        self._column('ids').text(row),
        self.cache.names.text(row) if self.tower == 'passage' else '',
        self.cache.locations.text(row),
        self._column('texts').text(row),
    )

  def _column(self, name: str) -> Ragged:
    return getattr(self.cache, f'{self.tower}_{name}')


def default_split(task: Dataset | Mixture) -> str:
  """The split whose passages are everything to search, or UserError."""
  splits = task.splits()
  if not splits:
    raise SourceUnavailable(
        f'Task {task.label!r} has no splits, as its files do not exist. Give'
        ' them as in training, such as --gin.TRAIN_FILE, or an index,'
        ' --index_dir.'
    )
  return next((s for s in ('all', 'corpus') if s in splits), splits[0])


def default_index_dir(model_dir: str | os.PathLike[str]) -> pathlib.Path:
  """The folder of a model_dir for the index of its task's passages."""
  return pathlib.Path(model_dir) / 'index'


def encode(
    model: LoadedModel,
    source: TextSource,
    folder: str | os.PathLike[str],
    codec: str | None = None,
    shard_size: int | None = None,
    replace: bool = False,
    host: Host = Host(),
) -> IndexBuild:
  """Makes this host's shards of an index; `finish` of the build completes it.

  Args:
    model: the model.
    source: the texts.
    folder: the folder of the index.
    codec: name of the codec (`retrieval.compression.specs`); None for the
      model's own, of passages, if it has one, else 'fp32'.
    shard_size: rows of a shard, `header.SHARD_SIZE` by default.
    replace: as in `IndexBuild`.
    host: this process's part of the work.
  """
  provenance, corpus = model.provenance, source.cache.header
  own = model.codec if source.tower == 'passage' else None
  if own is not None and codec in (None, own.name):
    chosen = Spec(own.name, (), own)
  else:
    own, chosen = None, spec(codec or 'fp32')
  chosen.check(model.dim, len(source))
  dtype, width = chosen.shape(model.dim)
  header = Header(
      len(source),
      model.dim,
      source.tower,
      getattr(model.tokenizer, f'{source.tower}_length'),
      dtype,
      model.embedder.normalised,
      shard_size=shard_size or header_lib.SHARD_SIZE,
      codec=None if chosen.floats else chosen.name,
      width=None if chosen.floats else width,
      provenance={
          **tower_provenance(model, source.tower),
          **({} if own is None else codec_provenance(own)),
          **{n: provenance[n] for n in _MODEL_FIELDS if n in provenance},
          'compute_dtype': provenance['dtype'],
          **{k: corpus[k] for k in ('task', 'options', 'split', 'source')},
      },
  )
  build = IndexBuild(
      folder, header, replace, lambda: own or _train(chosen, model, source)
  )
  encode_shards(build, source, lambda rows: source.embed(model, rows), host)
  return build


def encode_shards(
    build: IndexBuild, source: TextSource,
    embed: Callable[[np.ndarray], Batches], host: Host = Host(),
) -> None:
  """Makes this host's missing shards of an index.

  Shards are dealt to the hosts by their numbers. One is written by a thread
  while the next is encoded, by `embed`, which takes rows of the source's cache.
  """
  header = build.header
  missing = build.missing()
  if missing and len(missing) < header.shards:
    existing = header.shards - len(missing)
    _LOG.info('%d of %d shards exist.', existing, header.shards)
  build.start()
  shards = [shard for shard in missing if shard % host.count == host.index]
  total = sum(len(header.shard_rows(shard)) for shard in shards)
  with (
      Progress('Encoding', total, source.unit) as progress,
      futures.ThreadPoolExecutor(1) as writer,
  ):
    pending: futures.Future | None = None
    for shard in shards:
      rows = header.shard_rows(shard)
      out = np.empty((len(rows), header.columns), header.dtype)
      batches = embed(source.rows[rows.start : rows.stop])
      source.fill(out, batches, rows, progress, build.codec.encode)
      if pending is not None:
        pending.result()
      passages = map(source.passage, rows)
      pending = writer.submit(build.write, shard, out, passages)
    if pending is not None:
      pending.result()


def finish(build: IndexBuild) -> None:
  """Completes an index that all hosts have made; errors of `wait_for_shards`.
  """
  hosts.wait_for_shards(build.finish, build.folder)


def _train(codec: Spec, model: LoadedModel, source: TextSource) -> Codec:
  """Trains a codec on a sample of what it will encode."""
  texts = np.arange(len(source))
  if len(texts) > SAMPLE:
    drawn = np.random.default_rng(0).choice(len(texts), SAMPLE, replace=False)
    texts = np.sort(drawn)
  vectors = allocate_rows(len(texts), model.dim)
  with Progress(f'Encoding for {codec.name}', len(texts), 'texts') as progress:
    batches = source.embed(model, source.rows[texts])
    source.fill(vectors, batches, texts, progress)
  return codec.fit(vectors)


def corpus_embeddings(
    model: LoadedModel, corpus: Corpus, index_dir: pathlib.Path | None = None,
    host: Host = Host(),
) -> Any:
  """Embeds a corpus, to the same bits in memory and on disk.

  In `index_dir` an index is made unless it exists, with its codec and shard
  size if it is begun, by all hosts; without it the embeddings are in memory.
  `host` is one of those that search them together, all of which call this.

  Returns:
    An array or a store of rows [N, D], in the order of the corpus, or codes by
    the model's codec if it has one.
  """
  source = TextSource(corpus.cache, corpus.rows, 'passage')
  if index_dir is not None:
    layout: dict[str, Any] = {}
    folders = IndexFolders(index_dir)
    for path in (folders.partial, folders.readable()):
      if (path / header_lib.FILE).exists():
        header = Header.read(path)
        layout = {
            'codec': _codec_name(header), 'shard_size': header.shard_size
        }
    finish(encode(model, source, index_dir, host=host, **layout))
    index = Index.open(index_dir, host=host)
    agree(index)
    return index.embeddings
  size, codec, dim = len(corpus), model.codec, model.dim
  width = 4 * dim if codec is None else codec.bytes_per_passage
  needed, memory = size * width, machine.machine_memory()
  if needed > _SHARE_OF_MEMORY * memory:
    raise UserError(
        f'The embeddings of {size:,} passages need {needed / 2**30:.1f} GiB,'
        f' and this machine has {memory / 2**30:.1f} GiB. Keep them on disk'
        ' with --index_dir.'
    )
  if codec is None:
    out, to_rows = allocate_rows(size, dim), lambda vectors: vectors
  else:
    out = np.empty((size, codec.quantiser.width), codec.code_dtype)
    to_rows = codec.encode
  with Progress('Encoding', size, 'passages') as progress:
    # By the shards of an index: rounding may depend on what is encoded at once.
    for start in range(0, size, header_lib.SHARD_SIZE):
      rows = corpus.rows[start : start + header_lib.SHARD_SIZE]
      texts = range(start, start + len(rows))
      batches = source.embed(model, rows)
      source.fill(out[start : texts.stop], batches, texts, progress, to_rows)
  return out if codec is None else Coded(codec, out)


def keep_codec(
    model: LoadedModel, folder: pathlib.Path, codec: str | None
) -> str | None:
  """The name of the codec for a model's own index in `folder`, made again.

  The index follows the model, but its codec is the user's choice: without
  `codec` it stays, and another one raises UserError.
  """
  if model.codec is not None or not (folder / header_lib.FILE).exists():
    return codec
  there = _codec_name(Header.read(folder))
  if codec is not None and spec(codec).name != there:
    raise UserError(
        f'{folder} is an index of --codec={there}, not {codec}. Give another'
        ' --index_dir, or --overwrite.'
    )
  return there


def open_task_index(
    model: LoadedModel, cache: Cache, home: str | os.PathLike[str],
    host: Host = Host(),
) -> Index:
  """Opens the index of a run's own passages; makes it again where it is due.

  It follows the cache of these passages, and lies in `home`: the model_dir, or
  the folder of one of its dims.
  """
  folder = default_index_dir(home)
  expect = {name: cache.header[name] for name in ('task', 'split', 'source')}
  try:
    index = open_index(model, folder, expect, host)
  except UserError as e:
    index = None
    if folder.exists():
      _LOG.info('The index is made again, as this one cannot be used: %s', e)
  agree(index)
  if index is not None:
    return index
  _LOG.info('Encoding the passages of split %s, once.', cache.header['split'])
  codec, source = keep_codec(model, folder, None), TextSource.passages(cache)
  finish(encode(model, source, folder, codec, replace=True, host=host))
  return Index.open(folder, host=host)


def _codec_name(header: Header) -> str:
  return header.codec or FLOATS[header.dtype]
