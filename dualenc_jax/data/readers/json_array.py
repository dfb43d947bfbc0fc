"""Elements of a JSON array in a file of any size, read one at a time."""

from collections.abc import Iterator
import io
import pathlib
import re
from typing import Any

from dualenc_jax.data.readers import text_lines
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import UserError

_SPACE = re.compile(r'[ \t\r\n]*')


def elements(
    path: pathlib.Path, size: int = 2**20, longest: int = 2**26
) -> Iterator[tuple[int, Any]]:
  """Yields (number from 1 on, element) of an array in a plain or .gz file.

  Memory holds about two elements and the `size` characters that are read at a
  time. What is not a whole element after `longest` is not JSON.

  Raises:
    UserError: damaged gzip, a file that is cut off, not UTF-8, or not an array.
  """
  decode = json_file.DECODER.raw_decode
  count, text, at = 0, '', 0  # `text` is read on where `at` comes to its end.

  def error(what: str) -> UserError:
    return UserError(
        f'{path}, after {count:,} elements: {what}. Expected a JSON array. If'
        ' the file was cut off, copy or download it again.'
    )

  def grow() -> bool:
    """Reads on; False at the end of the file."""
    nonlocal text, at
    try:
      # As much again as is left, so that a long value is not parsed often.
      block = stream.read(max(size, len(text) - at))
    except UnicodeDecodeError as failed:
      text_lines.check_encoding(path, failed.object)
      raise error(text_lines.not_utf8(failed.object, failed.start)) from None
    except text_lines.DAMAGED_GZIP as damage:
      raise error(f'a damaged gzip file: {damage}') from damage
    if block:
      text, at = text[at:] + block, 0
    return bool(block)

  def peek() -> str:
    """The next character that is not white space; '' at the end."""
    nonlocal at
    while True:
      space = _SPACE.match(text, at)
      at = space.end() if space else at
      if at < len(text) or not grow():
        return text[at : at + 1]

  def take(*expected: str) -> str:
    nonlocal at
    found = peek()
    if found not in expected:
      wanted = ' or '.join(map(repr, expected))
      raise error(f'expected {wanted}, found {found!r}')
    at += 1
    return found

  with (
      text_lines.unpacked(path) as f,
      io.TextIOWrapper(f, 'utf-8-sig') as stream,
  ):
    take('[')
    more = peek() != ']'
    while more:
      peek()
      try:
        value, end = decode(text, at)
        json_file.check_depth(text[at:end], value)
      except json_file.RepeatedKey as failed:
        raise error(str(failed)) from None
      except (ValueError, RecursionError) as failed:
        if len(text) - at > longest or not grow():
          reason = getattr(failed, 'msg', None) or str(failed)
          raise error(f'not JSON ({reason})') from None
        continue
      # A number may go on in the next block, after as much as 'e-'.
      if len(text) - end < 3 and grow():
        continue
      at = end
      count += 1
      yield count, value
      more = take(',', ']') == ','
    if not count:
      take(']')
    if peek():
      raise error('expected nothing after the array')
