"""Text and JSON of files that may be damaged, with errors that name them."""

from collections.abc import Iterator
import json
import pathlib
from typing import Any

from dualenc_jax.errors import UserError

_LARGEST = 2**63 - 1


def read_text(path: pathlib.Path) -> str:
  """A file of text; raises UserError if it is none or cannot be read."""
  try:
    return path.read_text(encoding='utf-8')
  except (OSError, UnicodeDecodeError) as e:
    reason = getattr(e, 'strerror', None) or e
    raise UserError(f'{path} cannot be read: {reason}.') from e


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """An object of JSON.

  Raises:
    UserError: the file cannot be read or holds something else.
  """
  return _object(read_text(path), str(path))


def read_json_lines(
    path: pathlib.Path,
) -> Iterator[tuple[str, dict[str, Any]]]:
  """Objects of JSON, one a line, each with where it stands.

  Raises:
    UserError: the file cannot be read, or a line holds something else.
  """
  # Not splitlines: JSON may have other ends of lines inside its strings.
  content = read_text(path)
  lines = content.removesuffix('\n').split('\n') if content.strip() else []
  for number, line in enumerate(lines, 1):
    where = f'{path}, line {number}'
    yield where, _object(line, where)


def require(value: Any, where: Any, /, **types: Any) -> None:
  """Checks that an object has fields of these types.

  Raises:
    UserError: one is missing, of another type, or a whole number of more than
      64 bits; says where.
  """
  for name, expected in types.items():
    if not isinstance(value, dict) or name not in value:
      raise UserError(f'{where} lacks {name!r}.')
    if not isinstance(value[name], expected):
      raise UserError(
          f'{where} has {name!r} of type {type(value[name]).__name__}, which'
          ' this report does not know.'
      )
    if isinstance(value[name], int) and abs(value[name]) > _LARGEST:
      raise UserError(
          f'{where} has {name!r} of {len(str(value[name]))} digits; expected at'
          f' most {_LARGEST:,}.'
      )


def _object(content: str, where: str) -> dict[str, Any]:
  try:
    value = json.loads(content)
  except (ValueError, RecursionError) as e:
    raise UserError(f'{where} is no JSON: {e}.') from e
  if not isinstance(value, dict):
    raise UserError(
        f'{where} is a {type(value).__name__} in JSON; expected an object.'
    )
  return value
