"""The passages of a search, whatever their source, and their index files."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.retrieval.index.build import IndexBuild
from dualenc_jax.retrieval.index.header import Header
from dualenc_jax.retrieval.index.index import Index
from dualenc_jax.retrieval.index.shard import Passage


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The passages that are searched.

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
  def of_index(cls, index: Index) -> 'Corpus':
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
      rows = header.rows_of(shard)
      part = np.asarray(stored[rows.start : rows.stop])
      build.write(shard, part, map(self.passage, rows))
    build.finish()
