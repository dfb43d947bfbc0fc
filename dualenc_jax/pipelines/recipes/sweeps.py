"""Sweeps: stages once for each value of a macro."""

import ast
from collections.abc import Collection, Mapping, Sequence
import dataclasses
import logging
import re
from typing import Any

from dualenc_jax.pipelines.recipes.recipe import (
  flat,
  OUTPUT,
  outputs_in,
  Recipe,
  Stage,
)
from dualenc_jax.utils.errors import UserError

# Flags with an item for each system of a stage.
_BY_SYSTEM = 'names', 'lines'
_LOG = logging.getLogger(__name__)


def sweep(
    recipe: Recipe, sweeps: Mapping[str, Sequence[str]],
    once: Collection[str] = (),
) -> Recipe:
  """Repeats the stages that depend on macros, which have their places in them.

  '{MACRO}' in strings is the place of a value. A stage that has it is there
  once for each value, with '_VALUE' after its name; so is a stage that reads an
  output of such a stage, and one whose `sweeps` have the macro. A list in
  another stage, such as the systems of a comparison, has the outputs of all
  values. Names and lines of systems have the value in its place; names without
  a place have it at their end, unless the sweep is the recipe's own. A
  comparison of systems that have one name, a model by set, is left out.

  Args:
    sweeps: values by macro, two or more, or one if the recipe has the sweep.
    once: stages that are not repeated, as they do not run.

  Raises:
    UserError: too few values, or values that change nothing.
  """
  for macro, values in sweeps.items():
    recipe = _sweep_one(recipe, macro, values, once)
  for name, stage in [*recipe.stages.items()]:
    names = str(stage.flags.get('names', '')).split(',')
    if stage.command == 'compare' and names != [''] and len({*names}) == 1:
      del recipe.stages[name]
  recipe.copies = {
      name: [copy for copy in copies if copy in recipe.stages]
      for name, copies in recipe.copies.items()
  }
  return recipe


def _sweep_one(
    recipe: Recipe, macro: str, values: Sequence[str], once: Collection[str]
) -> Recipe:
  suffixes = {v: re.sub(r'\W+', '_', v).strip('_') for v in values}
  is_own = macro in recipe.sweeps
  least = 1 if is_own else 2
  if len({*suffixes.values()} - {''}) < max(len(values), least):
    raise UserError(
        f"--sweep={macro} has the values {', '.join(values)}; expected"
        f' {"one" if is_own else "two"} or more that differ in letters and'
        ' digits.'
    )
  swept = _Sweep(macro, suffixes, '' if is_own else f' {macro}={{{macro}}}')
  stages: dict[str, Stage] = {}
  copies: dict[str, list[str]] = {}
  unfit: dict[str, list[str]] = {}
  for name, stage in recipe.stages.items():
    made = swept.versions(name, stage, name in once)
    only = [*map(str, stage.sweeps.get(macro, ()))]
    if only and name not in once and {*only}.isdisjoint(values):
      unfit.setdefault(','.join(only), []).append(name)
    copies[name] = [*made]
    stages |= made
  if not swept.changes and (not is_own or len(values) > 1):
    raise UserError(
        f'--sweep={macro}: its values change no stage that runs. Leave it out,'
        ' or give one value if the recipe has it.'
    )
  for others, names in unfit.items():
    _LOG.warning(
        '--sweep=%s=%s leaves out what is for %s=%s alone: %s.',
        macro, ','.join(values), macro, others, ', '.join(names),
    )
  found = Recipe(stages, sweeps=recipe.sweeps)
  found.copies = {
      name: [c for each in names for c in copies[each]]
      for name, names in recipe.copies.items()
  }
  return found


