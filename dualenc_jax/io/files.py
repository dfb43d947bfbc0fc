"""Folders, and files that appear whole or not at all."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import tempfile
from typing import Any, IO

from dualenc_jax.errors import UserError


@contextlib.contextmanager
def writing(
    path: str | os.PathLike[str], instead: str = 'another folder'
) -> Iterator[None]:
  """Explains what the system refuses in a block that writes.

  Args:
    path: what is written, for the message.
    instead: what the user may give in its place: 'another --out'.

  Raises:
    UserError: for any OSError of the block.
  """
  try:
    yield
  except OSError as e:
    raise UserError(
        f'{path} cannot be written: {e.strerror or e}. Make room there, or'
        f' give {instead}.'
    ) from e


@contextlib.contextmanager
def replacing(path: pathlib.Path, sync: bool = False) -> Iterator[IO[bytes]]:
  """Yields a new binary file, which replaces `path` when the block succeeds.

  It grows beside `path` and is removed after an error. Wrap it in `writing` to
  have errors explained.

  Args:
    path: of the complete file.
    sync: whether the content is on the disk before the file appears, so that a
      machine that loses power cannot leave half of it.
  """
  partial = path.with_name(f'.{path.name}.{os.getpid()}.partial')
  try:
    with partial.open('wb') as file:
      yield file
      if sync:
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
  finally:
    with contextlib.suppress(OSError):
      partial.unlink()


def sweep(folder: pathlib.Path) -> None:
  """Removes what killed processes left of `replacing` in a folder.

  No other process may be writing there.
  """
  for path in folder.glob('.*.partial'):
    path.unlink()


def write(
    path: pathlib.Path,
    content: str | bytes,
    instead: str = 'another folder',
    sync: bool = False,
) -> None:
  """Writes a file, text in UTF-8, replacing what was there.

  Args:
    path: of the file.
    content: of the file.
    instead: as for `writing`.
    sync: as for `replacing`.

  Raises:
    UserError: the file cannot be written, or the text has half a surrogate
      pair, which UTF-8 has no bytes for.
  """
  if isinstance(content, str):
    try:
      content = content.encode('utf-8')
    except UnicodeEncodeError as e:
      near = content[max(e.start - 30, 0) : e.end + 30]
      raise UserError(
          f'{path} cannot be written: its text has half a surrogate pair, in'
          f' {near!r}. Repair the text where it comes from.'
      ) from e
  with writing(path, instead), replacing(path, sync) as file:
    file.write(content)


def write_json(path: pathlib.Path, value: Any, sync: bool = False) -> None:
  """`write` of a value as indented JSON."""
  write(path, json.dumps(value, indent=2) + '\n', sync=sync)


def make_folder(
    folder: pathlib.Path, instead: str = 'another folder'
) -> None:
  """Makes a folder and its parents, unless they exist.

  Raises:
    UserError: the folder cannot be made, or no file in it.
  """
  with writing(folder, instead):
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass


def default_cache_dir() -> pathlib.Path:
  """`$DUALENC_CACHE`, or `dualenc_jax` in the user's cache folder."""
  base = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(
      os.environ.get('DUALENC_CACHE') or pathlib.Path(base) / 'dualenc_jax'
  )
