"""The words of texts of any script, for all that counts or compares words.

A word is a run of letters, marks, numbers and underscores of the text in NFKC.
Nothing else joins words, so an apostrophe parts them in all its forms.
Characters that are not seen (joiners, soft hyphens, variation selectors) or may
be left out (the points of Arabic, Hebrew and Syriac, the tatweel) go, and
decimal digits are those of ASCII.

In scripts without spaces between words each pair of neighbouring characters is
a word, a character being a letter with its marks; one alone is a word, too.
Korean counts among them, for its particles stand at the words that they follow.
"""

from collections.abc import Sequence
import itertools
import re
import unicodedata

_RUN = re.compile(r'\w+')
_BLOCKS = (
    r'\u0E00-\u0EFF'  # Thai, Lao
    r'\u1000-\u109F\uA9E0-\uA9FF\uAA60-\uAA7F'  # Burmese
    r'\u1780-\u17FF\u1950-\u19DF\u1A20-\u1AAF'  # Khmer, Tai
    r'\u1B00-\u1B7F\uA980-\uA9DF'  # Balinese, Javanese
    r'\u3005-\u312F\u31A0-\u31FF'  # Japanese kana, bopomofo
    r'\u3400-\u4DBF\u4E00-\u9FFF\uF900-\uFAFF\U00020000-\U0003FFFF'  # Chinese
    r'\uAC00-\uD7A3'  # Korean
)
_UNSPACED = re.compile(f'[{_BLOCKS}]')
_PARTS = re.compile(f'[{_BLOCKS}]+|[^{_BLOCKS}]+')
# NFKC makes a space and a mark of an accent that stands alone.
_ORPHANS = re.compile(r'(?<!\S)[\u0300-\u036F\u3099\u309A]+')


def words(text: str) -> list[str]:
  """The words of a text, whatever their case."""
  return fold(split(text))


def split(text: str) -> list[str]:
  """The words of a text in the case that they are written in."""
  if text.isascii():
    return _RUN.findall(text)
  # NFKC would append the letters TM to the word.
  text = unicodedata.normalize('NFKC', text.replace('™', ' '))
  text = _ORPHANS.sub('', text.translate(_SPACED))
  if not _UNSPACED.search(text):
    return text.split()
  result: list[str] = []
  for run in text.split():
    for part in _PARTS.findall(run):
      if _UNSPACED.match(part):
        characters = _CHARACTER.findall(part)
        pairs = map(''.join, itertools.pairwise(characters))
        result += list(pairs) or characters
      else:
        result.append(part)
  return result


def fold(words: Sequence[str]) -> list[str]:
  """The same words without their case; 'ß' is 'ss', and 'İ' is 'i'."""
  folded = unicodedata.normalize('NFC', ' '.join(words).casefold())
  return folded.replace('i\u0307', 'i').split()


class _Spaced(dict):
  """Table for `str.translate` that leaves spaces for what is of no word."""

  def __missing__(self, code: int) -> str:
    self[code] = _spaced(chr(code))
    return self[code]


def _spaced(char: str) -> str:
  category = unicodedata.category(char)
  is_point = category == 'Mn' and (
      '\u0591' <= char < '\u0780' or '\u08CA' <= char <= '\u08FF'
  )
  if is_point or category == 'Cf' and char != '\u200B' or char in _UNSEEN:
    return ''
  if category == 'Nd':
    return str(unicodedata.decimal(char))
  is_word = category[0] in 'LN' or category in ('Mn', 'Mc') or char == '_'
  return char if is_word and char not in _APOSTROPHES else ' '


_SPACED = _Spaced()
# Letters by Unicode, which Hawaiian, Ukrainian and Uzbek text has for both.
_APOSTROPHES = '\u02BB\u02BC'
# Tatweel, variation selectors and other marks that are not shown.
_UNSEEN = frozenset(map(chr, (
    0x34F, 0x640, 0x17B4, 0x17B5, *range(0x180B, 0x1810),
    *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0),
)))
_MARKS = ''.join(
    char
    for char in map(chr, range(0xE00, 0xAA80))
    if unicodedata.category(char)[0] == 'M' and _UNSPACED.match(char)
)
_CHARACTER = re.compile(f'.[{_MARKS}]*')
