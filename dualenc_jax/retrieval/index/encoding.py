"""Encoding of an index's texts into its shards, and the time it will take."""

from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
import dataclasses
import logging
import shutil
from typing import Any

import numpy as np

from dualenc_jax.data import corpus as corpus_lib, Dataset, Mixture
from dualenc_jax.data.cache import Cache
from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval.encoding.towers import Loaded
from dualenc_jax.retrieval.index.build import IndexBuild
from dualenc_jax.retrieval.index.shard import Passage
from dualenc_jax.utils import finite
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.files import gigabytes
from dualenc_jax.utils.progress import Progress

# Texts by which the disk that all of them will take is estimated.
_SAMPLE = 256
# Shards in memory: one is encoded while the one before is written.
_IN_MEMORY = 2

_LOG = logging.getLogger(__name__)

# Positions among some texts, int64 [b], with their embeddings, float32 [b, D].
Found = Iterable[tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Source:
  """Texts of one side of a token cache, in the order of an index's rows.

  Attributes:
    rows: int64 [N], the row of the cache of each text.
    tower: 'passage' or 'query': the side, and the tower that encodes it.
  """

  cache: Cache
  rows: np.ndarray
  tower: str

  def __post_init__(self):
    ids = self._column('ids')
    empty = np.flatnonzero(ids.lengths[self.rows] == 0)
    if len(empty):
      raise UserError(
          f'{corpus_lib.describe(self.cache)} has an empty {self.tower}_id in'
          f' row {empty[0]}. Expected an id, or a text to make one from.'
      )
    # An index keeps an id a line.
    ends = np.flatnonzero(np.isin(ids.values, [*b'\n\r']))
    broken = np.searchsorted(ids.offsets, ends, 'right') - 1
    broken = broken[np.isin(broken, self.rows)]
    if len(broken):
      raise UserError(
          f'{corpus_lib.describe(self.cache)} has a {self.tower}_id'
          f' {ids.text(broken[0])!r} of several lines. Expected ids of one'
          ' line.'
      )

  @classmethod
  def passages(cls, cache: Cache) -> 'Source':
    """The distinct passages of a split, or UserError if an id has two."""
    return cls(cache, corpus_lib.Corpus.from_cache(cache).rows, 'passage')

  @classmethod
  def queries(cls, cache: Cache) -> 'Source':
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

  def embedded(self, model: Loaded, rows: np.ndarray) -> Found:
    """Encodes rows of the cache [n], every position once, in any order."""
    return model.embedder.batches(
        f'encode_{self.tower}', model.params, self.tokens, rows
    )

  def fill(
      self, out: np.ndarray, found: Found, texts: Sequence[int] | np.ndarray,
      progress: Progress, encode: Callable[[np.ndarray], Any] = lambda x: x,
  ) -> None:
    """Puts embeddings of some texts, or what `encode` makes, into `out` [n, W].

    `found` has the embeddings of the texts with these numbers [n]. Raises
    UserError for one that is not finite, and names its text.
    """
    for positions, vectors in found:

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
    raise UserError(
        f'Task {task.label!r} has no splits, as its files do not exist. Give'
        ' their folder, as with --gin.DATA_ROOT, or a --corpus.'
    )
  return next((s for s in ('all', 'corpus') if s in splits), splits[0])


def encode(
    build: IndexBuild, source: Source, embed: Callable[[np.ndarray], Found],
    host: Host = Host(),
) -> None:
  """Makes this host's missing shards of an index.

  Shards are dealt to the hosts by their numbers. One is written by a thread
  while the next is encoded.

  Args:
    build: the index.
    source: the texts.
    embed: as `Source.embedded`, of rows of the source's cache.
    host: this process's part of the work.

  Raises:
    UserError: an embedding is not finite, or the disk has too little room or
      cannot be written. Earlier shards are whole.
  """
  header = build.header
  missing = build.missing()
  if missing:
    if there := header.shards - len(missing):
      _LOG.info('%d of %d shards exist.', there, header.shards)
    _LOG.info('%s', check_room(build, missing, source))
  build.start()
  shards = [shard for shard in missing if shard % host.count == host.index]
  total = sum(len(header.rows_of(shard)) for shard in shards)
  clipped = 0

  def kept(vectors: np.ndarray) -> np.ndarray:
    nonlocal clipped
    clipped += build.codec.count_clipped(vectors)
    return build.codec.encode(vectors)

  with (
      Progress('Encoding', total, source.unit) as progress,
      futures.ThreadPoolExecutor(1) as writer,
  ):
    pending: futures.Future | None = None
    for shard in shards:
      rows = header.rows_of(shard)
      out = np.empty((len(rows), header.columns), header.dtype)
      found = embed(source.rows[rows.start : rows.stop])
      source.fill(out, found, rows, progress, kept)
      if pending is not None:
        pending.result()
      passages = map(source.passage, rows)
      pending = writer.submit(build.write, shard, out, passages)
    if pending is not None:
      pending.result()
  if clipped:
    _LOG.warning(
        '%s numbers lie beyond the ranges of the codec %s, which are those of'
        ' its training sample, and are clipped. If they are many, encode with'
        ' --codec=fp16.',
        f'{clipped:,}',
        header.codec,
    )


def check_room(build: IndexBuild, missing: list[int], source: Source) -> str:
  """A sentence on the disk and memory that missing shards of all hosts take.

  Raises:
    UserError: the disk has too little room.
  """
  header = build.header
  each = header.columns * np.dtype(header.dtype).itemsize
  rows = sum(len(header.rows_of(shard)) for shard in missing)
  needed = round(rows * (each + _text_size(source)))
  folder = build.folder
  while not folder.exists():
    folder = folder.parent
  free = shutil.disk_usage(folder).free
  if needed > free:
    raise UserError(
        f'{build.folder} does not fit the disk: {rows:,} embeddings of'
        f' {header.dtype} [{header.columns}] and their texts need about'
        f' {gigabytes(needed)}, {gigabytes(free)} are free:'
        f' {gigabytes(needed - free)} are missing. Make room, give another'
        ' --index_dir, or make the embeddings smaller with --codec.'
    )
  memory = each * min(rows, _IN_MEMORY * header.shard_size)
  return (
      f'About {gigabytes(needed)} of disk ({gigabytes(free)} are free) and,'
      f' beside the model and its batches, {gigabytes(memory)} of RAM.'
  )


def _text_size(source: Source) -> float:
  """The mean bytes of a text with id and offset, of a sample."""
  count = min(len(source), _SAMPLE)
  rows = np.linspace(0, len(source) - 1, count).astype(int).tolist()
  passages = map(source.passage, rows)
  return sum(len(p.line()) + len(p.id.encode()) + 9 for p in passages) / count
