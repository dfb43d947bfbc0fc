"""An index in the making: by one process or many, and after any kill."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import logging
import os
import pathlib
import shutil
from typing import Any

import numpy as np

from dualenc_jax.retrieval.compression import codec as codec_lib
from dualenc_jax.retrieval.compression.codec import Codec
from dualenc_jax.retrieval.compression.quantisers import Floats
from dualenc_jax.retrieval.index import shard as shard_lib
from dualenc_jax.retrieval.index.header import FILE, Header
from dualenc_jax.retrieval.index.index import Index
from dualenc_jax.retrieval.index.shard import IndexFolders, Passage, Shard
from dualenc_jax.utils import files
from dualenc_jax.utils.errors import UserError

_LOG = logging.getLogger(__name__)


class IndexBuild:
  """The building of one index, from nothing or from what others have begun.

  Nothing is written before `start`. Any number of processes may build the same
  index at once, each its own shards. The process that finds all of them
  completes the index:

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
    """Checks what the folder has; raises UserError for anything but an index.

    Args:
      folder: the index, new or begun.
      header: the plan; an index with an equal header is continued.
      replace: whether an index that is damaged or has another header is
        replaced, when the new one is complete, or else an error.
      codec: makes the codec that the header names; called by the process that
        starts the index.
    """
    self.header = header
    self._folders = IndexFolders(folder)
    self.folder = self._folders.folder
    self._replace = replace
    self._make_codec = codec
    self._check()

  @property
  def codec(self) -> Codec:
    """The codec that makes rows on disk of embeddings; known after `start`."""
    return self._loaded_codec[0]

  def missing(self) -> list[int]:
    """Numbers of the shards that do not exist or are damaged."""
    every = range(self.header.shards)
    if self._is_complete():
      return []
    if not self._is_begun():
      return list(every)
    return [shard for shard in every if not self._is_whole(shard)]

  def start(self) -> None:
    """Makes the folder in which the index grows, unless it is complete."""
    folders = self._folders
    with self._writing(), folders.locked():
      folders.restore()
      self._check()
      if self._is_complete() or self._is_begun():
        return
      if folders.partial.exists():
        _LOG.info('Removing %s, a part of another index.', folders.partial)
        shutil.rmtree(folders.partial)
      codec = None
      if self.header.codec is not None and self._make_codec is not None:
        codec = self._make_codec()
      folders.partial.mkdir()
      if codec is not None:
        codec_lib.save(folders.partial / codec_lib.FILE, codec)
      self.header.write(folders.partial)

  def write(
      self, shard: int, embeddings: np.ndarray, passages: Iterable[Passage]
  ) -> None:
    """Writes a shard of the header's dtype, unless another process has by now.

    A full disk raises UserError.
    """
    partial = self._folders.partial
    digest = self._loaded_codec[1]
    with self._writing():
      try:
        if not self._is_whole(shard):
          shard_lib.write(partial, shard, embeddings, passages, digest)
      except FileNotFoundError:
        if (partial / FILE).exists():
          raise
        # Another process has completed the index.

  def finish(self) -> bool:
    """Moves the index into its place if no shard is missing; whether it is."""
    with self._writing(), self._folders.locked():
      if self.missing():
        return False
      if not self._is_complete():
        self._folders.complete()
      self._folders.lock_file.unlink(missing_ok=True)
    return True

  def _check(self) -> None:
    """Raises UserError where work of another header is in the way."""
    folders = self._folders
    folders.check_contents()
    if self._replace or self._is_complete():
      return
    for path in (folders.readable(), folders.partial):
      if differences := self._differences(path):
        raise UserError(
            f"{path} already holds a different index: {'; '.join(differences)}."
            ' Give another --index_dir, or replace it with `dualenc encode'
            ' --overwrite`.'
        )
    if (folders.readable() / FILE).exists():
      Index.open(folders.folder)  # Its error says what is damaged.

  def _is_complete(self) -> bool:
    """Whether the index is whole and in its place."""
    path = self._folders.readable()
    if not (path / FILE).exists() or self._differences(path):
      return False
    try:
      Index.open(self.folder)
    except UserError:
      return False
    return True

  def _is_begun(self) -> bool:
    """Whether shards of this header may grow further."""
    partial = self._folders.partial
    return (partial / FILE).exists() and not self._differences(partial)

  def _differences(self, path: pathlib.Path) -> list[str]:
    """Differences of a folder from this index; none without an index."""
    if not (path / FILE).exists() and not any(path.glob('shard-*/')):
      return []
    try:
      return Header.read(path).differences(self.header)
    except UserError as e:
      return [str(e)]

  @functools.cached_property
  def _loaded_codec(self) -> tuple[Codec, str | None]:
    """The codec of the growing index, and the SHA-256 of its file if any."""
    dim, dtype = self.header.dim, self.header.dtype
    if self.header.codec is None:
      return Codec(dtype, dim, (), Floats(dim, dtype)), None
    return codec_lib.load(self._folders.partial / codec_lib.FILE)

  def _is_whole(self, shard: int) -> bool:
    digest = self._loaded_codec[1]
    try:
      Shard.open(self._folders.partial, self.header, shard, digest)
    except UserError:
      return False
    return True

  def _writing(self) -> contextlib.AbstractContextManager[None]:
    return files.writing(
        self.folder, 'another --index_dir; the shards that are there are kept'
    )


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The passages of a search.

  Attributes:
    embeddings: float [N, D], an array or a store of rows; or their codes.
    ids: N different strings.
    passage: row -> passage.
    normalised: whether the embeddings are known to have length one.
    header: that of the index that they come from, if any.
  """

  embeddings: Any
  ids: Sequence[str]
  passage: Callable[[int], Passage]
  normalised: bool
  header: Header | None = None

  @classmethod
  def from_index(cls, index: Index) -> 'Corpus':
    """The passages of an index."""
    header = index.header
    return cls(
        index.embeddings, index.ids, index.passage, header.normalised, header
    )

  def write(
      self, folder: pathlib.Path, dim: int, tokens: int,
      provenance: Mapping[str, Any],
  ) -> None:
    """Writes an index of dim D, whose passages have at most `tokens` tokens."""
    stored: Any = self.embeddings
    codec: Any = getattr(stored, 'codec', None)
    if codec is not None:
      stored = stored.codes
    header = Header(
        len(self.ids),
        dim,
        'passage',
        tokens,
        str(stored.dtype),
        self.normalised,
        codec=None if codec is None else codec.name,
        width=None if codec is None else stored.shape[1],
        provenance=provenance,
    )
    build = IndexBuild(folder, header, codec=lambda: codec)
    build.start()
    for shard in build.missing():
      rows = header.shard_rows(shard)
      part = np.asarray(stored[rows.start : rows.stop])
      build.write(shard, part, map(self.passage, rows))
    build.finish()
