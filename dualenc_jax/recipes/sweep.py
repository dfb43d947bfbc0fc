"""A recipe whose stages are there once for each value of a macro."""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import re
from typing import Any

from dualenc_jax.errors import UserError
from dualenc_jax.recipes.recipe import PLACE, Recipe, Stage
from dualenc_jax.suggest import did_you_mean

_GIN = 'gin.'


def sweep(
    recipe: Recipe, macro: str, values: Sequence[str],
    given: Collection[str] = (),
) -> Recipe:
  """Repeats what depends on a macro.

  A stage that has the macro is there once for each value, with '_VALUE' after
  its name; so is one that wants an output of such a stage. A list that wants
  such outputs, as that of what is compared, has those of all values instead.

  Stages that are given are there once, for they do not run.
  """
  flag = _GIN + macro
  suffixes = [re.sub(r'\W+', '_', value).strip('_') for value in values]
  if len({*suffixes}) < len(values) or not all(suffixes):
    raise UserError(
        f'--sweep={macro} has the values {", ".join(values)}; expected'
        ' different ones, whose letters and digits can be told apart.'
    )
  stages: list[Stage] = []
  swept: set[str] = set()
  for stage in map(recipe.with_flags, recipe.stages):
    spread = _spread(stage, swept, suffixes)
    mine = flag in stage.flags or any(
        name in swept for name, _ in spread.wanted()
    )
    if stage.name in given or not mine:
      stages.append(spread)
      continue
    swept.add(stage.name)
    for value, suffix in zip(values, suffixes):
      set_to = {flag: value} if flag in spread.flags else {}
      own = {**spread.flags, **set_to}.items()
      stages.append(dataclasses.replace(
          spread,
          name=f'{stage.name}_{suffix}',
          flags={n: _renamed(x, swept, suffix) for n, x in own},
          arguments=_renamed(spread.arguments, swept, suffix),
      ))
  if not swept:
    named = (n for s in recipe.stages for n in recipe.with_flags(s).flags)
    known = [n.removeprefix(_GIN) for n in named if n.startswith(_GIN)]
    raise UserError(
        f'--sweep={macro}: no stage of the recipe has this'
        f' macro.{did_you_mean(macro, [*dict.fromkeys(known)])}'
    )
  return Recipe(stages)


def _spread(stage: Stage, swept: set[str], suffixes: Sequence[str]) -> Stage:
  """The stage with lists that have what they want of all values."""

  def each(values: Any) -> Any:
    if not isinstance(values, (list, tuple)):
      return values
    found = []
    for value in values:
      names = PLACE.findall(value) if isinstance(value, str) else ()
      if any(name in swept for name, _ in names):
        found += [_renamed(value, swept, suffix) for suffix in suffixes]
      else:
        found.append(each(value))
    return found

  flags: Mapping[str, Any] = {n: each(x) for n, x in stage.flags.items()}
  return dataclasses.replace(
      stage, flags=flags, arguments=each(stage.arguments)
  )


def _renamed(value: Any, swept: set[str], suffix: str) -> Any:
  """A value that wants of the stages of one value what it wanted before."""
  if isinstance(value, (list, tuple)):
    return [_renamed(each, swept, suffix) for each in value]
  if not isinstance(value, str):
    return value

  def rename(match: re.Match[str]) -> str:
    name, output = match.groups()
    return f'{{{name}_{suffix}.{output}}}' if name in swept else match[0]

  return PLACE.sub(rename, value)
