"""Malice, made of a good file: odd tokens, numbers and JSON values."""

import copy
import json
import random
import re
from typing import Any

# What parsers trip over.
_TOKENS = (
    b'', b'\x00', b'\xff', b'\xed\xa0\x80', b'\xef\xbb\xbf', b'\t', b'\n',
    b'\r', b'\r\n', b'\x0b', b'\x1c', b'\x85', '\u2028'.encode(), b'"', b'""',
    b'\\', b'\\ud800', b'\\u0000', b',', b':', b'{', b'}', b'[', b']', b'{}',
    b'[]', b'null', b'true', b'NaN', b'Infinity', b'1e999', b'-1', b'-0',
    b'0.5', b'1_0', '\u0663'.encode(), b'9' * 19, b'9' * 400, b'9' * 5000,
    b'[' * 300, b'[' * 900, b'[' * 100_000, b'{"a":' * 20_000, b'../' * 9,
    b'/dev/zero', b'A' * 70_000,
)
_VALUES = (
    None, True, False, 0, 1, -1, 2, 255, 256, 2**31, 2**32 - 1, 2**53, 2**63,
    2**64, 10**30, 10**400, -(10**30), 0.5, -0.5, 1e308, float('inf'),
    float('nan'), '', ' ', 'a', '\x00', '\ud800', '\n', '\t', '1', '0',
    '../../x', '/dev/zero', 'nan', 'a' * 5000, [], {}, [[]], [{}], {'': ''},
    [None], [0, 1], [1, 0], [''], ['a', 'b'], {'a': 1}, {'a': {}}, [1] * 1000,
)
_DEPTHS = (10, 100, 300, 800, 950, 990, 3000, 100_000)
_NUMBER = re.compile(rb'-?\d+(?:\.\d+)?(?:e-?\d+)?')
_NUMBERS = (
    b'0', b'-1', b'1', b'3', b'2147483648', b'4294967296', b'1000000000000',
    b'9223372036854775807', b'9223372036854775808', b'18446744073709551616',
    b'1e999', b'NaN', b'-Infinity', b'0.5', b'true', b'null', b'9' * 5000,
)


def changed(content: bytes, rng: random.Random) -> bytes:
  """Content in place of this one."""
  if rng.random() < 0.6:
    found = _json(content, rng)
    if found is not None:
      return found
  return rng.choice((_insert, _number))(content, rng)


def _insert(content: bytes, rng: random.Random) -> bytes:
  place = rng.randrange(len(content) + 1)
  return content[:place] + rng.choice(_TOKENS) + content[place:]


def _number(content: bytes, rng: random.Random) -> bytes:
  found = list(_NUMBER.finditer(content))
  if not found:
    return _insert(content, rng)
  start, end = rng.choice(found).span()
  return content[:start] + rng.choice(_NUMBERS) + content[end:]


def _json(content: bytes, rng: random.Random) -> bytes | None:
  """Another value somewhere in the file, or a line of it, that is JSON."""
  lines = content.splitlines(keepends=True)
  for chosen in (range(len(lines)), [rng.randrange(len(lines) or 1)]):
    text = b''.join(lines[i] for i in chosen)
    try:
      new = _text(json.loads(text), rng).encode('utf-8', 'surrogatepass')
    except (ValueError, RecursionError):
      continue
    rest = lines[chosen[-1] + 1 :] if chosen else []
    return b''.join([*lines[: chosen[0]], new, b'\n', *rest])
  return None


def _text(value: Any, rng: random.Random) -> str:
  """The text of a JSON value with something else in it."""
  root = [value]
  places = list(_places(root))
  holder, key = rng.choice(places)
  how = rng.random()
  if how < 0.1 and len(places) > 1:
    del holder[key]
  elif how < 0.3:
    other, of_other = rng.choice(places)
    holder[key] = copy.deepcopy(other[of_other])
  elif how < 0.4:
    holder[key] = '@deep@'
  else:
    holder[key] = rng.choice(_VALUES)
  text = json.dumps(root[0] if root else None)
  if rng.random() < 0.3:
    text = text.encode().decode('unicode_escape')
  depth = rng.choice(_DEPTHS)
  start, end = rng.choice((('[', ']'), ('{"a":', '}')))
  deep = start * depth + ('1' if start != '[' else '') + end * depth
  return text.replace('"@deep@"', deep)


def _places(value: Any):
  """Yields (list or object, key) of all values in one."""
  keys = value if isinstance(value, dict) else range(len(value))
  for key in keys:
    yield value, key
    if isinstance(value[key], (dict, list)):
      yield from _places(value[key])
