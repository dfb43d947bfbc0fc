"""A complete index, read on demand."""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import pathlib
from typing import Any

from dualenc_jax.errors import UserError
from dualenc_jax.index import places
from dualenc_jax.index.header import AGAIN, FILE, Header
from dualenc_jax.index.ids import Ids
from dualenc_jax.index.shard import Passage, Shard
from dualenc_jax.index.store import RowStore


@dataclasses.dataclass(frozen=True)
class Index:
  """A complete index; nothing of it is in memory until it is asked for.

  Attributes:
    folder: where it was found.
    header: what it says about itself.
    embeddings: float32 or float16 [N, D].
    ids: the N ids, in the order of the rows.
    shards: the files.
  """

  folder: pathlib.Path
  header: Header
  embeddings: RowStore
  ids: Sequence[str]
  shards: Sequence[Shard]

  @classmethod
  def open(
      cls,
      folder: str | os.PathLike[str],
      expect: Mapping[str, Any] | None = None,
  ) -> 'Index':
    """Opens a folder and checks that it is whole and what was asked for.

    Args:
      folder: what `dualenc encode` wrote.
      expect: values that fields of the header or of its provenance must have.

    Raises:
      UserError: no index or half of one, another format or version, a field
        that is not as expected, or a file that is missing, truncated or
        half-written.
    """
    place = places.Places(folder)
    folder = place.readable()
    _check_complete(place, folder)
    header = Header.read(folder)
    wrong = header.wrong(expect or {})
    if wrong:
      raise UserError(f'{folder / FILE}: {"; ".join(wrong)}. {AGAIN}')
    shards = [Shard.open(folder, header, i) for i in range(header.shards)]
    return cls(
        folder,
        header,
        RowStore([shard.embeddings for shard in shards]),
        Ids(header, shards),
        shards,
    )

  def __len__(self) -> int:
    return self.header.passages

  def passage(self, row: int) -> Passage:
    """The passage of a row, 0 <= row < N, or IndexError."""
    if not 0 <= row < len(self):
      raise IndexError(f'row {row}: expected 0 to {len(self) - 1}.')
    shard, row = divmod(row, self.header.shard_size)
    return self.shards[shard].passage(row)


def _check_complete(place: places.Places, folder: pathlib.Path) -> None:
  """Says of an index that is being made how far it is."""
  if folder.exists() or not place.partial.exists():
    return
  header = Header.read(place.partial)
  raise UserError(
      f'{place.folder} is not complete: {len(place.shards())} of'
      f' {header.shards} shards are there, in {place.partial}. Run the same'
      ' `dualenc encode` again: it goes on where it was.'
  )