@dataclasses.dataclass
class _Sweep:
  """One macro.

  Attributes:
    suffixes: of names, by value.
    label: what is added to the name of a system that has no place.
    values: of the stages that are repeated, by their names so far.
    changes: whether the values stand anywhere.
  """

  macro: str
  suffixes: Mapping[str, str]
  label: str
  values: dict[str, list[str]] = dataclasses.field(default_factory=dict)
  changes: bool = False

  @property
  def place(self) -> str:
    return f'{{{self.macro}}}'

  def versions(
      self, name: str, stage: Stage, is_idle: bool
  ) -> dict[str, Stage]:
    """The stage, or one for each value, by name; stages before it are known."""
    every = [*self.suffixes]
    if is_idle:
      return {name: self._version(stage, every[:1], alone=every[0], label='')}
    # A list of gin files must not get several configs: the last would win.
    alone = [
        value for flag, value in stage.flags.items()
        if flag == 'gin_file' or not isinstance(value, list | tuple)
        and flag not in _BY_SYSTEM
    ]
    shown = [v for f, v in stage.flags.items() if f not in _BY_SYSTEM]
    texts = flat([shown, stage.arguments, stage.inputs])
    has_place = any(isinstance(x, str) and self.place in x for x in texts)
    self.changes |= has_place
    if not (
        has_place or self.macro in stage.sweeps or self._sources(alone)
    ):
      made = {name: self._version(stage, every, None, self.label)}
    else:
      wanted = [*map(str, stage.sweeps.get(self.macro, ()))] or every
      self.values[name] = [
          v for v in self._values(alone, every) if v in wanted
      ]
      made = {
          f'{name}_{self.suffixes[v]}': self._version(stage, [v], v, '')
          for v in self.values[name]
      }
    # A stage with nothing left to read has no values.
    made = {n: s for n, s in made.items() if s.reads() or not stage.reads()}
    if not made:
      self.values[name] = []
    return made

  def _version(
      self, stage: Stage, values: Sequence[str], alone: str | None, label: str
  ) -> Stage:
    """The stage whose lists have some values, and other strings one or none."""

    def text(item: Any, value: str | None) -> Any:
      if value is None or not isinstance(item, str):
        return item
      return _filled(self._renamed(item, value), self.place, value)

    def spread(item: Any) -> Any:
      if not isinstance(item, list | tuple):
        return text(item, alone)
      found = []
      for each in item:
        if isinstance(each, list | tuple):
          found.append(spread(each))
        elif self._sources(each):
          found += [text(each, v) for v in self._values(each, values)]
        else:
          found.append(text(each, alone))
      return found

    def named(names: str, label: str) -> str:
      parts = names.split(',')
      systems = stage.arguments or stage.flags.get('model_dir', ())
      if len(parts) != len(systems):
        return names
      found = []
      for part, system in zip(parts, systems):
        shown = self._values(system, values)
        if self._sources(system):
          part += '' if self.place in part else label
        elif len(shown) > 1:
          found.append(part)
          continue
        found += [part.replace(self.place, value) for value in shown]
      return ','.join(found)

    flags = {}
    for flag, value in stage.flags.items():
      if flag in _BY_SYSTEM and isinstance(value, str):
        flags[flag] = named(value, label if flag == _BY_SYSTEM[0] else '')
      else:
        flags[flag] = spread(value)
    return dataclasses.replace(
        stage, flags=flags, arguments=spread(stage.arguments),
        inputs=spread(stage.inputs),
    )

  def _sources(self, value: Any) -> set[str]:
    """The repeated stages that a value reads."""
    return self.values.keys() & {source for source, _ in outputs_in(value)}

  def _values(self, value: Any, among: Sequence[str]) -> list[str]:
    """The values, among some, for which all that a value reads is made."""
    sources = self._sources(value)
    return [v for v in among if all(v in self.values[s] for s in sources)]

  def _renamed(self, text: str, value: str) -> str:
    """A string that reads the stages of one value."""

    def rename(match: re.Match[str]) -> str:
      name, output = match.groups()
      if name not in self.values:
        return match[0]
      return f'{{{name}_{self.suffixes[value]}.{output}}}'

    return OUTPUT.sub(rename, text)


def _filled(text: str, place: str, value: str) -> Any:
  """A string with a value in its place; a place alone is a literal, if any."""
  if text != place:
    return text.replace(place, value)
  try:
    return ast.literal_eval(value)
  except (ValueError, SyntaxError):
    return value
