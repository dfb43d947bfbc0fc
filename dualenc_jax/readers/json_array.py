"""A JSON array in a file of any size, read one element at a time."""

from collections.abc import Iterator
import gzip
import io
import json
import pathlib
from typing import Any
import zlib

from dualenc_jax.errors import UserError

_BLOCK = 2**20  # Characters that are read at a time.
_LONGEST = 2**26  # What is not a whole element by then is not JSON.
_SPACE = ' \t\r\n'


def elements(path: pathlib.Path) -> Iterator[tuple[int, Any]]:
  """Yields (number from 1 on, element) of an array in a plain or .gz file.

  Memory holds about two elements and a block of the file.

  Raises:
    UserError: damaged gzip, a file that is cut off, not UTF-8, or not an array.
  """
  opener = gzip.open if path.suffix == '.gz' else open
  with io.TextIOWrapper(opener(path, 'rb'), 'utf-8-sig') as stream:
    text = _Text(path, stream)
    text.take('[')
    if text.peek() != ']':
      yield 1, text.value()
      while text.take(',]') == ',':
        yield text.values + 1, text.value()
    else:
      text.take(']')
    if text.peek():
      raise text.error('expected nothing after the array')


class _Text:
  """The text of a stream, taken piece by piece.

  Attributes:
    values: how many have been taken.
  """

  def __init__(self, path: pathlib.Path, stream: io.TextIOBase):
    self.values = 0
    self._path = path
    self._stream = stream
    self._decoder = json.JSONDecoder()
    self._text = ''  # What has been read, without what was dropped.
    self._at = 0  # The next character in it.

  def peek(self) -> str:
    """The next character that is not white space; '' at the end."""
    while True:
      while self._at < len(self._text) and self._text[self._at] in _SPACE:
        self._at += 1
      if self._at < len(self._text):
        return self._text[self._at]
      if not self._grow():
        return ''

  def take(self, expected: str) -> str:
    """The next character that is not white space, one of `expected`."""
    found = self.peek()
    if not found or found not in expected:
      wanted = ' or '.join(f"'{character}'" for character in expected)
      raise self.error(f'expected {wanted}, found {found!r}')
    self._at += 1
    return found

  def value(self) -> Any:
    """The next value."""
    self.peek()
    while True:
      try:
        value, end = self._decoder.raw_decode(self._text, self._at)
      except (ValueError, RecursionError) as error:
        if len(self._text) - self._at > _LONGEST or not self._grow():
          reason = getattr(error, 'msg', None) or str(error)
          raise self.error(f'not JSON ({reason})') from None
        continue
      # A number may go on in the next block, after as much as 'e-'.
      if len(self._text) - end < 3 and self._grow():
        continue
      self._at = end
      self.values += 1
      return value

  def error(self, what: str) -> UserError:
    return UserError(
        f'{self._path}, after {self.values:,} elements: {what}. Expected a JSON'
        ' array. If the file was cut off, copy or download it again.'
    )

  def _grow(self) -> bool:
    """Reads on; False at the end of the file."""
    rest = self._text[self._at :]
    # As much again as there is, so that a long value is not parsed often.
    try:
      block = self._stream.read(max(_BLOCK, len(rest)))
    except UnicodeDecodeError:
      raise self.error('not UTF-8') from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
      raise self.error(f'a damaged gzip file: {error}') from error
    if not block:
      return False
    self._text, self._at = rest + block, 0
    return True
