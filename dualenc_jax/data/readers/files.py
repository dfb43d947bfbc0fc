"""Files of data sets: opened, read as streams, found and identified."""

import abc
from collections.abc import Iterator, Sequence
import contextlib
import functools
import gzip
import hashlib
import io
import os
import pathlib
import re
from typing import Any
import zlib

from dualenc_jax.data.dataset import Dataset
from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.errors import SourceUnavailable, UserError

# A file beyond this is fingerprinted by its size and blocks spread over it.
WHOLE = 2**28
_BLOCKS, _BLOCK = 64, 2**20
_DAMAGED_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)
# Bytes: a packed file of a megabyte may be a line of a gigabyte.
LONGEST_LINE = 2**26
_UTF_16 = re.compile(rb'\xff\xfe|\xfe\xff|(\0[^\0]){4}|([^\0]\0){4}', re.DOTALL)
NOT_UTF8 = (
    'not UTF-8. Convert the file, from Latin-1 perhaps: iconv -f WINDOWS-1252'
    ' -t UTF-8 OLD > NEW'
)
# Patterns of the signs before an element of an array, and after the last one.
_FIRST = re.compile(r'\s*\[\s*'), re.compile(r'\s*\[\s*\]\s*')
_NEXT = re.compile(r'\s*,\s*'), re.compile(r'\s*\]\s*')


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[Any]:
  """Yields a binary file as it is; UserError where it cannot be read."""
  try:
    file = untrusted.open_file(path, 'Give a file.')
  except OSError as e:
    raise UserError(f'{path} cannot be read: {e.strerror or e}.') from e
  with file:
    yield file


@contextlib.contextmanager
def unpacked(path: pathlib.Path) -> Iterator[Any]:
  """Yields a binary file, unpacked where its name ends with .gz."""
  with opened(path) as file:
    yield gzip.GzipFile(fileobj=file) if path.suffix == '.gz' else file


def lines(
    path: pathlib.Path, blank: bool = False
) -> Iterator[tuple[int, bytes]]:
  """Yields (number from 1 on, line without its end) of a plain or .gz file.

  A byte order mark is left out, and so are blank lines unless `blank`.

  Raises:
    UserError: damaged or truncated gzip, a line without an end, or UTF-16.
  """
  with unpacked(path) as stream:
    number = 0
    read = functools.partial(stream.readline, LONGEST_LINE + 1)
    try:
      for number, line in enumerate(iter(read, b''), 1):
        if len(line) > LONGEST_LINE:
          raise UserError(
              f'{path}:{number}: a line of more than {LONGEST_LINE >> 20} MiB.'
              ' Expected one row per line.'
          )
        line = line.rstrip(b'\r\n')
        if number == 1:
          check_encoding(path, line)
          line = line.removeprefix(b'\xef\xbb\xbf')
        if blank or line.strip():
          yield number, line
    except _DAMAGED_GZIP as error:
      raise UserError(
          f'{path} is a damaged gzip file, after line {number}: {error}. Copy'
          ' or download it again.'
      ) from error


