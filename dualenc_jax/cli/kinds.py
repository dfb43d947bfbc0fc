"""Values of a gin config of a wrong kind, and names of wrong parameters."""

from collections.abc import Iterator, Mapping, Sequence
import inspect
import numbers
import types
import typing
from typing import Any

import gin

from dualenc_jax.utils.errors import did_you_mean_or_known

_LISTS = list, tuple, Sequence
_DICTS = dict, Mapping
_WORDS: dict[Any, str] = {
    int: 'a whole number', float: 'a number', str: 'a text',
    bool: 'True or False', types.NoneType: 'None',
    **dict.fromkeys(_LISTS, 'a list'),
    **dict.fromkeys(_DICTS, "values by name, such as {'name': 'value'}"),
}
_MACRO = gin.config.macro


def misfits() -> Iterator[str]:
  """Yields a sentence on each value of the current config that does not fit.

  A macro is named in place of the parameter that it is bound to. Values are
  compared with annotations of numbers, texts, lists and dictionaries; other
  values are left to their functions and classes.
  """
  found: dict[str, tuple[Any, str]] = {}
  for (_, selector), bound in gin.config._CONFIG.items():
    target: Any = gin.config._REGISTRY.get_match(selector)
    if target.wrapped is _MACRO:
      continue
    try:
      takes = inspect.signature(target.wrapped, eval_str=True).parameters
    except (NameError, TypeError, ValueError):
      continue
    for parameter, value in bound.items():
      name = f'{target.name}.{parameter}'
      while _is_macro(value) and value.config_key in gin.config._CONFIG:
        name = value.config_key[0]
        value = gin.config._CONFIG[value.config_key]['value']
      kind = takes[parameter].annotation if parameter in takes else Any
      if not _fits(value, kind):
        found.setdefault(name, (value, _words(kind)))
  for name, (value, expected) in found.items():
    yield f'{name} is {value!r}; expected {expected}.'


def parameter_hint(selector: str, name: str) -> str:
  """Names the parameters like `name` of what gin knows by a selector."""
  (target, *_) = gin.config._REGISTRY.get_all_matches(selector)
  known = inspect.signature(target.wrapped).parameters
  return did_you_mean_or_known(name, known)


def _is_macro(value: Any) -> bool:
  is_one = isinstance(value, gin.config.ConfigurableReference)
  return is_one and value.configurable.wrapped is _MACRO


def _fits(value: Any, kind: Any) -> bool:
  origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
  if isinstance(value, gin.config.ConfigurableReference):
    return True  # Its value is checked where it is made.
  if origin in (typing.Union, types.UnionType):
    return any(_fits(value, each) for each in inner)
  if origin in _LISTS:
    each = inner[0] if inner and origin is not tuple else Any
    return isinstance(value, list | tuple) and all(
        _fits(v, each) for v in value
    )
  if origin in _DICTS:
    return isinstance(value, dict)
  if origin in (int, float):
    kinds = numbers.Integral if origin is int else numbers.Real
    return isinstance(value, kinds) and not isinstance(value, bool)
  return origin not in _WORDS or isinstance(value, origin)


def _words(kind: Any) -> str:
  origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
  if origin in (typing.Union, types.UnionType):
    return ' or '.join(dict.fromkeys(map(_words, inner)))
  words = _WORDS[origin]
  if origin in _LISTS and origin is not tuple and inner[:1] == (str,):
    words += ' of texts'
  return words
