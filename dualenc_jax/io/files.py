"""Folders, and files that appear whole or not at all."""

import contextlib
import os
import pathlib

from dualenc_jax.errors import UserError


def write(path: pathlib.Path, content: str | bytes) -> None:
  """Writes a file in UTF-8, replacing what was there.

  Raises:
    UserError: it cannot be written, or the text has half a surrogate pair,
      which UTF-8 has no bytes for.
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
  partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
  try:
    partial.write_bytes(content)
    os.replace(partial, path)
  except OSError as e:
    raise _unwritable(path, e) from e
  finally:
    with contextlib.suppress(OSError):
      partial.unlink()


def make_folder(folder: pathlib.Path) -> None:
  """Makes a folder and those around it, if they are not there.

  Raises:
    UserError: it cannot be made.
  """
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as e:
    raise _unwritable(folder, e) from e


def _unwritable(path: pathlib.Path, error: OSError) -> UserError:
  return UserError(
      f'{path} cannot be written: {error.strerror or error}. Make room there,'
      ' or give another folder.'
  )
