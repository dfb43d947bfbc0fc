"""The files of a shard, written whole, and the folder of an index."""

from collections.abc import Iterable, Iterator
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
from typing import Any, IO

import numpy as np

from dualenc_jax.retrieval.compression import codec as codec_lib
from dualenc_jax.retrieval.index.header import AGAIN, FILE, Header
from dualenc_jax.utils import files, json_file, untrusted
from dualenc_jax.utils.errors import UserError

EMBEDDINGS, IDS, PASSAGES = 'embeddings.npy', 'ids.txt', 'passages.jsonl'
OFFSETS, INFO = 'offsets.npy', 'shard.json'
FILES = (EMBEDDINGS, IDS, PASSAGES, OFFSETS)
_OF_INDEX = re.compile(
    rf'\.?({re.escape(FILE)}|{re.escape(codec_lib.FILE)})(\.\d+\.partial)?'
    r'|shard-\d{5,}(\.partial)?'
)


@dataclasses.dataclass(frozen=True)
class Passage:
  """One passage of a corpus, or one query.

  Attributes:
    id: unique in its corpus, on one line.
    name: a title, or the qualified name of a function; may be empty.
    location: a URL, or `file:line`; may be empty.
    text: the text that is encoded.
  """

  id: str
  name: str
  location: str
  text: str

  def describe(self) -> str:
    """Name, or the start of the text, and the location, on one line."""
    text = ' '.join(self.text.split())
    return f'{self.name or text[:80]}  {self.location}'

  def line(self) -> bytes:
    """The line of the passage in passages.jsonl."""
    row = json.dumps(vars(self), ensure_ascii=False)
    return row.encode('utf-8', 'surrogatepass') + b'\n'


@dataclasses.dataclass(frozen=True)
class Shard:
  """A whole shard, memory-mapped and read-only.

  Attributes:
    embeddings: [rows, D], or their codes.
    ids: the bytes of ids.txt.
    text: the bytes of passages.jsonl.
    offsets: int64 [rows + 1] into `text`.
  """

  folder: pathlib.Path
  embeddings: np.ndarray
  ids: np.ndarray
  text: np.ndarray
  offsets: np.ndarray

  @classmethod
  def open(
      cls, index: pathlib.Path, header: Header, number: int, codec: str | None
  ) -> 'Shard':
    """Maps a shard; raises UserError unless it is whole and as the header says.

    `codec` is the SHA-256 of the file of its codec; None without one.
    """
    folder, rows = index / name(number), header.shard_rows(number)
    path = folder / INFO
    info = json_file.read(path, AGAIN, bytes=dict)
    if info.get('codec') != codec:
      raise UserError(
          f'{path}: its codes are by another codec than that of the index:'
          f" SHA-256 {info.get('codec')}, expected {codec}. {AGAIN}"
      )
    for file in FILES:
      _check_size(folder / file, info['bytes'].get(file))
    shape = len(rows), header.columns
    return cls(
        folder,
        _map_array(folder / EMBEDDINGS, shape, header.dtype),
        _map_bytes(folder / IDS),
        _map_bytes(folder / PASSAGES),
        _map_array(folder / OFFSETS, (len(rows) + 1,), np.int64),
    )

  def passage(self, row: int) -> Passage:
    """The passage of a row of this shard."""
    line = self.text[self.offsets[row] : self.offsets[row + 1]].tobytes()
    try:
      return Passage(**json_file.loads(line))
    except (ValueError, TypeError) as e:
      raise UserError(
          f'{self.folder / PASSAGES}:{row + 1}: not a passage (expected id,'
          f' name, location, text as JSON): {e}. {AGAIN}'
      ) from e


def name(number: int) -> str:
  """The folder of a shard, below that of the index."""
  return f'shard-{number:05d}'


