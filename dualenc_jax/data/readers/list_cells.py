"""Lists that are text, as those in cells of CSV files are."""

import ast
import io
import re
import tokenize
from typing import Any

from dualenc_jax.data.readers.rows import BadRow
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import UserError

_OF_TEXTS = re.compile(r'''\[\s*(["'].*["']\s*,?\s*)?\]''', re.DOTALL)


def is_one(text: str) -> bool:
  """Whether a text is a list of texts in quotes, or of none, by its looks."""
  text = text.strip()
  return text[:1] == '[' and bool(_OF_TEXTS.fullmatch(text))


def parse(text: str) -> Any:
  """The value that a text is in JSON, else as a literal of Python; raises
  ValueError for neither, and for two texts without a comma between them."""
  try:
    return json_file.loads(text)
  except (UserError, ValueError):
    pass
  try:
    value = ast.literal_eval(text)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    kinds = [t.type for t in tokens if t.type != tokenize.NL]
  except (SyntaxError, RecursionError, MemoryError) as error:
    raise ValueError(str(error)) from None
  # Python makes one text of two.
  if (tokenize.STRING,) * 2 in zip(kinds, kinds[1:]):
    raise ValueError('no comma between two texts')
  return value


def read(name: str, value: Any) -> Any:
  """The list that a value of a column is as text, else the value itself.

  Raises BadRow for a list of texts that is of neither JSON nor Python, as
  NumPy prints them.
  """
  if not isinstance(value, str) or value.strip()[:1] != '[':
    return value
  try:
    found = parse(value.strip())
  except ValueError as error:
    if is_one(value):
      raise BadRow(
          f'{name!r} is not a list of JSON or Python',
          f'{name!r} is not a list of JSON or Python ({error}); write it as'
          ' JSON, ["a", "b"]',
      ) from None
    return value
  return found if isinstance(found, list) else value
