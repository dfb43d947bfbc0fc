"""Source files of readers: found, fingerprinted and read line by line."""

from collections.abc import Iterator, Sequence
import gzip
import hashlib
import os
import pathlib
import zlib

from dualenc_jax.errors import SourceUnavailable, UserError

# A file beyond this is fingerprinted by its size and blocks spread over it.
WHOLE = 2**28
_BLOCKS = 64
_BLOCK = 2**20
_BOM = b'\xef\xbb\xbf'


def folder_of(
    task: str, root: str | None, data_root: str | None
) -> pathlib.Path | str | None:
  """The folder of a task's files: `root`, else its own in `data_root`."""
  if root is not None or data_root is None:
    return root
  return pathlib.Path(data_root) / task


def find(
    root: str | os.PathLike | None,
    names: Sequence[str],
    task: str,
    hint: str,
) -> pathlib.Path:
  """The first of these files that is there.

  Args:
    root: folder of the task's files, None if the user has not given one.
    names: paths below it, the preferred one first.
    task: its name, for the error.
    hint: where to get the file and how large it is, for the error.

  Raises:
    SourceUnavailable: none is there.
  """
  if root is None:
    raise SourceUnavailable(
        f'{task} needs {names[0]}, and no folder is given: set'
        f' --gin.DATA_ROOT, below which {task} has a folder of its own. {hint}'
    )
  root = pathlib.Path(root).expanduser()
  for name in names:
    if (root / name).is_file():
      return root / name
  others = f' (or {", ".join(names[1:])})' if len(names) > 1 else ''
  raise SourceUnavailable(
      f'{task}: there is no file {root / names[0]}{others}. {hint}'
  )


def fingerprint(paths: Sequence[pathlib.Path]) -> str:
  """Hash of the files' content, in this order.

  Of a file larger than `WHOLE` bytes it is of the size and of 64 blocks of one
  MiB, at equal distances, the first and the last among them.
  """
  digest = hashlib.sha256()
  for path in paths:
    size = path.stat().st_size
    digest.update(f'{size}\0'.encode())
    with open(path, 'rb') as stream:
      if size <= WHOLE:
        digest.update(hashlib.file_digest(stream, 'sha256').digest())
        continue
      for block in range(_BLOCKS):
        stream.seek((size - _BLOCK) * block // (_BLOCKS - 1))
        digest.update(stream.read(_BLOCK))
  return digest.hexdigest()


def lines(path: pathlib.Path) -> Iterator[tuple[int, bytes]]:
  """Yields (number from 1 on, line without its end) of a plain or .gz file.

  A byte order mark and blank lines are left out.

  Raises:
    UserError: damaged or truncated gzip.
  """
  return ((n, line) for n, line in every_line(path) if line.strip())


def every_line(path: pathlib.Path) -> Iterator[tuple[int, bytes]]:
  """`lines` with the blank ones."""
  opener = gzip.open if path.suffix == '.gz' else open
  with opener(path, 'rb') as stream:
    number = 0
    try:
      for number, line in enumerate(stream, 1):
        line = line.rstrip(b'\r\n')
        yield number, line.removeprefix(_BOM) if number == 1 else line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
      raise UserError(
          f'{path} is a damaged gzip file, after line {number}: {error}. Copy'
          ' or download it again.'
      ) from error
