"""Recipes: stages, and the outputs of other stages that each of them reads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import pathlib
import re
from typing import Any

from dualenc_jax.utils.errors import did_you_mean, UserError

# '{stage.output}'
OUTPUT = re.compile(r'\{(\w+)\.(\w+)\}')
FOLDER, EACH = '{folder}', '{each}'
_GIN = 'gin.'
# By command: the flag of its folder, and what other stages may read there.
_WRITES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    'train': ('model_dir', {
        'model': '.', 'config': 'config.gin', 'vocabulary': 'vocabulary.model'
    }),
    'convert': ('output_dir', {'model': '.'}),
    'encode': ('index_dir', {'index': '.'}),
    'generate': (
        'output_dir', {'folder': '.', 'queries': 'qgen-queries.jsonl'}
    ),
    'mine': ('output_dir', {'pairs': 'pairs.jsonl'}),
    'label': ('output_dir', {'pairs': 'pairs.jsonl'}),
    'evaluate': ('output_dir', {'results': '.'}),
    'compare': ('output_dir', {'files': '.'}),
    'analyze': ('output_dir', {'figures': '.'}),
    'latency': ('output_dir', {'table': 'latency.json'}),
}


@dataclasses.dataclass(frozen=True)
class Stage:
  """One command.

  Attributes:
    command: of `dualenc`: 'train', 'mine'.
    flags: values by name without dashes, 'gin.STEPS' too: a string, a number,
      True for a flag without a value, None for no flag, or a list, perhaps of
      lists, for a flag that is given several times. In strings '{folder}' is
      the stage's own folder and '{stage.output}' an output of an earlier stage.
    arguments: words of the command line without a flag; places as in flags.
    outputs: paths in the folder by name, '.' for all of it, beside those that
      each command has.
    inputs: files and folders of the user that the flags name. If their content
      changes, the stage runs again. None is left out.
    changes: flags that replace these and the recipe's, for a stage that differs
      from another; None leaves a flag out. Later mappings win.
    overrides: flags that replace all others, for the command line.
    each: values of '{each}', which may stand in the stage's name, flags and
      arguments. The recipe has one stage for each value.
    sweeps: macros by which a sweep repeats the stage, although its lists could
      have the outputs of all values, each with the values that it is for; none
      are all.
  """

  command: str = ''
  flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  arguments: Sequence[str] = ()
  outputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
  inputs: Sequence[str | None] = ()
  changes: Sequence[Mapping[str, Any]] = ()
  overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  each: Sequence[str] = ()
  sweeps: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

  def reads(self) -> list[tuple[str, str]]:
    """(stage, output) of all outputs of others that it reads."""
    return outputs_in([[*self.flags.values()], self.arguments])

  def values(self, flag: str) -> list[str]:
    """The values of a flag, as strings."""
    return [str(each) for each in flat(self.flags.get(flag, ()))]

  def command_line(
      self, folder: pathlib.Path, places: Mapping[tuple[str, str], pathlib.Path]
  ) -> list[str]:
    """The arguments of `dualenc`; outputs of others are in `places`."""

    def place(text: str) -> str:
      text = OUTPUT.sub(lambda m: str(places[m[1], m[2]]), text)
      return text.replace(FOLDER, str(folder))

    argv = [*self.command.split(), *map(place, self.arguments)]
    for name, value in self.flags.items():
      is_gin = name.startswith(_GIN)
      for each in [value] if is_gin else flat(value):
        if each is True and not is_gin:
          argv.append(f'--{name}')
        elif each is not None and (each is not False or is_gin):
          text = each if isinstance(each, str) else repr(each)
          argv.append(f'--{name}={place(text)}')
    return argv


class Recipe:
  """Stages in the order in which they run, each on outputs of earlier ones.

  Attributes:
    stages: by name, with all of their flags and outputs.
    sweeps: the values of macros that it runs with; see `sweep`.
    copies: the names that sweeps have given to each stage.
  """

  stages: dict[str, Stage]
  sweeps: Mapping[str, Sequence[str]]
  copies: Mapping[str, Sequence[str]]

  def __init__(
      self,
      stages: Mapping[str, Stage],
      flags: Mapping[str, Mapping[str, Any]] | None = None,
      sweeps: Mapping[str, Sequence[Any]] | None = None,
  ):
    """Takes stages, flags of all stages of a command, and sweeps.

    A stage's own flags replace those of its command.

    Raises:
      UserError: a stage has no command, a bad name, or reads what no earlier
        stage makes.
    """
    self.stages = {}
    for name, stage in stages.items():
      if not (isinstance(stage, Stage) and stage.command):
        raise UserError(
            f'Stage {name} has no command; expected @SCOPE/recipes.Stage(), and'
            ' SCOPE/recipes.Stage.command bound.'
        )
      shared = (flags or {}).get(stage.command, {})
      for value in stage.each or ('',):
        own = _complete(stage, shared, value)
        self._add(name.replace(EACH, value), own)
    self.sweeps = {
        macro: [*map(str, values)] for macro, values in (sweeps or {}).items()
    }
    self.copies = {name: [name] for name in self.stages}

  def _add(self, name: str, stage: Stage) -> None:
    if not re.fullmatch(r'\w+', name) or name in self.stages:
      raise UserError(
          f'A stage is called {name!r}; expected a word that no other stage'
          ' has.'
      )
    for source, output in stage.reads():
      if source not in self.stages or output not in self.stages[source].outputs:
        known = [f'{n}.{o}' for n, s in self.stages.items() for o in s.outputs]
        raise UserError(
            f'Stage {name} reads {{{source}.{output}}}, which no stage before'
            f' it makes.{did_you_mean(f"{source}.{output}", known)}'
        )
    self.stages[name] = stage


def _complete(stage: Stage, shared: Mapping[str, Any], value: str) -> Stage:
  """A stage with all flags and outputs, for one value of `each`."""
  flag, outputs = _WRITES.get(stage.command, ('', {}))
  flags = {**({flag: FOLDER} if flag else {}), **shared}
  flags |= {n: x for n, x in stage.flags.items() if x is not None}
  for changes in (*stage.changes, stage.overrides):
    flags |= changes

  def fill(text: str) -> str:
    return text.replace(EACH, value)

  return Stage(
      stage.command,
      {name: _mapped(x, fill) for name, x in flags.items()},
      _mapped(stage.arguments, fill),
      {**outputs, **stage.outputs},
      stage.inputs,
      sweeps=stage.sweeps,
  )


def _mapped(value: Any, function: Callable[[str], str]) -> Any:
  """A value with a function applied to its strings, in lists too."""
  if isinstance(value, list | tuple):
    return [_mapped(each, function) for each in value]
  return function(value) if isinstance(value, str) else value


def outputs_in(value: Any) -> list[tuple[str, str]]:
  """Finds the outputs that the strings of a value name, each once."""
  texts = [text for text in flat(value) if isinstance(text, str)]
  return list(dict.fromkeys(p for text in texts for p in OUTPUT.findall(text)))


def flat(value: Any) -> Iterator[Any]:
  """Yields the items of lists, and of lists in them."""
  if isinstance(value, list | tuple):
    for each in value:
      yield from flat(each)
  else:
    yield value
