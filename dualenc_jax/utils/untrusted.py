"""Checks of files that a stranger may have made: names, sizes, contents.

A link is followed, as those of a hub's cache must be, to whatever regular file
it leads to. The content of a file, though, leads to nothing outside of its
folder.
"""

import io
import math
import os
import pathlib
import re
import stat
from typing import Any
import zlib

from dualenc_jax.utils.errors import UserError

# Control characters that a terminal obeys or a browser drops, and characters
# that turn the order of letters, such as U+202E. Tabs and line ends may stay.
_CONTROLS = re.compile(
    '[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]'
)


def is_remote(path: str | os.PathLike[str]) -> bool:
  """Whether it is in a bucket, where there are no special files."""
  return '://' in os.fspath(path)


def is_file(path: Any) -> bool:
  """Whether it is a regular file, or a link to one; of gs://, any file."""
  return path.is_file() if is_remote(path) else os.path.isfile(path)


def explain_path(path: Any) -> str:
  """Describes a path that is not a regular file, for an error."""
  if is_remote(path) or not os.path.lexists(path):
    is_relative = not is_remote(path) and not os.path.isabs(path)
    return f'there is no file {path}{f" in {os.getcwd()}" * is_relative}'
  if not os.path.exists(path):
    return f'{path} is a link that leads to nothing'
  kind = 'a folder' if os.path.isdir(path) else 'a pipe, a socket or a device'
  return f'{path} is not a regular file but {kind}'


def open_file(path: Any, again: str = '') -> io.BufferedReader:
  """Opens a file to read, local or gs:// of etils, without waiting for others.

  `again`, here and below, is what the user can do about an error.

  Raises:
    UserError: it is a folder, a pipe, a socket or a device.
    OSError: it cannot be opened.
  """
  if is_remote(path):
    return path.open('rb')
  # A pipe would wait for its writer.
  file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 'rb')
  if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
    file.close()
    raise UserError(f'{path} is not a regular file. {again}'.strip())
  return file


def read(path: Any, largest: int, again: str = '') -> bytes:
  """A file of at most so many bytes; arguments and errors of `open_file`."""
  with open_file(path, again) as file:
    size = 0 if is_remote(path) else os.fstat(file.fileno()).st_size
    if size > largest:
      raise UserError(
          f'{path} has {size:,} bytes; no file of its kind has more than'
          f' {largest:,}. {again}'.strip()
      )
    return file.read()


def check_folder(
    folder: str | os.PathLike[str], again: str = '', deep: bool = True
) -> None:
  """Checks what is in a folder before another library opens it.

  With `deep` its folders are looked into, too.

  Raises:
    UserError: it has a pipe, a socket, a device, or a link that leads to one.
  """
  if is_remote(folder):
    return
  seen = set()
  for parent, inner, names in os.walk(folder, followlinks=True):
    # A link may lead to a folder that it is in.
    place = os.path.realpath(parent)
    if not deep or place in seen:
      inner.clear()
    seen.add(place)
    for name in names:
      path = os.path.join(parent, name)
      if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f'{path} is not a regular file. {again}'.strip())


def check_name(name: Any, where: Any, again: str = 'Copy it again.') -> str:
  """Checks a name, read from the file `where`, of a file in the same folder.

  Raises:
    UserError: it is no string, is absolute, leads out of the folder, or is
      none that a file can have.
  """
  if (
      isinstance(name, str)
      and name.isprintable()
      and '\\' not in name
      and not pathlib.PurePosixPath(name).is_absolute()
      and '..' not in pathlib.PurePosixPath(name).parts
  ):
    return name
  raise UserError(
      f'{where} is {quote(name)}; expected a name within its own folder.'
      f' Nothing of it was read. {again}'
  )


def quote(value: Any) -> str:
  """A value in a message, cut where it is long."""
  text = repr(value)
  return text[:80] + '...' * (len(text) > 80)


def parse_number(value: Any) -> float:
  """A number, or the number that ASCII spells; NaN for all else, as '1_0'."""
  if isinstance(value, str) and ('_' in value or not value.isascii()):
    return math.nan
  try:
    return float(value)
  except (TypeError, ValueError, OverflowError):
    return math.nan


def is_digits(text: str) -> bool:
  """Whether it is digits of ASCII alone; `str` and `\\d` take others, too."""
  return text.isascii() and text.isdigit()


def escape_controls(text: str) -> str:
  """The text with control characters as escapes, '\\u202e' say."""
  return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def escape(text: str) -> str:
  """The text with escapes for what does not print, line ends among it."""
  return ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def decompress(content: bytes, largest: int, where: Any, again: str) -> bytes:
  """Decompresses by zlib; UserError for damaged, cut off or longer content."""
  machine = zlib.decompressobj()
  try:
    result = machine.decompress(content, largest + 1)
  except zlib.error as e:
    raise UserError(f'{where} is damaged: {e}. {again}') from e
  if len(result) > largest:
    text = f'{where} has more than {largest:,} bytes once decompressed. {again}'
    raise UserError(text)
  if not machine.eof:
    raise UserError(f'{where} is cut off. {again}')
  return result
