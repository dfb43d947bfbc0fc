"""JSON that may be damaged, read with errors that name the file."""

from collections.abc import Iterator
import json
import os
import pathlib
from typing import Any, get_args

from dualenc_jax.errors import UserError


def read(
    path: os.PathLike[str],
    again: str = 'Copy it again.',
    absent: str | None = None,
    **types: Any,
) -> dict[str, Any]:
  """Reads a JSON object.

  Args:
    path: of the file; anything with `read_text`.
    again: what the user can do about a damaged file.
    absent: what the user can do where the file is not there; `again` by
      default.
    **types: of the fields that the object must have, as `check` takes
      them.

  Raises:
    UserError: the file cannot be read or holds something else.
  """
  value = parse(read_text(path, again, absent), path, again)
  check(value, types, path, again)
  return value


def read_text(
    path: os.PathLike[str], again: str = 'Copy it again.', absent: str = ''
) -> str:
  """A file of text; raises UserError if it is none or cannot be read."""
  try:
    return path.read_text(encoding='utf-8')
  except OSError as e:
    what = absent or again
    raise UserError(f'{path} cannot be read: {e.strerror or e}. {what}') from e
  except UnicodeDecodeError as e:
    raise UserError(f'{path} is no text in UTF-8: {e}. {again}') from e


def read_lines(
    path: pathlib.Path, again: str = 'Copy it again.'
) -> Iterator[tuple[str, dict[str, Any]]]:
  """JSON objects, one a line, each with the file and line where it stands.

  Raises:
    UserError: the file cannot be read, or a line holds something else.
  """
  # Not splitlines: JSON may have other ends of lines inside its strings.
  content = read_text(path, again)
  lines = content.removesuffix('\n').split('\n') if content.strip() else []
  for number, line in enumerate(lines, 1):
    where = f'{path}, line {number}'
    yield where, parse(line, where, again)


def parse(
    content: str | bytes,
    where: Any,
    again: str = 'Copy it again.',
    kind: type[dict] | type[list] = dict,
) -> Any:
  """A JSON object, or a list; raises UserError, naming `where`, if not."""
  try:
    value = json.loads(content)
  except (ValueError, RecursionError) as e:
    raise UserError(f'{where} is no JSON: {e}. {again}') from e
  if not isinstance(value, kind):
    what = 'object' if kind is dict else 'list'
    raise UserError(
        f'{where} is no JSON {what}: it holds a {type(value).__name__}. {again}'
    )
  return value


def check_format(
    value: dict[str, Any], where: Any, name: str, version: int, again: str
) -> None:
  """Raises UserError unless an object is of this format and version."""
  if value.get('format') != name:
    raise UserError(f'{where} is of another format than {name!r}. {again}')
  if value.get('version') != version:
    raise UserError(
        f'{where} has format version {value.get("version")!r}; this program'
        f' reads version {version}. {again}'
    )


_LARGEST = 2**63 - 1


def check(value: Any, shape: Any, where: Any, again: str = '') -> None:
  """Checks the types of a value and of all that is inside of it.

  Args:
    value: of JSON.
    shape: a type or a union; `[shape]` for a list of such values; `{str:
      shape}` for an object of such values; `{'name': shape}` for an object with
      these fields and any others, where a name that ends in '?' may be missing.
      True is no whole number.
    where: file and line, for the error.
    again: what the user can do about it.

  Raises:
    UserError: a value is missing, of another type, or a whole number of more
      than 64 bits; names it and `where`.
  """
  kind = type(shape) if isinstance(shape, (dict, list)) else shape
  kinds = get_args(kind) or (kind,)
  if type(value) not in kinds:
    shown = repr(value)
    raise UserError(
        f'{where} is {shown[:80]}{"..." * (len(shown) > 80)}; expected'
        f' {" or ".join(k.__name__ for k in kinds)}. {again}'.strip()
    )
  if type(value) is int and abs(value) > _LARGEST:
    raise UserError(
        f'{where} has {len(str(value))} digits; expected at most'
        f' {_LARGEST:,}. {again}'.strip()
    )
  if isinstance(shape, list):
    for item in value:
      check(item, shape[0], where, again)
  if not isinstance(shape, dict):
    return
  for name, inner in shape.items():
    if name is str:
      for key, item in value.items():
        check(item, inner, f'{where}: {key}', again)
    elif (field := name.rstrip('?')) in value:
      check(value[field], inner, f'{where}: {field}', again)
    elif field == name:
      raise UserError(f'{where} lacks {name!r}. {again}'.strip())