def write(
    index: pathlib.Path, number: int, embeddings: np.ndarray,
    passages: Iterable[Passage], codec: str | None,
) -> None:
  """Writes a shard beside its place and renames it when all is on the disk.

  After an error nothing is left behind. `codec` is as of `Shard.open`. Raises
  UserError for an id that is empty or has several lines.
  """
  folder = index / name(number)
  partial = index / f'{name(number)}.partial'
  shutil.rmtree(partial, ignore_errors=True)
  partial.mkdir()
  try:
    lengths = [0]
    with _synced(partial / IDS) as ids, _synced(partial / PASSAGES) as texts:
      for passage in passages:
        if not passage.id or {*'\n\r'} & {*passage.id}:
          raise UserError(
              f'The id {passage.id!r} of a text cannot be kept in an index:'
              ' expected an id of one line.'
          )
        ids.write(passage.id.encode() + b'\n')
        lengths.append(texts.write(passage.line()))
    offsets = np.cumsum(lengths, dtype=np.int64)
    for array_file, array in ((EMBEDDINGS, embeddings), (OFFSETS, offsets)):
      with _synced(partial / array_file) as file:
        np.save(file, array)
    info: dict[str, Any] = {
        'rows': len(embeddings),
        'bytes': {file: (partial / file).stat().st_size for file in FILES},
    }
    if codec is not None:
      info['codec'] = codec
    with _synced(partial / INFO) as file:
      file.write(json.dumps(info, indent=2).encode() + b'\n')
    # There may be a damaged shard.
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
  except BaseException:
    shutil.rmtree(partial, ignore_errors=True)
    raise


@contextlib.contextmanager
def _synced(path: pathlib.Path) -> Iterator[IO[bytes]]:
  with path.open('wb') as file:
    yield file
    file.flush()
    os.fsync(file.fileno())


def _check_size(path: pathlib.Path, size: int | None) -> None:
  if not untrusted.is_file(path):
    raise UserError(f'{untrusted.explain_path(path)}. {AGAIN}')
  if (found := path.stat().st_size) != size:
    raise UserError(
        f'{path}: truncated or half-written: it has {found} bytes, {INFO} says'
        f' {size}. {AGAIN}'
    )


def _map_array(
    path: pathlib.Path, shape: tuple[int, ...], dtype: Any
) -> np.ndarray:
  try:
    array = np.load(path, mmap_mode='r', allow_pickle=False)
    if not isinstance(array, np.ndarray):
      raise ValueError('it is an archive')
  except Exception as e:  # NumPy parses its header by Python's own parser.
    raise UserError(f'{path}: not an array ({e}). {AGAIN}') from e
  dtype = np.dtype(dtype)
  # NumPy's format has only the size of a dtype that is not NumPy's own.
  if dtype.kind == array.dtype.kind == 'V' and dtype.itemsize == array.itemsize:
    array = array.view(dtype)
  if array.shape != shape or array.dtype != dtype:
    raise UserError(
        f'{path}: holds {array.dtype} {array.shape}, but the header says'
        f' {dtype} {shape}. {AGAIN}'
    )
  # The plain view indexes faster than np.memmap's own subclass.
  return np.asarray(array)


def _map_bytes(path: pathlib.Path) -> np.ndarray:
  try:
    return np.asarray(np.memmap(path, np.uint8, mode='r'))
  except (OSError, ValueError) as e:
    raise UserError(f'{path} cannot be read: {e}. {AGAIN}') from e


class IndexFolders(files.GrowingFolder):
  """The folders of one index."""

  def check_contents(self) -> None:
    """Raises UserError where a folder holds anything but an index."""
    for path in (self.folder, self.partial, self.aside):
      names = sorted(inner.name for inner in path.glob('*'))
      strangers = [name for name in names if not _OF_INDEX.fullmatch(name)]
      if path.is_file():
        raise UserError(f'{path} is a file; expected a folder for an index.')
      if strangers:
        raise UserError(
            f'{path} is not an index: it holds {strangers[0]!r}. Give a new'
            ' folder or an older index.'
        )
