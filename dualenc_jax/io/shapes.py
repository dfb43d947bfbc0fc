"""The types of values that were read of JSON."""

from typing import Any, get_args

from dualenc_jax.errors import UserError

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
