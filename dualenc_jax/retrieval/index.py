"""The encoded corpus on disk: what `encode` writes and `search` reads.

A folder of four files:

  embeddings.npy   float32 [N, D], read through a memory map.
  passages.jsonl   one object a line: id, name, location, text.
  offsets.npy      int64 [N + 1], where each line of passages.jsonl starts.
  header.json      format, version, passages (N), dim (D), dtype, tower,
                   normalised, passages_bytes, provenance.

A new index grows in `FOLDER.partial`. When it is complete, an index that is
already there steps aside to `FOLDER.replaced`, the new one is renamed into
place, and the old one is deleted. Whatever moment a crash picks, a complete
index is left, and `Index.open` finds it.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
from typing import Any

import numpy as np

from dualenc_jax.errors import UserError

FORMAT = 'dualenc-index'
VERSION = 1
_EMBEDDINGS = 'embeddings.npy'
_PASSAGES = 'passages.jsonl'
_OFFSETS = 'offsets.npy'
_HEADER = 'header.json'
_FILES = {_EMBEDDINGS, _PASSAGES, _OFFSETS, _HEADER}
_AGAIN = 'Run `dualenc encode` again.'


@dataclasses.dataclass(frozen=True)
class Passage:
  """One passage of a corpus.

  Attributes:
    id: unique in its corpus.
    name: what a reader knows it by: a title, a function's qualified name.
    location: where it comes from: a URL, `file:line`; may be empty.
    text: the text that is encoded.
  """

  id: str
  name: str
  location: str
  text: str


class IndexWriter:
  """Writes an index block by block; memory holds a block and the ids.

  Used as a context manager, so that an error leaves nothing behind:

    with IndexWriter(folder, dim=768, tower='passage') as writer:
      for embeddings, passages in blocks:
        writer.append(embeddings, passages)
      writer.commit()
  """

  def __init__(
      self,
      folder: str | os.PathLike[str],
      dim: int,
      tower: str,
      normalised: bool = True,
      provenance: Mapping[str, Any] | None = None,
  ):
    """Starts an empty index beside `folder`.

    Args:
      folder: the index to make or replace.
      dim: D, the embedding dim.
      tower: which tower encodes the passages.
      normalised: whether the embeddings have length one.
      provenance: whatever says what was encoded by what, as JSON: checkpoint
        step, lengths, vocabulary sha256, corpus name.

    Raises:
      UserError: the folder holds something else than an index, or cannot be
        written; provenance that is not JSON, or a name of it that the header
        already has.
    """
    self._folder = _absolute(folder)
    self._partial = _beside(self._folder, 'partial')
    self._aside = _beside(self._folder, 'replaced')
    self._header = {
        'format': FORMAT,
        'version': VERSION,
        'passages': 0,
        'dim': dim,
        'dtype': 'float32',
        'tower': tower,
        'normalised': normalised,
        'passages_bytes': 0,
    }
    try:
      provenance = json.loads(json.dumps(dict(provenance or {})))
    except TypeError as e:
      raise UserError(f'provenance must be plain JSON: {e}.') from e
    taken = sorted(self._header.keys() & provenance.keys())
    if taken:
      raise UserError(
          f'provenance names {taken} are fields of the header: rename them.'
      )
    self._header['provenance'] = provenance
    self._row_of_id: dict[str, int] = {}
    self._offsets = [0]
    for path in (self._folder, self._partial, self._aside):
      _check_replaceable(path)
    with _writing(self._partial), contextlib.ExitStack() as stack:
      _remove(self._partial)
      self._partial.mkdir(parents=True)
      self._embeddings = stack.enter_context(
          open(self._partial / _EMBEDDINGS, 'wb')
      )
      self._passages = stack.enter_context(
          open(self._partial / _PASSAGES, 'wb')
      )
      self._write_array_header()
      self._open_files = stack.pop_all()

  def __enter__(self) -> 'IndexWriter':
    return self

  def __exit__(self, *_) -> None:
    self.abort()

  def append(self, embeddings: np.ndarray, passages: Sequence[Passage]) -> None:
    """Adds rows: float32 [B, D] and their B passages.

    Raises:
      UserError: shapes that disagree, an embedding that is not finite, an id
        that is empty or was already added, or a disk that is full.
    """
    expected = (len(passages), self._header['dim'])
    if embeddings.shape != expected or embeddings.dtype != np.float32:
      raise UserError(
          f'embeddings are {embeddings.dtype} {embeddings.shape}: expected '
          f'float32 {expected}, one row a passage.'
      )
    finite = np.isfinite(embeddings).all(axis=1)
    for passage, is_finite in zip(passages, finite):
      self._check_passage(passage, is_finite)
    with _writing(self._partial):
      self._embeddings.write(np.ascontiguousarray(embeddings).data)
      for passage in passages:
        line = json.dumps(dataclasses.asdict(passage)).encode() + b'\n'
        self._passages.write(line)
        self._offsets.append(self._offsets[-1] + len(line))

  def commit(self) -> None:
    """Completes the index and puts it in the place of an older one.

    Raises:
      UserError: no passage was added, or the disk cannot be written.
    """
    if not self._row_of_id:
      raise UserError(
          f'{self._folder}: the corpus is empty: expected at least one passage.'
      )
    self._header['passages'] = len(self._row_of_id)
    self._header['passages_bytes'] = self._offsets[-1]
    with _writing(self._folder):
      self._write_array_header()
      for file in (self._embeddings, self._passages):
        file.flush()
        os.fsync(file.fileno())
      self._open_files.close()
      with open(self._partial / _OFFSETS, 'wb') as file:
        np.save(file, np.array(self._offsets, np.int64))
        os.fsync(file.fileno())
      with open(self._partial / _HEADER, 'w', encoding='utf-8') as file:
        json.dump(self._header, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
      self._replace()

  def abort(self) -> None:
    """Closes the files and deletes what was not committed."""
    with contextlib.suppress(OSError):
      self._open_files.close()
    with contextlib.suppress(OSError):
      _remove(self._partial)

  def _replace(self) -> None:
    if self._folder.exists():
      _remove(self._aside)
      os.rename(self._folder, self._aside)
    os.rename(self._partial, self._folder)
    _remove(self._aside)

  def _write_array_header(self) -> None:
    """Writes the header of embeddings.npy for the rows that there are."""
    # NumPy pads the header so that the first axis can grow in place.
    self._embeddings.seek(0)
    np.lib.format.write_array_header_1_0(
        self._embeddings,
        {
            'shape': (self._header['passages'], self._header['dim']),
            'fortran_order': False,
            'descr': '<f4',
        },
    )

  def _check_passage(self, passage: Passage, is_finite: bool) -> None:
    row = len(self._row_of_id)
    first = self._row_of_id.setdefault(passage.id, row)
    if first != row:
      raise UserError(
          f'passage id {passage.id!r} stands at corpus rows {first} and {row}: '
          'ids must be unique. Remove or rename one of the two.'
      )
    if not passage.id:
      raise UserError(f'corpus row {row} has an empty passage id.')
    if not is_finite:
      raise UserError(
          f'the embedding of passage {passage.id!r} (row {row}) holds NaN or '
          'infinity. Look at the checkpoint and at its text.'
      )


@dataclasses.dataclass(frozen=True)
class Index:
  """A complete index, read on demand.

  Attributes:
    folder: where it was found.
    header: the object of header.json.
    embeddings: float32 [N, D], memory-mapped and read-only.
    offsets: int64 [N + 1] into `text`, memory-mapped.
    text: the bytes of passages.jsonl, memory-mapped.
  """

  folder: pathlib.Path
  header: Mapping[str, Any]
  embeddings: np.ndarray
  offsets: np.ndarray
  text: np.ndarray

  @classmethod
  def open(
      cls,
      folder: str | os.PathLike[str],
      expect: Mapping[str, Any] | None = None,
  ) -> 'Index':
    """Opens a folder and checks that it is whole and what was asked for.

    Args:
      folder: what `IndexWriter` was given.
      expect: values that fields of the header or of its provenance must have.

    Raises:
      UserError: no index, another format or version, a field that is not as
        expected, or a file that is missing, truncated or half-written.
    """
    folder = _absolute(folder)
    aside = _beside(folder, 'replaced')
    if not folder.exists() and aside.exists():
      # A writer died between its two renames: the older index is the one.
      folder = aside
    header = _read_header(folder / _HEADER)
    _check_fields(folder / _HEADER, header, expect or {})
    rows = header['passages']
    text = _map_bytes(folder / _PASSAGES, header['passages_bytes'])
    return cls(
        folder=folder,
        header=header,
        embeddings=_map_array(
            folder / _EMBEDDINGS, (rows, header['dim']), np.float32
        ),
        offsets=_map_array(folder / _OFFSETS, (rows + 1,), np.int64),
        text=text,
    )

  def __len__(self) -> int:
    return self.header['passages']

  def passage(self, row: int) -> Passage:
    """The passage of a corpus row, 0 <= row < N, or IndexError."""
    if not 0 <= row < len(self):
      raise IndexError(f'corpus row {row}: expected 0 to {len(self) - 1}.')
    line = self.text[self.offsets[row] : self.offsets[row + 1]].tobytes()
    try:
      return Passage(**json.loads(line))
    except (ValueError, TypeError) as e:
      raise UserError(
          f'{self.folder / _PASSAGES}:{row + 1}: not a passage (expected id, '
          f'name, location, text as JSON): {e}. {_AGAIN}'
      ) from e

  def passages(self) -> Iterator[Passage]:
    """All passages in the order of the rows."""
    return (self.passage(row) for row in range(len(self)))

  def ids(self) -> list[str]:
    """The N passage ids, in the order of the rows; they are in memory."""
    return [passage.id for passage in self.passages()]


def _absolute(folder) -> pathlib.Path:
  # A link is followed: it is what it points to that is renamed and deleted.
  return pathlib.Path(os.path.realpath(folder))


def _beside(folder: pathlib.Path, suffix: str) -> pathlib.Path:
  return folder.with_name(f'{folder.name}.{suffix}')


def _check_replaceable(path: pathlib.Path) -> None:
  """Refuses to ever delete a folder that holds anything but an index."""
  if not path.exists():
    return
  others = (
      sorted(set(os.listdir(path)) - _FILES) if path.is_dir() else [path.name]
  )
  if others:
    raise UserError(
        f'{path} is not an index: it holds {others[0]!r}. Expected a new '
        'folder or an older index. Choose another folder.'
    )


def _remove(folder: pathlib.Path) -> None:
  if folder.exists():
    shutil.rmtree(folder)


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except OSError as e:
    raise UserError(f'{path}: cannot write the index: {e.strerror}.') from e


def _read_header(path: pathlib.Path) -> dict[str, Any]:
  try:
    header = json.loads(path.read_text(encoding='utf-8'))
  except OSError as e:
    raise UserError(
        f'{path}: no index here ({e.strerror}): expected a folder written by '
        '`dualenc encode`. Run it first, or give the right folder.'
    ) from e
  except ValueError as e:
    raise UserError(f'{path}: not JSON ({e}). {_AGAIN}') from e
  if not isinstance(header, dict) or header.get('format') != FORMAT:
    raise UserError(
        f'{path}: not the header of an index: expected format {FORMAT!r}. '
        f'{_AGAIN}'
    )
  if header.get('version') != VERSION:
    raise UserError(
        f'{path}: format version is {header.get("version")!r}: this program '
        f'reads version {VERSION}. {_AGAIN}'
    )
  for name in ('passages', 'dim', 'passages_bytes'):
    if not isinstance(header.get(name), int):
      raise UserError(
          f'{path}: field {name!r} is {header.get(name)!r}: expected a whole '
          f'number. {_AGAIN}'
      )
  return header


def _check_fields(path, header, expect) -> None:
  found = {**header.get('provenance', {}), **header}
  wrong = [
      f'{name} is {found.get(name)!r}, expected {value!r}'
      for name, value in expect.items()
      if name not in found or found[name] != value
  ]
  if wrong:
    raise UserError(f'{path}: {"; ".join(wrong)}. {_AGAIN}')


def _map_array(path, shape, dtype) -> np.ndarray:
  try:
    array = np.load(path, mmap_mode='r', allow_pickle=False)
  except (OSError, ValueError, EOFError) as e:
    raise UserError(
        f'{path}: missing, truncated or not an array ({e}). {_AGAIN}'
    ) from e
  if array.shape != shape or array.dtype != dtype:
    raise UserError(
        f'{path}: holds {array.dtype} {array.shape}, but the header says '
        f'{np.dtype(dtype)} {shape}. {_AGAIN}'
    )
  return array


def _map_bytes(path: pathlib.Path, size: int) -> np.ndarray:
  try:
    found = path.stat().st_size
  except OSError as e:
    raise UserError(f'{path}: cannot be read: {e.strerror}. {_AGAIN}') from e
  if found != size:
    raise UserError(
        f'{path}: has {found} bytes, but the header says {size}. {_AGAIN}'
    )
  return np.memmap(path, np.uint8, mode='r')
