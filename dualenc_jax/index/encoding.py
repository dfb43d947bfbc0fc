"""Encodes texts into the shards of an index, and says what that will take."""

from collections.abc import Callable, Iterable
from concurrent import futures
import logging
import shutil
from typing import NamedTuple

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.index import IndexBuild
from dualenc_jax.index.source import Source
from dualenc_jax.io import finite
from dualenc_jax.io.forecast import gigabytes
from dualenc_jax.io.progress import Progress

# Texts that are looked at to tell how much disk all of them will take.
_SAMPLE = 256
# Shards in memory: one is encoded while the one before is written.
_IN_MEMORY = 2

_LOG = logging.getLogger(__name__)

Embed = Callable[[np.ndarray], Iterable[tuple[np.ndarray, np.ndarray]]]


class Host(NamedTuple):
  """Which of the hosts that share the work this process is."""

  index: int = 0
  count: int = 1


def encode(
    build: IndexBuild, source: Source, embed: Embed, host: Host = Host()
) -> None:
  """Makes this host's shards of an index, those that are not there yet.

  Shards are dealt to the hosts by their numbers. One is written by a thread
  while the next is encoded.

  Args:
    build: of the index.
    source: of the texts.
    embed: (rows of the source's cache [n]) -> (positions in them [b], float32
      [b, D]), every position once, in any order.
    host: which part is this process's.

  Raises:
    UserError: embeddings that are not finite, or a disk that has not enough
      free, is full or cannot be written. The shards before are whole.
  """
  header = build.header
  missing = build.missing()
  if missing:
    there = header.shards - len(missing)
    if there:
      _LOG.info('%d of %d shards are there.', there, header.shards)
    _LOG.info('%s', check_room(build, missing, source))
  build.start()
  shards = [shard for shard in missing if shard % host.count == host.index]
  total = sum(len(header.rows_of(shard)) for shard in shards)
  unit = 'queries' if source.tower == 'query' else 'passages'
  with (
      Progress('Encoding', total, unit) as progress,
      futures.ThreadPoolExecutor(1) as writer,
  ):
    pending = None
    for shard, lock in build.claims(shards):
      rows = header.rows_of(shard)
      try:
        embeddings = _encode(build, rows, source, embed, progress)
        if pending is not None:
          pending.result()
      except BaseException:
        lock.release()
        raise
      passages = map(source.passage, rows)
      pending = writer.submit(build.write, shard, lock, embeddings, passages)
    if pending is not None:
      pending.result()


def _encode(
    build: IndexBuild,
    rows: range,
    source: Source,
    embed: Embed,
    progress: Progress,
) -> np.ndarray:
  """The embeddings of one shard, in the dtype of the index."""
  header = build.header
  out = np.empty((len(rows), header.dim), header.dtype)
  for positions, embeddings in embed(source.rows[rows.start : rows.stop]):

    def name(i: int) -> str:
      row = rows[positions[i]]
      return f'row {row} ({source.tower} {source.passage(row).id!r})'

    finite.check_rows('embeddings', embeddings, name)
    out[positions] = embeddings
    progress(len(positions))
  return out


def check_room(build: IndexBuild, missing: list[int], source: Source) -> str:
  """What the missing shards will take.

  Args:
    build: of the index, started or not.
    missing: shards that all hosts together have to make.
    source: of the texts.

  Returns:
    A sentence on disk and memory.

  Raises:
    UserError: the disk has not enough free.
  """
  header = build.header
  each = header.dim * np.dtype(header.dtype).itemsize
  rows = sum(len(header.rows_of(shard)) for shard in missing)
  needed = round(rows * (each + _text_size(source)))
  folder = build.folder
  while not folder.exists():
    folder = folder.parent
  free = shutil.disk_usage(folder).free
  if needed > free:
    raise UserError(
        f'{build.folder} does not fit the disk: {rows:,} embeddings of'
        f' {header.dtype} [{header.dim}] and their texts need about'
        f' {gigabytes(needed)}, {gigabytes(free)} are free:'
        f' {gigabytes(needed - free)} are missing. Make room, give another'
        ' --index_dir, or halve the embeddings with --dtype=float16.'
    )
  memory = each * min(rows, _IN_MEMORY * header.shard_size)
  return (
      f'About {gigabytes(needed)} of disk ({gigabytes(free)} are free) and,'
      f' beside the model and its batches, {gigabytes(memory)} of RAM.'
  )


def _text_size(source: Source) -> float:
  """Bytes that a text takes with its id, on average of a sample."""
  count = min(len(source), _SAMPLE)
  rows = np.linspace(0, len(source) - 1, count).astype(int).tolist()
  passages = (source.passage(row) for row in rows)
  offset = np.dtype(np.int64).itemsize
  sizes = [len(p.line()) + len(p.id.encode()) + 1 + offset for p in passages]
  return sum(sizes) / count

