"""An index in the making: by one process or many, and after any kill."""

from collections.abc import Callable, Iterable
import contextlib
import functools
import logging
import os
import pathlib
import shutil

import filelock
import numpy as np

from dualenc_jax.retrieval.compression import codec as codec_lib
from dualenc_jax.retrieval.compression.codec import Codec
from dualenc_jax.retrieval.compression.quantisers import Floats
from dualenc_jax.retrieval.index import shard as shard_lib
from dualenc_jax.retrieval.index.header import AGAIN, FILE, Header
from dualenc_jax.retrieval.index.shard import (
  CODEC,
  Passage,
  Places,
  Shard,
  SHARD_INFOS,
)
from dualenc_jax.utils import files, json_file
from dualenc_jax.utils.errors import UserError

_LOG = logging.getLogger(__name__)


class IndexBuild:
  """The building of one index, from nothing or from what others have begun.

  Nothing is written before `start`. Any number of processes may build the same
  index at once, best each its own shards; a whole shard is never written again.
  The process that finds all of them completes the index:

    build = IndexBuild(folder, header)
    build.start()
    for shard in build.missing():
      build.write(shard, embeddings, passages)
    is_complete = build.finish()
  """

  def __init__(
      self, folder: str | os.PathLike[str], header: Header,
      replace: bool = False, codec: Callable[[], Codec] | None = None,
  ):
    """Checks what the folder has.

    Args:
      folder: the index, new or begun.
      header: the plan; an index with an equal header is continued.
      replace: whether an index with another header, whole or half, is
        replaced. A whole one is kept until the new one is complete.
      codec: makes the codec that the header names; called by the process that
        starts the index.

    Raises:
      UserError: the folder holds something other than an index, or, unless
        `replace`, an index with another header; names the fields that differ.
    """
    self.header = header
    self._places = Places(folder)
    self.folder = self._places.folder
    self._replace = replace
    self._make_codec = codec
    self._check()

  @property
  def codec(self) -> Codec:
    """The codec that makes rows on disk of embeddings; known after `start`."""
    return self._growing[0]

  def missing(self) -> list[int]:
    """Numbers of the shards that do not exist or are damaged."""
    base, every = self._base(), range(self.header.shards)
    if base is None:
      return list(every)
    digest = self._codec_in(base)[1]
    return [i for i in every if not self._is_whole(base, i, digest)]

  def start(self) -> None:
    """Makes the folder in which the index grows, unless it is complete."""
    places = self._places
    with self._writing(), places.locked():
      places.restore()
      self._check()
      base = self._base()
      missing = self.missing()
      if base == places.partial or not missing:
        return
      if places.partial.exists():
        _LOG.info('Removing %s, a part of another index.', places.partial)
        shutil.rmtree(places.partial)
      if base is not None:
        names = ', '.join(map(shard_lib.name, missing))
        _LOG.info('%s is damaged: %s will be made again.', places.folder, names)
        places.folder.rename(places.partial)
        return
      codec = None
      if self.header.codec is not None and self._make_codec is not None:
        codec = self._make_codec()
      places.partial.mkdir()
      if codec is not None:
        codec_lib.save(places.partial / CODEC, codec)
      self.header.write(places.partial)

  def write(
      self, shard: int, embeddings: np.ndarray, passages: Iterable[Passage]
  ) -> None:
    """Writes a shard, unless another process has by now.

    The embeddings [rows, D], or their codes, have the header's dtype; there are
    as many passages. A full disk raises UserError.
    """
    partial = self._places.partial
    first, digest = self.header.rows_of(shard).start, self._growing[1]
    if not (partial / FILE).exists():
      return  # Others have completed the index.
    lock = filelock.FileLock(partial / f'{shard_lib.name(shard)}.lock')
    with self._writing():
      try:
        with lock:
          if not self._is_whole(partial, shard, digest):
            shard_lib.write(partial, shard, first, embeddings, passages, digest)
      except FileNotFoundError:
        if (partial / FILE).exists():
          raise
        # Others have completed the index meanwhile.

  def finish(self) -> bool:
    """Moves the index into its place if no shard is missing.

    Returns whether it is complete, by this process or by another.
    """
    with self._writing(), self._places.locked():
      if self.missing():
        return False
      if self._base() == self._places.partial:
        for path in self._places.partial.glob('*.lock'):
          path.unlink(missing_ok=True)  # Whoever has held it removes it, too.
        self._places.complete()
      self._places.lock_file.unlink(missing_ok=True)
    return True

  def _check(self) -> None:
    """Raises UserError where work of another header is in the way."""
    places = self._places
    places.check_own()
    if self._base() == places.folder or self._replace:
      return
    for path in (places.readable(), places.partial):
      if differences := self._differences(path):
        raise UserError(
            f"{path} already holds a different index: {'; '.join(differences)}."
            ' Give another --index_dir, or replace it with `dualenc encode'
            ' --overwrite`.'
        )

  def _base(self) -> pathlib.Path | None:
    """The folder that has shards of this header, if one has."""
    for path in (self._places.partial, self._places.readable()):
      if (path / FILE).exists() and not self._differences(path):
        if self.header.codec is None or self._has_codec(path):
          return path
    return None

  def _differences(self, path: pathlib.Path) -> list[str]:
    """What keeps a folder from being this index; nothing if it is none."""
    if not (path / FILE).exists() and not any(path.glob('shard-*/')):
      return []
    try:
      return Header.read(path).differences(self.header)
    except UserError as e:
      return [str(e)]

  def _has_codec(self, base: pathlib.Path) -> bool:
    """Whether all shards are by its codec; else it is trained again."""
    header = self.header
    try:
      codec, digest = codec_lib.load(base / CODEC)
      infos = [json_file.read(path, AGAIN) for path in base.glob(SHARD_INFOS)]
    except UserError:
      return False
    found = codec.name, codec.dim, codec.quantiser.width
    expected = header.codec, header.dim, header.columns
    return found == expected and all(i.get('codec') == digest for i in infos)

  @functools.cached_property
  def _growing(self) -> tuple[Codec, str | None]:
    """`_codec_in` the folder that grows, read once."""
    return self._codec_in(self._places.partial)

  def _codec_in(self, base: pathlib.Path) -> tuple[Codec, str | None]:
    """The codec of a folder, and the SHA-256 of its file if it has one."""
    dim, dtype = self.header.dim, self.header.dtype
    if self.header.codec is None:
      return Codec(dtype, dim, (), Floats(dim, dtype)), None
    return codec_lib.load(base / CODEC)

  def _is_whole(
      self, base: pathlib.Path, shard: int, digest: str | None
  ) -> bool:
    try:
      Shard.open(base, self.header, shard, digest)
    except UserError:
      return False
    return True

  def _writing(self) -> contextlib.AbstractContextManager[None]:
    return files.writing(
        self.folder, 'another --index_dir; the shards that are there are kept'
    )
