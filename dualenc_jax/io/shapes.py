"""The types of values that were read of JSON."""

from typing import Any

from dualenc_jax.errors import UserError

_LARGEST = 2**63 - 1


def check(value: Any, shape: Any, where: Any) -> None:
  """Checks the types of a value and of all that is inside of it.

  Args:
    value: of JSON.
    shape: a type or a tuple of types; `[shape]` for a list of such values;
      `{str: shape}` for an object of such values; `{'name': shape}` for an
      object with these fields and any others, where a name that ends in '?' may
      be missing.
    where: file and line, for the error.

  Raises:
    UserError: a value is missing, of another type, or a whole number of more
      than 64 bits; names it and `where`.
  """
  if isinstance(shape, dict):
    if not isinstance(value, dict):
      raise _error(where, value, dict)
    for name, inner in shape.items():
      if name is str:
        for key, item in value.items():
          check(item, inner, f'{where}: {key}')
      elif name.rstrip('?') in value:
        name = name.rstrip('?')
        check(value[name], inner, f'{where}: {name}')
      elif not name.endswith('?'):
        raise UserError(f'{where} lacks {name!r}.')
  elif isinstance(shape, list):
    if not isinstance(value, list):
      raise _error(where, value, list)
    for item in value:
      check(item, shape[0], where)
  # Not isinstance: true and false are integers, too.
  elif type(value) not in (shape if isinstance(shape, tuple) else (shape,)):
    raise _error(where, value, shape)
  elif type(value) is int and abs(value) > _LARGEST:
    raise UserError(f'{where} has {len(str(value))} digits; expected 64 bits.')


def _error(where: Any, value: Any, shape: Any) -> UserError:
  shapes = shape if isinstance(shape, tuple) else (shape,)
  expected = ' or '.join(dict.fromkeys(_WORDS[s] for s in shapes))
  shown = repr(value)
  shown = shown if len(shown) <= 80 else f'{shown[:80]}...'
  return UserError(f'{where} is {shown}; expected {expected}.')


_WORDS = {
    str: 'a string',
    int: 'a whole number',
    float: 'a number',
    dict: 'an object',
    list: 'a list',
    type(None): 'null',
}