def elements(
    path: pathlib.Path, size: int = 2**20, longest: int = 2**26
) -> Iterator[tuple[int, Any]]:
  """Yields (number from 1 on, element) of an array in a plain or .gz file.

  Memory holds about two elements and the `size` characters that are read at a
  time. An element that is not whole after `longest` is not JSON.

  Raises:
    UserError: damaged gzip, a file that is cut off, not UTF-8, or not an array.
  """
  count, text, at = 0, '', 0  # `text` is read on where `at` comes to its end.

  def error(what: str) -> UserError:
    return UserError(
        f'{path}, after {count:,} elements: {what}. Expected a JSON array. If'
        ' the file was cut off, copy or download it again.'
    )

  with unpacked(path) as f, io.TextIOWrapper(f, 'utf-8-sig') as stream:
    while True:
      before, last = _NEXT if count else _FIRST
      begin, end, reason = before.match(text, at), len(text), 'no element'
      try:
        if begin:
          value, end = json_file.DECODER.raw_decode(text, begin.end())
          json_file.check_depth(text[begin.end() : end], value)
      except json_file.RepeatedKey as failed:
        raise error(str(failed)) from None
      except (ValueError, RecursionError) as failed:
        begin, reason = None, getattr(failed, 'msg', None) or str(failed)
      # A number may go on in the next block, after as much as 'e-'.
      if len(text) - end < 3 and len(text) - at <= longest:
        try:
          # As much again as is left, so that a long value is not parsed often.
          block = stream.read(max(size, len(text) - at))
        except UnicodeDecodeError as failed:
          check_encoding(path, failed.object)
          raise error(NOT_UTF8) from None
        except _DAMAGED_GZIP as damage:
          raise error(f'a damaged gzip file: {damage}') from damage
        if block:
          text, at = text[at:] + block, 0
          continue
      if begin is None:
        if last.fullmatch(text, at):
          return
        raise error(f'not JSON ({reason})')
      at = end
      count += 1
      yield count, value


def check_encoding(path: pathlib.Path, begin: bytes) -> None:
  """Raises UserError where a file of text begins as in UTF-16."""
  if _UTF_16.match(begin):
    raise UserError(
        f'{path}:1: the file is in UTF-16, as Excel\'s "Unicode text" is.'
        ' Expected UTF-8. Save it so, or convert it: iconv -f UTF-16 -t UTF-8'
        ' OLD > NEW.'
    )


class FilesDataset(Dataset):
  """A dataset whose splits are known by the content of their files."""

  @abc.abstractmethod
  def paths(self, split: str) -> Sequence[pathlib.Path]:
    """All files that a split is read from.

    Raises:
      UserError: a split or file is missing; SourceUnavailable if the token
        cache of another machine may serve.
    """

  def check_split(self, split: str) -> None:
    self.paths(split)

  def fingerprint(self, split: str) -> str:
    return fingerprint(self.paths(split))


def task_folder(
    task: str, root: str | None, data_root: str | None
) -> pathlib.Path | None:
  """The folder of a task's files: `root`, else its own in `data_root`."""
  if root is None and data_root is None:
    return None
  folder = pathlib.Path(data_root or '', task) if root is None else root
  return pathlib.Path(folder).expanduser()


def find(
    root: str | os.PathLike | None, names: Sequence[str], task: str, hint: str
) -> pathlib.Path:
  """The first of several names of a file that exists.

  `root` is None if the user has given no folder; `hint` says where to get the
  file and how large it is. Raises SourceUnavailable.
  """
  if root is None:
    raise SourceUnavailable(
        f'{task} needs {names[0]}, and no folder is given: set'
        f' --gin.DATA_ROOT, below which {task} has a folder of its own. {hint}'
    )
  paths = [pathlib.Path(root).expanduser() / name for name in names]
  for path in paths:
    if path.is_file():
      return path
  others = f' (or {", ".join(names[1:])})' if len(names) > 1 else ''
  raise SourceUnavailable(
      f'{task}: {untrusted.explain_path(paths[0])}{others}. {hint}'
  )


def fingerprint(paths: Sequence[pathlib.Path]) -> str:
  """Hashes the content of files, in this order.

  A file larger than `WHOLE` bytes counts by its size and 64 blocks of one MiB
  at equal distances, the first and the last block among them.
  """
  digest = hashlib.sha256()
  for path in paths:
    size = path.stat().st_size
    digest.update(f'{size}\0'.encode())
    with opened(path) as stream:
      if size <= WHOLE:
        digest.update(hashlib.file_digest(stream, 'sha256').digest())
        continue
      for block in range(_BLOCKS):
        stream.seek((size - _BLOCK) * block // (_BLOCKS - 1))
        digest.update(stream.read(_BLOCK))
  return digest.hexdigest()
