"""By which macro of a recipe a stage gets a flag: what a user can give."""

from collections.abc import Mapping
from typing import Any

import gin

from dualenc_jax.recipes import Stage

_GIN, _MACRO = 'gin.', 'gin.macro'


def by_flag(stage: Stage) -> dict[str, str]:
  """Macros by the flags of a stage, as long as gin holds the recipe."""
  found = {}
  for name in ('flags', 'changes'):
    found |= _by_flag(_bound(f'{stage.name}/recipes.Stage.{name}'))
  return found


def describe(macros: Mapping[str, str], said: str | None = None) -> str:
  """What to give where a stage refuses a flag: a sentence after a space, or ''.

  Args:
    macros: `by_flag` of the stage.
    said: the refusal, whose flags alone are meant; None for all that the stage
      has by a macro of another name.
  """
  shown = []
  for flag, macro in macros.items():
    name = flag.removeprefix(_GIN)
    word = f'--{flag}' if name == flag else name
    if name.upper() != macro and (said is None or word in said):
      shown.append(f'{word} is --gin.{macro}')
  return f' In the recipe its {", ".join(shown)}.' if shown else ''


def _bound(key: str) -> Any:
  try:
    return gin.query_parameter(key)
  except ValueError:  # Not bound, or a stage of a sweep.
    return None


def _by_flag(value: Any) -> dict[str, str]:
  """In dicts, lists and macros of them; what comes later wins."""
  found = {}
  if macro := _macro(value):
    found = _by_flag(_bound(f'{macro}/{_MACRO}.value'))
  elif isinstance(value, (list, tuple)):
    for each in value:
      found |= _by_flag(each)
  elif isinstance(value, dict):
    for flag, each in value.items():
      if macro := _macro(each):
        found[flag] = macro
  return found


def _macro(value: Any) -> str | None:
  """The name of the macro that a raw value of gin's stands for."""
  scope, _, selector = getattr(value, 'scoped_selector', '').rpartition('/')
  return scope if selector == _MACRO else None
