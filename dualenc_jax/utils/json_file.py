"""JSON that may be damaged, read with errors that name the file."""

from collections.abc import Callable, Iterable, Iterator, Mapping
import json
import os
import pathlib
import types
from typing import Any, get_args

from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import UserError

# Bytes of a file of one value, such as a vocabulary, and levels of nesting.
_LONGEST, _DEEPEST = 2**26, 64
_TOO_DEEP = f'values are nested more than {_DEEPEST} deep'
_KINDS = {
    dict: 'an object', list: 'a list', str: 'a string', bool: 'a boolean',
    int: 'a whole number', float: 'a number', types.NoneType: 'null',
}


class RepeatedKey(ValueError):
  """An object has a key twice, with different values."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  value = dict(pairs)
  if len(value) < len(pairs):
    for key, item in pairs:
      if item != value[key]:
        raise RepeatedKey(
            f'an object has the key {untrusted.quote(key)} twice, with'
            ' different values'
        )
  return value


DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def read(
    path: os.PathLike[str], again: str = 'Copy it again.',
    absent: str | None = None, **types: Any,
) -> dict[str, Any]:
  """Reads a JSON object, whose fields have types as `check` takes them.

  `again` is the remedy for a damaged file, `absent` that for an absent one.

  Raises:
    UserError: the file cannot be read or holds something else.
  """
  value = parse(read_text(path, again, absent), path, again)
  check(value, types, path, again)
  return value


def read_text(
    path: os.PathLike[str], again: str = 'Copy it again.',
    absent: str | None = '',
) -> str:
  """A file of text; UserError if it is none, too long or not readable."""
  try:
    content = untrusted.read(path, _LONGEST, again).decode('utf-8')
    return content.replace('\r\n', '\n')
  except OSError as e:
    what = absent or again
    raise UserError(f'{path} cannot be read: {e.strerror or e}. {what}') from e
  except UnicodeDecodeError as e:
    raise UserError(f'{path} is not text in UTF-8: {e}. {again}') from e


def read_lines(
    path: pathlib.Path, again: str = 'Copy it again.'
) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields JSON objects, one a line, each with its place, 'file, line 1'.

  Raises:
    UserError: the file cannot be read, or a line holds something else.
  """
  # Not splitlines: JSON may have other ends of lines inside its strings.
  content = read_text(path, again)
  lines = content.removesuffix('\n').split('\n') if content.strip() else []
  for number, line in enumerate(lines, 1):
    where = f'{path}, line {number}'
    yield where, parse(line, where, again)


def kind_name(kind: type) -> str:
  """The name of a type in JSON, as in 'a string'."""
  return _KINDS.get(kind, kind.__name__)


def parse(
    content: str | bytes, where: Any, again: str = 'Copy it again.',
    kind: type[dict] | type[list] = dict,
) -> Any:
  """A JSON object, or a list; raises UserError, naming `where`, if not."""
  try:
    value = loads(content)
  except ValueError as e:
    raise UserError(f'{where} is not JSON: {e}. {again}') from e
  if not isinstance(value, kind):
    what = 'object' if kind is dict else 'list'
    raise UserError(
        f'{where} is not a JSON {what}: it holds {kind_name(type(value))}.'
        f' {again}'
    )
  return value


def loads(content: str | bytes) -> Any:
  """A JSON value; raises ValueError, of which UserError if it is too deep."""
  if isinstance(content, bytes):
    # As json.loads does it: half a surrogate pair is no error.
    encoding = json.detect_encoding(content)
    try:
      content = content.decode(encoding, 'surrogatepass')
    except UnicodeDecodeError as e:
      raise ValueError(f'byte {e.start} is of no text in {encoding}') from e
  try:
    value = DECODER.decode(content)
  except RecursionError as e:
    raise UserError(_TOO_DEEP) from e
  check_depth(content, value)
  return value


def check_depth(content: str, value: Any) -> None:
  """Raises UserError where values are nested too deep to be handled.

  Brackets are counted in the content first, so that almost all rows cost
  nothing.
  """
  if content.count('[') + content.count('{') <= _DEEPEST:
    return
  level, depth = [value], 0
  while level := [v for v in level if isinstance(v, (dict, list))]:
    depth += 1
    if depth > _DEEPEST:
      raise UserError(_TOO_DEEP)
    level = [
        inner
        for outer in level
        for inner in (outer.values() if isinstance(outer, dict) else outer)
    ]


def check_own(
    folder: pathlib.Path, facts: str, others: Iterable[str],
    now: Mapping[str, Any], before: Callable[[Any], Mapping[str, Any]],
    **types: Any,
) -> None:
  """Refuses to replace files of another task or of other sources.

  Args:
    folder: where the files go.
    facts: the file that says what an earlier run was of.
    others: files that must not be there without it.
    now: what the new ones are of.
    before: the same of the object in `facts`, whose fields have these types.
  """
  path, instead = folder / facts, 'Give another --output_dir, or --overwrite.'
  if path.exists():
    known = before(read(path, instead, **types))
    new = json.loads(json.dumps(now))
    if changed := [name for name in new if new[name] != known.get(name)]:
      raise UserError(
          f'{folder} has results of another task or of other sources, by'
          f' {", ".join(changed)} in {path}. {instead}'
      )
  elif there := [name for name in others if (folder / name).exists()]:
    raise UserError(f'{folder / there[0]} exists, but no {facts}. {instead}')


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
  """Checks the types of a value of JSON and of all that is inside of it.

  A shape is a type or a union; `[shape]` for a list of such values; `{str:
  shape}` for an object of such values; `{'name': shape}` for an object with
  these fields and any others, where a name that ends in '?' may be missing.
  True is no whole number.

  Raises:
    UserError: a value is missing, of another type, or a whole number of more
      than 64 bits.
  """
  kind = type(shape) if isinstance(shape, (dict, list)) else shape
  kinds = get_args(kind) or (kind,)
  if type(value) not in kinds:
    raise UserError(
        f'{where} is {untrusted.quote(value)}; expected'
        f' {" or ".join(map(kind_name, kinds))}. {again}'.strip()
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
