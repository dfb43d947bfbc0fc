"""What a recipe is: stages, and where each finds what the others made."""

from collections.abc import Collection, Iterator, Mapping, Sequence
import dataclasses
import pathlib
import re
from typing import Any

from dualenc_jax.utils.errors import expect, UserError
from dualenc_jax.utils.suggest import did_you_mean

# '{stage.output}'
PLACE = re.compile(r'\{(\w+)\.(\w+)\}')
FOLDER = '{folder}'
_GIN = 'gin.'


@dataclasses.dataclass(frozen=True)
class Stage:
  """One command.

  Attributes:
    name: also of its folder in WORK_DIR.
    command: of `dualenc`: 'train', 'mine'.
    flags: their values by name without dashes, 'gin.STEPS' too: a string, a
      number, True for a flag without a value, None for none, or a list, perhaps
      of lists, for a flag that is given several times. In strings '{folder}' is
      the stage's own folder, and '{stage.output}' an output of a stage before
      it.
    outputs: what later stages may want, by name: paths in the folder, '.' being
      all of it.
    inputs: files and folders of the user that the flags name, whose content
      decides whether the stage has to run again; None is left out.
    changes: flags in place of these and of the recipe's, by which a stage may
      differ from another; None leaves one out. Of several, in a list, the last
      wins.
    arguments: what stands on the command line without a flag; places as in
      flags.
  """

  name: str = ''
  command: str = ''
  flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  outputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
  inputs: Sequence[str | None] = ()
  changes: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
  arguments: Sequence[str] = ()

  def __post_init__(self) -> None:
    one = isinstance(self.changes, Mapping)
    changes = (self.changes,) if one else tuple(self.changes)
    object.__setattr__(self, 'changes', changes)
    values = [('flags', self.flags), ('outputs', self.outputs)]
    for field, value in (*values, *(('changes', own) for own in changes)):
      expect(
          isinstance(value, Mapping),
          f'Stage {self.name or "without a name"}: {field}', value,
          "values by name, {'depth': 100}",
      )

  def wanted(self) -> list[tuple[str, str]]:
    """(stage, output) of all that it reads of others."""
    values = [*_flat([*self.flags.values(), *self.arguments])]
    texts = [text for text in values if isinstance(text, str)]
    found = [pair for text in texts for pair in PLACE.findall(text)]
    return list(dict.fromkeys(found))

  def values(self, flag: str) -> list[str]:
    """What a flag is given, as strings."""
    return [str(each) for each in _flat(self.flags.get(flag, ()))]

  def command_line(
      self, folder: pathlib.Path, places: Mapping[tuple[str, str], pathlib.Path]
  ) -> list[str]:
    """The arguments of `dualenc`; outputs of others are in `places`."""

    def placed(text: str) -> str:
      text = PLACE.sub(lambda m: str(places[m[1], m[2]]), text)
      return text.replace(FOLDER, str(folder))

    argv = [*self.command.split(), *map(placed, self.arguments)]
    for name, value in self.flags.items():
      of_gin = name.startswith(_GIN)
      for each in [value] if of_gin else _flat(value):
        if each is True and not of_gin:
          argv.append(f'--{name}')
        elif each is not None and (each is not False or of_gin):
          text = each if isinstance(each, str) else repr(each)
          argv.append(f'--{name}={placed(text)}')
    return argv


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Stages in the order in which they run, on what those before have made.

  `flags` are those of all stages of a command; a stage's own win.
  """

  stages: Sequence[Stage] = ()
  flags: Mapping[str, Mapping[str, Any]] = dataclasses.field(
      default_factory=dict
  )

  def __post_init__(self) -> None:
    outputs: dict[str, Mapping[str, str]] = {}
    if not self.stages:
      raise UserError('Recipe.stages is empty; expected stages.')
    for number, stage in enumerate(self.stages, start=1):
      if not isinstance(stage, Stage):
        raise UserError(
            f'Recipe.stages holds {stage!r}; expected stages, in gin'
            ' @name/recipes.Stage().'
        )
      if not (stage.name and stage.command):
        raise UserError(
            f'Stage number {number} has no name or no command. Is the scope of'
            ' its bindings, name/recipes.Stage, spelt as in Recipe.stages?'
        )
      if not re.fullmatch(r'\w+', stage.name) or stage.name in outputs:
        raise UserError(
            f'A stage is called {stage.name!r}; expected a word that no other'
            ' stage has.'
        )
      for name, output in self.with_flags(stage).wanted():
        if output not in outputs.get(name, {}):
          known = [f'{s}.{o}' for s, each in outputs.items() for o in each]
          raise UserError(
              f'Stage {stage.name} wants {{{name}.{output}}}, which no stage'
              f' before it makes.{did_you_mean(f"{name}.{output}", known)}'
              f' There is {", ".join(known) or "nothing"}.'
          )
      outputs[stage.name] = stage.outputs

  def with_flags(self, stage: Stage) -> Stage:
    """A stage with the flags of all of its command."""
    own = {n: value for n, value in stage.flags.items() if value is not None}
    flags = {**self.flags.get(stage.command, {}), **own}
    assert not isinstance(stage.changes, Mapping)
    for changes in stage.changes:
      flags |= changes
    return dataclasses.replace(stage, flags=flags, changes=())


def _flat(value: Any) -> Iterator[Any]:
  """What lists hold, and lists in them."""
  if isinstance(value, (list, tuple)):
    for each in value:
      yield from _flat(each)
  else:
    yield value


def sweep(
    macro: str, recipes: Mapping[str, Recipe], given: Collection[str] = ()
) -> Recipe:
  """Repeats what depends on a macro.

  A stage in which the recipes differ is there once for each value, with
  '_VALUE' after its name; so is one that wants an output of such a stage. A
  list of a stage that is there once has the outputs of all values instead, as
  that of what is compared has; names of what is compared have the value then.

  Args:
    macro: its name.
    recipes: what its values make of the recipe, by value.
    given: stages that are there once, for they do not run.
  """
  suffixes = {v: re.sub(r'\W+', '_', v).strip('_') for v in recipes}
  distinct = {*suffixes.values()} - {''}
  if len(distinct) < max(len(recipes), 2):
    raise UserError(
        f"--sweep={macro} has the values {', '.join(recipes)}; expected two or"
        ' more that differ in letters and digits.'
    )
  stages: list[Stage] = []
  swept: set[str] = set()
  for own in zip(*(map(r.with_flags, r.stages) for r in recipes.values())):
    stage = own[0]
    # Of several configs in a list the last would win.
    wanted = (
        value for name, value in stage.flags.items()
        if name == 'gin_file' or not isinstance(value, (list, tuple))
    )
    texts = (text for text in _flat([*wanted]) if isinstance(text, str))
    names = {name for text in texts for name, _ in PLACE.findall(text)}
    differs = any(each != stage for each in own) or not swept.isdisjoint(names)
    if stage.name in given or not differs:
      stages.append(_spread(stage, swept, macro, suffixes))
      continue
    swept.add(stage.name)
    for each, suffix in zip(own, suffixes.values()):
      stages.append(dataclasses.replace(
          each,
          name=f'{stage.name}_{suffix}',
          flags={n: _renamed(x, swept, suffix) for n, x in each.flags.items()},
          arguments=_renamed(each.arguments, swept, suffix),
      ))
  if not swept:
    raise UserError(
        f'--sweep={macro}: its values change no stage that runs.'
    )
  return Recipe(stages)


def _spread(
    stage: Stage, swept: set[str], macro: str, suffixes: Mapping[str, str]
) -> Stage:
  """The stage with lists that have what they want of all values."""

  def is_swept(value: Any) -> bool:
    names = PLACE.findall(value) if isinstance(value, str) else ()
    return any(name in swept for name, _ in names)

  def each(values: Any) -> Any:
    if not isinstance(values, (list, tuple)):
      return values
    found = []
    for value in values:
      if is_swept(value):
        found += [_renamed(value, swept, s) for s in suffixes.values()]
      else:
        found.append(each(value))
    return found

  flags = {n: each(x) for n, x in stage.flags.items()}
  names = str(flags.get('names', '')).split(',')
  if len(names) == len(stage.arguments):
    flags['names'] = ','.join(
        f'{name} {macro}={value}' if value else name
        for name, argument in zip(names, stage.arguments)
        for value in (suffixes if is_swept(argument) else [''])
    )
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
