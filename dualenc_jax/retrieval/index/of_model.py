"""Indexes of the texts of a corpus by a model: made, continued, opened."""

import logging
import os
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.data.cache import Cache
from dualenc_jax.data.corpus import Corpus
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval.compression import Codec, Coded, FLOATS, Spec, spec
from dualenc_jax.retrieval.compression.specs import SAMPLE
from dualenc_jax.retrieval.encoding.towers import Loaded
from dualenc_jax.retrieval.index import encoding, header as header_lib
from dualenc_jax.retrieval.index.binding import codec_of, encoded_by, open_index
from dualenc_jax.retrieval.index.build import IndexBuild
from dualenc_jax.retrieval.index.encoding import Source
from dualenc_jax.retrieval.index.header import Header
from dualenc_jax.retrieval.index.index import Index
from dualenc_jax.retrieval.index.shard import Places
from dualenc_jax.retrieval.search.search_programs import empty_rows
from dualenc_jax.utils import machine
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.progress import Progress

# The rest is for the model, the queries and what search needs.
_SHARE_OF_MEMORY = 0.6
# Which model encoded it, for people.
_FOR_PEOPLE = ('run_id', 'checkpoint_step', 'model_dir')
_LOG = logging.getLogger(__name__)


def own_folder(model_dir: str | os.PathLike[str]) -> pathlib.Path:
  """The folder of a model_dir for the index of its task's passages."""
  return pathlib.Path(model_dir) / 'index'


def encode(
    model: Loaded,
    source: Source,
    folder: str | os.PathLike[str],
    codec: str | None = None,
    shard_size: int | None = None,
    replace: bool = False,
    host: Host = Host(),
) -> IndexBuild:
  """Makes this host's shards of an index, those that do not exist yet.

  Args:
    model: the model.
    source: the texts.
    folder: the folder of the index.
    codec: name of the codec (`retrieval.compression.specs`); None for the
      model's own, of passages, if it has one, else 'fp32'.
    shard_size: rows of a shard, `header.SHARD_SIZE` by default.
    replace: as in `IndexBuild`.
    host: this process's part of the work.

  Returns:
    The build; `finish` completes it.
  """
  provenance, corpus = model.provenance, source.cache.header
  own = model.codec if source.tower == 'passage' else None
  if own is not None and codec in (None, own.name):
    chosen = Spec.from_codec(own)
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
      shard_size=shard_size or header_lib.SHARD_SIZE,
      codec=None if chosen.floats else chosen.name,
      width=None if chosen.floats else width,
      provenance={
          **encoded_by(model, source.tower),
          **({} if own is None else codec_of(own)),
          **{name: provenance[name] for name in _FOR_PEOPLE},
          'compute_dtype': provenance['dtype'],
          **{k: corpus[k] for k in ('task', 'options', 'split', 'source')},
      },
  )
  build = IndexBuild(
      folder, header, replace, lambda: own or _trained(chosen, model, source)
  )
  encoding.encode(
      build, source, lambda rows: source.embedded(model, rows), host
  )
  return build


def _trained(codec: Spec, model: Loaded, source: Source) -> Codec:
  """A codec that is trained on a sample of what it will encode."""
  texts = np.arange(len(source))
  if len(texts) > SAMPLE:
    drawn = np.random.default_rng(0).choice(len(texts), SAMPLE, replace=False)
    texts = np.sort(drawn)
  vectors = empty_rows(len(texts), model.dim)
  with Progress(f'Encoding for {codec.name}', len(texts), 'texts') as progress:
    found = source.embedded(model, source.rows[texts])
    source.fill(vectors, found, texts, progress)
  return codec.fit(vectors)


def open_or_encode(
    model: Loaded, source: Source, folder: str | os.PathLike[str]
) -> Index:
  """Opens the index of a source; makes it, or its missing shards, first.

  An existing index keeps its codec and its shard size.
  """
  places = Places(folder)
  found = (places.readable(), places.partial)
  layout = next(
      (
          (_codec_name(header), header.shard_size)
          for path in found
          if (path / header_lib.FILE).exists()
          for header in [Header.read(path)]
      ),
      (),
  )
  encode(model, source, folder, *layout).finish()
  return Index.open(folder)


def corpus_embeddings(
    model: Loaded, corpus: Corpus, index_dir: pathlib.Path | None = None
) -> Any:
  """Embeds a corpus, to the same bits in memory and on disk.

  In `index_dir` an index is made unless it exists; without it the embeddings
  are in memory.

  Returns:
    An array or a store of rows [N, D], in the order of the corpus, or codes by
    the model's codec if it has one.

  Raises:
    UserError: they do not fit the memory or are not finite, or the index is of
      something else.
  """
  source = Source(corpus.cache, corpus.rows, 'passage')
  if index_dir is not None:
    return open_or_encode(model, source, index_dir).embeddings
  size, codec, dim = len(corpus), model.codec, model.dim
  width = 4 * dim if codec is None else codec.bytes_per_passage
  needed, there = size * width, machine.machine_memory()
  if needed > _SHARE_OF_MEMORY * there:
    raise UserError(
        f'The embeddings of {size:,} passages need {needed / 2**30:.1f} GiB,'
        f' and this machine has {there / 2**30:.1f} GiB. Keep them on disk with'
        ' --index_dir.'
    )
  if codec is None:
    out, kept = empty_rows(size, dim), lambda vectors: vectors
  else:
    out = np.empty((size, codec.quantiser.width), codec.code_dtype)
    kept = codec.encode
  with Progress('Encoding', size, 'passages') as progress:
    # By the shards of an index: rounding may depend on what is encoded at once.
    for start in range(0, size, header_lib.SHARD_SIZE):
      rows = corpus.rows[start : start + header_lib.SHARD_SIZE]
      texts = range(start, start + len(rows))
      own, found = out[start : texts.stop], source.embedded(model, rows)
      source.fill(own, found, texts, progress, kept)
  return out if codec is None else Coded(codec, out)


def same_codec(
    model: Loaded, folder: pathlib.Path, codec: str | None
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


def _codec_name(header: Header) -> str:
  return header.codec or FLOATS[header.dtype]


def open_own(
    model: Loaded, cache: Cache, home: str | os.PathLike[str]
) -> Index:
  """Opens the index of a run's own passages; makes it again where it is due.

  It follows the cache of these passages, and lies in `home`: the model_dir, or
  the folder of one of its dims.
  """
  folder = own_folder(home)
  expect = {name: cache.header[name] for name in ('task', 'split', 'source')}
  try:
    return open_index(model, folder, expect)
  except UserError as e:
    if folder.exists():
      _LOG.info('The index is made again: %s', e)
  _LOG.info('Encoding the passages of split %s, once.', cache.header['split'])
  codec, source = same_codec(model, folder, None), Source.passages(cache)
  encode(model, source, folder, codec, replace=True).finish()
  return Index.open(folder)
