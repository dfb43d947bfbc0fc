"""`Index`, a complete index that is read on demand, for a model or not.

A saved retriever opens its index without Flax, so nothing here imports it.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import logging
import os
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.parallel import hosts
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval.compression import codec as codec_lib, model_codec
from dualenc_jax.retrieval.compression.codec import Codec, Coded
from dualenc_jax.retrieval.encoding.towers import LoadedModel, TOWER_SHA256
from dualenc_jax.retrieval.index.header import AGAIN, FILE, Header
from dualenc_jax.retrieval.index.shard import IDS, IndexFolders, Passage, Shard
from dualenc_jax.utils.errors import UserError

# Shards for each host from which on its part is of whole ones.
_MANY_SHARDS = 8
# Field of the provenance: the digest of a codec trained with the model.
CODEC_SHA256 = 'codec_sha256'
_LOG = logging.getLogger(__name__)


class RowStore:
  """Several arrays, memory-mapped or in memory, as one [N, D]; read-only.

  `store[a:b]` is a view where the rows lie in one shard, else a copy;
  `store[rows]` gathers any rows in any order, reading each shard once, in the
  order of the disk; `store[i]` is one row. `np.asarray(store)` copies all.
  """

  ndim = 2

  def __init__(self, shards: Sequence[np.ndarray], host: Host = Host()):
    """Takes one array or more, [rows, D] each, of one dtype.

    `host` is this process's number among those that search it together.
    """
    self._host = host
    self._shards = shards
    self._starts = np.cumsum([0, *map(len, shards)])
    self.shape = int(self._starts[-1]), shards[0].shape[1]
    self.dtype = shards[0].dtype

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, rows: int | slice | Sequence[int] | np.ndarray):
    if isinstance(rows, slice):
      start, stop, step = rows.indices(len(self))
      if step == 1:
        return self._slice(start, max(start, stop))
      rows = np.arange(start, stop, step)
    rows = np.asarray(rows)
    if rows.size and rows.dtype.kind not in 'iu':
      raise IndexError(f'rows are {rows.dtype}: expected whole numbers.')
    flat = rows.ravel().astype(np.int64)
    outside = (flat < -len(self)) | (flat >= len(self))
    if outside.any():
      raise IndexError(
          f'row {flat[outside][0]}: expected 0 to {len(self) - 1}.'
      )
    gathered = self._gather(flat % max(len(self), 1))
    return gathered.reshape(*rows.shape, self.shape[1])

  def __array__(self, dtype=None, copy=None) -> np.ndarray:
    if copy is False and len(self._shards) > 1:
      raise ValueError('rows of several shards are one array as a copy only')
    return np.array(self[:], dtype, copy=copy)

  def own_part(self) -> tuple[int, 'RowStore']:
    """The rows that this host searches, after the number of their first.

    Raises UserError where there are fewer rows than hosts.
    """
    index, count = self._host.index, self._host.count
    if count == 1:
      return 0, self
    if len(self) < count:
      raise UserError(
          f'{len(self)} passages for {count} hosts; expected one each at least.'
          ' Take fewer hosts.'
      )
    cuts = [len(self) * i // count for i in (index, index + 1)]
    if len(self._shards) >= _MANY_SHARDS * count:
      # Blocks of whole shards are read without a copy.
      cuts = self._starts[np.searchsorted(self._starts, cuts)].tolist()
    return cuts[0], RowStore(self._parts(*cuts))

  def _slice(self, start: int, stop: int) -> np.ndarray:
    parts = self._parts(start, stop)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

  def _parts(self, start: int, stop: int) -> list[np.ndarray]:
    """Views of the rows from start to stop, one or more."""
    cuts = self._starts[1:-1]
    first = np.searchsorted(cuts, start, 'right')
    last = max(first, np.searchsorted(cuts, stop, 'left'))
    return [
        self._shards[i][max(start - begin, 0) : stop - begin]
        for i, begin in enumerate(self._starts[: last + 1].tolist())
        if i >= first
    ]

  def _gather(self, rows: np.ndarray) -> np.ndarray:
    order = np.argsort(rows, kind='stable')
    ascending = rows[order]
    out = np.empty((len(rows), self.shape[1]), self.dtype)
    ends = np.searchsorted(ascending, self._starts)
    for shard, first, begin, end in zip(
        self._shards, self._starts, ends, ends[1:]
    ):
      if begin < end:
        out[order[begin:end]] = shard[ascending[begin:end] - first]
    return out


class Ids(Sequence[str]):
  """The N ids in the order of the rows, read on demand: 16 bytes or so each."""

  def __init__(self, header: Header, shards: Sequence[Shard]):
    self._header = header
    self._shards = shards
    self._read: dict[int, np.ndarray] = {}

  def __len__(self) -> int:
    return self._header.passages

  def __getitem__(self, row: Any) -> Any:
    if isinstance(row, slice):
      return [self[i] for i in range(*row.indices(len(self)))]
    if not -len(self) <= row < len(self):
      raise IndexError(f'row {row}: expected 0 to {len(self) - 1}.')
    shard, row = divmod(int(row) % len(self), self._header.shard_size)
    return self._of_shard(shard)[row]

  def __iter__(self) -> Iterator[str]:
    for number in range(len(self._shards)):
      yield from self._of_shard(number)

  def _of_shard(self, number: int) -> np.ndarray:
    """The ids of a shard, strings [rows]."""
    if number not in self._read:
      found = self._shards[number]
      path, rows = found.folder / IDS, len(self._header.shard_rows(number))
      try:
        *lines, rest = found.ids.tobytes().decode().split('\n')
      except UnicodeDecodeError as e:
        raise UserError(f'{path} is not text in UTF-8: {e}. {AGAIN}') from e
      if rest or len(lines) != rows:
        raise UserError(
            f'{path}: has {len(lines)} whole lines; expected {rows}, one id per'
            f' line. {AGAIN}'
        )
      self._read[number] = np.array(lines, np.dtypes.StringDType())
    return self._read[number]


@dataclasses.dataclass(frozen=True)
class Index:
  """A complete index; nothing is in memory before it is used.

  Attributes:
    embeddings: float [N, D]; for an index of codes a `compression.Coded`.
    ids: the N ids, in the order of the rows.
  """

  folder: pathlib.Path
  header: Header
  embeddings: RowStore | Coded
  ids: Sequence[str]
  shards: Sequence[Shard]

  @classmethod
  def open(
      cls,
      folder: str | os.PathLike[str],
      expect: Mapping[str, Any] | None = None,
      host: Host = Host(),
  ) -> 'Index':
    """Opens an index; raises UserError unless it is complete and as expected.

    `expect` has values that the header or its provenance must have. `host` is
    one of those that search it together; see `agree`.
    """
    place = IndexFolders(folder)
    folder = place.readable()
    if not folder.exists() and place.partial.exists():
      raise UserError(
          f'{place.folder} is not complete: some of its shards are in'
          f' {place.partial}. Run the same `dualenc encode` again, which'
          ' continues.'
      )
    header = Header.read(folder)
    if wrong := header.mismatches(expect or {}):
      raise UserError(
          f'{folder / FILE}: {"; ".join(wrong)}. Give what it was made with, or'
          ' another index.'
      )
    codec = digest = None
    if header.codec is not None:
      codec, digest = codec_lib.load(folder / codec_lib.FILE)
    shards = [
        Shard.open(folder, header, i, digest) for i in range(header.shards)
    ]
    rows = RowStore([shard.embeddings for shard in shards], host)
    stored = rows if codec is None else Coded(codec, rows)
    return cls(folder, header, stored, Ids(header, shards), shards)

  def __len__(self) -> int:
    return self.header.passages

  def passage(self, row: int) -> Passage:
    """The passage of a row, 0 <= row < N, or IndexError."""
    if not 0 <= row < len(self):
      raise IndexError(f'row {row}: expected 0 to {len(self) - 1}.')
    shard, row = divmod(row, self.header.shard_size)
    return self.shards[shard].passage(row)


def open_index(
    model: LoadedModel,
    folder: str | os.PathLike[str],
    more: Mapping[str, Any] | None = None,
    host: Host = Host(),
) -> Index:
  """Opens an index for the queries of a model; see `Index.open`.

  The model's passage tower, and its codec if any, must have made the index, and
  `more` are further fields that the header must have. Codes that were trained
  with another model's queries are opened with a warning.
  """
  expect = {**expected_header(model, 'passage'), **(more or {})}
  index = Index.open(folder, expect, host)
  if model.codec is None:
    if CODEC_SHA256 in index.header.provenance:
      _LOG.warning(
          '%s: its codes by %s were trained for the queries of another model.'
          ' Search with that model, or encode the passages with this one.',
          index.folder,
          index.header.codec,
      )
  elif index.header.codec == model.codec.name:
    if wrong := index.header.mismatches(codec_provenance(model.codec)):
      raise UserError(
          f'{index.folder}: its codec {model.codec.name} belongs to another'
          f' model or checkpoint: {wrong[0]}. {AGAIN}'
      )
  return index


def agree(index: Index | None) -> None:
  """Raises UserError unless all hosts have the same index, or all none."""
  hosts.agree(
      'indexes', 'none' if index is None else index.header.lines(),
      'All hosts must see the same folder.',
  )


def codec_provenance(codec: Codec) -> dict[str, Any]:
  """The provenance of an index that belongs to a model's own codec."""
  return {CODEC_SHA256: model_codec.digest(codec)}


def expected_header(model: LoadedModel, tower: str) -> dict[str, Any]:
  """The fields of the header of every index of a tower's embeddings."""
  return {'tower': tower, 'dim': model.dim, **tower_provenance(model, tower)}


def tower_provenance(model: LoadedModel, tower: str) -> dict[str, Any]:
  """The fields of `expected_header` that are in the provenance of an index."""
  tokenizer = model.tokenizer
  names = f'{tower}_length', f'{tower}_prefix'
  return {
      TOWER_SHA256: dict(model.tower_digest(tower)),
      'vocabulary': tokenizer.vocabulary.sha256,
      **{name: getattr(tokenizer, name) for name in names},
  }
