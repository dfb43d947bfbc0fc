"""Vectors of texts that any model has made: of an index, Parquet or NumPy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import pathlib
import tempfile
from typing import Any

import numpy as np

from dualenc_jax.data.readers import tables
from dualenc_jax.data.text.ragged import (
  fingerprints,
  lengths_to_offsets,
  Ragged,
)
from dualenc_jax.retrieval.index.conversion import BLOCK, is_index
from dualenc_jax.retrieval.index.index import Index
from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import missing, UserError
from dualenc_jax.utils.progress import Progress


@dataclasses.dataclass(frozen=True, eq=False)
class VectorFile:
  """N vectors with ids, memory-mapped.

  Attributes:
    vectors: floats [N, D], of any length; rows are read on demand.
    ids: UTF-8, N rows, all different.
    read_texts: yields the texts in blocks, in order; None if there are none.
    tower: 'query' or 'passage', the texts' side; None if it is not known.
  """

  path: pathlib.Path
  vectors: Any
  ids: Ragged
  read_texts: Callable[[], Iterator[Sequence[str]]] | None = None
  tower: str | None = None

  @classmethod
  def open(cls, path: str | pathlib.Path) -> 'VectorFile':
    """Opens vectors by their path:

      a folder    an index, as `dualenc encode` writes it.
      .parquet    columns id, vector (a list of floats) and perhaps text.
      .npy        floats [N, D]; beside it .txt of the same name, an id a line.

    Raises UserError for anything else, other sizes, or an id that repeats.
    """
    path = pathlib.Path(path).expanduser()
    if not path.exists():
      raise UserError(missing(path))
    is_known = path.suffix in _OPENERS and path.is_file()
    if not (is_known or is_index(path)):
      raise UserError(
          f'{path} has no vectors that can be read; expected a folder of'
          f' `dualenc encode`, or a file, {" or ".join(_OPENERS)}.'
      )
    found = _OPENERS[path.suffix](path) if is_known else _open_index(path)
    if not len(found):
      raise UserError(f'{path} has no vectors. Expected one or more.')
    order = np.argsort(found.id_keys, kind='stable')
    ordered = found.id_keys[order]
    if (again := np.flatnonzero(ordered[1:] == ordered[:-1])).size:
      # The first in the file of those that come again.
      first = again[np.argmin(order[again])]
      one, two = order[first : first + 2]
      raise UserError(
          f'{path}: rows {one + 1} and {two + 1} have the id'
          f' {found.ids.text(one)!r}. Expected a vector per id.'
      )
    return found

  def __len__(self) -> int:
    return len(self.ids)

  @functools.cached_property
  def id_keys(self) -> np.ndarray:
    """Fingerprints of the ids, uint64 [N]."""
    return fingerprints(self.ids)

  @functools.cached_property
  def text_keys(self) -> np.ndarray:
    """Fingerprints of the texts, byte by byte, uint64 [N]."""
    return self.map_texts(lambda texts: fingerprints(Ragged.from_texts(texts)))

  def map_texts(
      self, function: Callable[[Sequence[str]], np.ndarray]
  ) -> np.ndarray:
    """Maps all texts, block by block, to numbers uint64 [N]."""
    assert self.read_texts is not None
    out, done = np.empty(len(self), np.uint64), 0
    with Progress(f'Reading {self.path.name}', len(self), 'texts') as progress:
      for texts in self.read_texts():
        out[done : done + len(texts)] = function(texts)
        done += len(texts)
        progress(len(texts))
    return out


def _open_index(path: pathlib.Path) -> VectorFile:
  index = Index.open(path)

  def texts() -> Iterator[list[str]]:
    for start in range(0, len(index), BLOCK):
      rows = range(start, min(start + BLOCK, len(index)))
      yield [index.passage(row).text for row in rows]

  ids = _lines(np.concatenate([shard.ids for shard in index.shards]))
  if len(ids) != len(index):
    raise UserError(f'{path} has {len(ids)} ids for {len(index)} vectors.')
  return VectorFile(path, index.embeddings, ids, texts, index.header.tower)


def _open_numpy(path: pathlib.Path) -> VectorFile:
  names = path.with_suffix('.txt')
  if not untrusted.is_file(names):
    raise UserError(
        f'{untrusted.explain_path(names)}. Expected the ids of {path.name}, one'
        ' a line.'
    )
  try:
    vectors = np.load(path, mmap_mode='r', allow_pickle=False)
  except Exception as e:  # NumPy parses its header by Python's own parser.
    raise UserError(f'{path} cannot be read: {e}. Save it again.') from e
  ids = _lines(np.fromfile(names, np.uint8))
  if vectors.ndim != 2 or vectors.dtype.kind != 'f':
    raise UserError(
        f'{path} holds {vectors.dtype} {vectors.shape}; expected floats [N, D].'
    )
  if len(ids) != len(vectors):
    raise UserError(
        f'{names} has {len(ids):,} ids, and {path.name} {len(vectors):,}'
        ' vectors. Expected as many.'
    )
  return VectorFile(path, vectors, ids)


def _open_parquet(path: pathlib.Path) -> VectorFile:
  """Copies the vectors to a temporary file, which can be mapped."""
  again = 'Expected columns id, of strings or integers, and vector, of floats.'
  kind = path, 'a Parquet file of vectors', again
  with tables.explained_pyarrow(*kind) as pyarrow:
    names = pyarrow.parquet.read_schema(path).names
  if not {'id', 'vector'} <= {*names}:
    raise UserError(f'{path} has the columns {", ".join(names)}. {again}')

  def blocks(*columns: str) -> Iterator[Any]:
    with (
        tables.explained_pyarrow(*kind) as pyarrow,
        pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file,
    ):
      yield from file.iter_batches(BLOCK, columns=list(columns))

  def texts() -> Iterator[list[str]]:
    for block in blocks('text'):
      yield [text or '' for text in block['text'].to_pylist()]

  forms, lengths, ids = set(), [0], [Ragged.from_texts([])]
  with tempfile.TemporaryFile() as file:
    for block in blocks('id', 'vector'):
      column, names_of = block['vector'], block['id'].to_pylist()
      dims: set[Any] = {None}
      if hasattr(column, 'value_lengths'):
        dims = {*column.value_lengths().to_pylist()}
      if len(dims) != 1 or None in {*dims, *names_of}:
        raise UserError(
            f'{path} has vectors of several dimensions, or a row without one or'
            f' without an id, among rows {sum(lengths) + 1:,} to'
            f' {sum(lengths) + len(column):,}. {again}'
        )
      values = np.asarray(column.flatten().to_numpy(zero_copy_only=False))
      file.write(np.ascontiguousarray(values).data)
      forms.add((*dims, values.dtype))
      lengths.append(len(column))
      ids.append(Ragged.from_texts(map(str, names_of)))
    if len(forms) != 1 or (form := forms.pop())[1].kind != 'f' or not form[0]:
      raise UserError(f'{path} has no vectors of one dimension. {again}')
    file.flush()
    shape = sum(lengths), form[0]
    vectors = np.memmap(file, form[1], 'r', shape=shape)
  offsets = lengths_to_offsets(np.concatenate([x.lengths for x in ids]))
  return VectorFile(
      path, vectors, Ragged(np.concatenate([x.values for x in ids]), offsets),
      texts if 'text' in names else None,
  )


def _lines(content: np.ndarray) -> Ragged:
  """The lines of a file, uint8 [bytes], without what ends them."""
  ends = content == ord('\n')
  if len(content) and not ends[-1]:
    content, ends = np.append(content, content[:1]), np.append(ends, True)
  kept = ~ends & (content != ord('\r'))
  offsets = np.concatenate([[0], np.cumsum(kept)[ends]]).astype(np.int64)
  return Ragged(content[kept], offsets)


_OPENERS: Mapping[str, Callable[[pathlib.Path], VectorFile]] = {
    '.parquet': _open_parquet, '.npy': _open_numpy
}
