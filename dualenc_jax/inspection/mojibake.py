"""Detection of text that was decoded with the wrong encoding."""

import re

# What the bytes 0x80 to 0xbf, which continue a UTF-8 character, become when
# read as Latin-1 or as Windows-1252.
_NEXT = '[\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]'
_SUSPECT = re.compile(
    # Two bytes: a letter of Western Europe, or two of any other alphabet. One
    # alone may be right: Å².
    f'[ÂÃ]{_NEXT}'
    f'|(?:[Ä-ß]{_NEXT}){{2}}'
    # Three bytes, of punctuation most of all, and four, of emoji.
    f'|â{_NEXT}{_NEXT}'
    f'|ðŸ{_NEXT}{_NEXT}'
    # A byte order mark.
    '|ï»¿'
    # Control characters that nobody types; NEL ends lines on some machines.
    '|[\x80-\x84\x86-\x9f]'
)
_AROUND = 15


def find(text: str) -> str | None:
  """The first suspect place of a text with what is around it, or None."""
  found = _SUSPECT.search(text)
  return None if found is None else excerpt(text, *found.span())


def find_replaced(text: str) -> str | None:
  """The same for U+FFFD, which stands for bytes that could not be decoded."""
  position = text.find('\ufffd')
  return None if position < 0 else excerpt(text, position, position + 1)


def excerpt(text: str, start: int, end: int) -> str:
  """A part of a text and a little around it, on one line."""
  before = '...' if start > _AROUND else ''
  after = '...' if len(text) > end + _AROUND else ''
  part = text[max(start - _AROUND, 0) : end + _AROUND]
  return before + printable(part) + after


def printable(text: str) -> str:
  """The text with escapes for what does not print, line ends among it."""
  return ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)
