"""Runs the stages of a recipe whose inputs are not those of the last run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import hashlib
import json
import logging
import pathlib
import shutil
import time
from typing import Any, NamedTuple

from dualenc_jax.pipelines.recipes.recipe import Recipe, Stage
from dualenc_jax.utils import files, json_file
from dualenc_jax.utils.errors import UserError

RAN, SAME, GIVEN, UNUSED = 'ran', 'as before', 'given', 'not wanted'
_LOG = logging.getLogger(__name__)
# Of files in a model_dir larger ones count by name and size alone.
_SMALL = 2**20
_OF_MODEL = 'checkpoints', 'calibration.json', 'config.gin', 'vocabulary.model'
Execute = Callable[[Sequence[str]], int]
# Files of the user in place of outputs, by stage and output.
Given = Mapping[tuple[str, str], pathlib.Path]


class Failed(UserError):
  """The command of a stage has failed, and said why."""


class Done(NamedTuple):
  """The state of a stage that is done, and its seconds if it ran.

  States are 'ran', 'as before', 'given' and 'not wanted'.
  """

  name: str
  state: str
  seconds: float | None


def run(
    recipe: Recipe, work_dir: pathlib.Path, execute: Execute, given: Given = {},
    until: str | None = None,
) -> Iterator[Done]:
  """Runs a recipe; yields each stage once it is done.

  A stage runs unless it ended before with the same flags and the content of its
  inputs is the same. Killed, it runs again in the folder that it has; with
  other inputs that is set aside first.

  A stage all of whose outputs are given does not run, nor does one whose
  outputs such stages alone want, or those after the stage `until`. `execute`
  runs arguments of `dualenc` and returns the exit status.
  """
  places = _places(recipe, work_dir, given)
  for stage in recipe.stages:
    check_inputs(recipe.with_flags(stage))
  idle = _idle(recipe, given, until)
  for stage in recipe.stages:
    if stage.name in idle:
      yield Done(stage.name, idle[stage.name], None)
    else:
      yield _run(recipe.with_flags(stage), work_dir, places, execute)
    if stage.name == until:
      return


def command_lines(
    recipe: Recipe, work_dir: pathlib.Path, given: Given = {},
    until: str | None = None,
) -> Iterator[tuple[str, list[str]]]:
  """Yields the name and the arguments of each stage that is wanted."""
  places, idle = _places(recipe, work_dir, given), _idle(recipe, given, until)
  for stage in map(recipe.with_flags, recipe.stages):
    if idle.get(stage.name) != UNUSED:
      yield stage.name, stage.command_line(work_dir / stage.name, places)


def check_inputs(stage: Stage) -> None:
  """Raises UserError for a file or folder of the user that is not there."""
  for path in _inputs(stage):
    if not path.exists():
      of = [f'--{n}: ' for n in stage.flags if str(path) in stage.values(n)]
      raise UserError(
          f'{"".join(of[:1])}{path} does not exist; expected an input of the'
          ' stage.'
      )


def _idle(recipe: Recipe, given: Given, until: str | None) -> dict[str, str]:
  """The stages that do not run, by name, with the state that they have."""
  found: dict[str, str] = {}
  wanted_by: dict[str, set[str]] = {}
  is_later = until is not None
  for stage in reversed(recipe.stages):
    is_last = stage.name == until
    is_later = is_later and not is_last
    own = {(stage.name, output) for output in stage.outputs}
    wanters = wanted_by.get(stage.name, set())
    unused = wanters and wanters <= found.keys() and not is_last
    if not is_later and own and own <= given.keys():
      found[stage.name] = GIVEN
    elif is_later or unused:
      found[stage.name] = UNUSED
    for name, _ in recipe.with_flags(stage).wanted():
      wanted_by.setdefault(name, set()).add(stage.name)
  return found


def _places(
    recipe: Recipe, work_dir: pathlib.Path, given: Given
) -> dict[tuple[str, str], pathlib.Path]:
  """Where every output is."""
  places = {
      (stage.name, output): work_dir / stage.name / path
      for stage in recipe.stages
      for output, path in stage.outputs.items()
  }
  for (stage, output), path in given.items():
    if (stage, output) not in places:
      known = ', '.join('.'.join(pair) for pair in places)
      raise UserError(
          f'No stage makes {stage}.{output}, in whose place {path} is given.'
          f' There is {known}.'
      )
    if not path.exists():
      raise UserError(f'{path}, in place of {stage}.{output}, does not exist.')
  return places | dict(given)


def _run(
    stage: Stage, work_dir: pathlib.Path, places: Given, execute: Execute
) -> Done:
  folder = work_dir / stage.name
  record = work_dir / '.stages' / f'{stage.name}.json'
  parts = _parts(stage, places)
  before: dict[str, Any] = {}
  if record.exists():
    again = 'Remove it, and the stage runs again.'
    before = json_file.read(record, again, parts=dict, done=bool, seconds=float)
  outputs = [folder / path for path in stage.outputs.values()]
  if before.get('parts') == parts and before.get('done'):
    missing = [path for path in outputs if not path.exists()]
    if not missing:
      return Done(stage.name, SAME, before['seconds'])
    _LOG.warning('%s: %s is gone, and made again.', stage.name, missing[0])
  elif before.get('parts') != parts:
    _set_aside(stage.name, folder, before.get('parts', {}), parts)
  files.make_folder(record.parent, 'another --work_dir')
  spent = before['seconds'] if before.get('parts') == parts else 0.0
  _write(record, parts, False, spent)
  argv = stage.command_line(folder, places)
  started = time.perf_counter()
  status = execute(argv)
  if status:
    if not folder.exists():
      record.unlink()  # Refused, before anything was made.
    raise Failed(
        f'Stage {stage.name} failed, with status {status}; its error is above.'
        ' Mend it, and run the recipe again: it continues from here.'
    )
  for path in outputs:
    if not path.exists():
      raise UserError(
          f'Stage {stage.name} ended without {path}. `dualenc {stage.command}`'
          ' should make it: do its flags name {folder}?'
      )
  seconds = spent + time.perf_counter() - started
  _write(record, parts, True, seconds)
  return Done(stage.name, RAN, seconds)


def _parts(stage: Stage, places: Given) -> dict[str, Any]:
  """All that decides what a stage makes, by name, as JSON has it."""
  parts = {
      'command': stage.command,
      **({'arguments': stage.arguments} if stage.arguments else {}),
      **{f'--{name}': value for name, value in stage.flags.items()},
  }
  # Files that are shipped change with the library.
  own = [f for f in stage.values('gin_file') if pathlib.Path(f).is_file()]
  for path in [*_inputs(stage), *map(pathlib.Path, own)]:
    parts[f'content of {path}'] = content(path)
  for pair in stage.wanted():
    parts[f'content of {".".join(pair)}'] = content(places[pair])
  return json.loads(json.dumps(parts, default=repr))


def _inputs(stage: Stage) -> list[pathlib.Path]:
  """The user's files and folders, there or not."""
  paths = {x: pathlib.Path(x).expanduser() for x in stage.inputs if x}
  # A plain word is the name of something shipped, as vocabularies have, and
  # what a bucket holds is known by its name.
  return [
      path
      for given, path in paths.items()
      if path.exists() or '://' not in given
      and (path.name != given or path.suffix)
  ]


def content(path: pathlib.Path) -> str:
  """SHA-256 of a file, or of a folder: names, sizes and content.

  Of a model_dir what the model is counts, not what was measured of it, and of
  its tensors the sizes: each run has an id.
  """
  if path.is_file():
    with path.open('rb') as file:
      return hashlib.file_digest(file, 'sha256').hexdigest()
  is_model = (path / _OF_MODEL[0]).is_dir()
  found = hashlib.sha256()
  for each in sorted(path.rglob('*')):
    name = each.relative_to(path)
    if each.is_file() and (not is_model or name.parts[0] in _OF_MODEL):
      size = each.stat().st_size
      found.update(f'{name} {size}\n'.encode())
      if size < _SMALL or not is_model:
        with each.open('rb') as file:
          found.update(hashlib.file_digest(file, 'sha256').digest())
  return found.hexdigest()


def _set_aside(
    name: str, folder: pathlib.Path, before: Mapping[str, Any],
    parts: Mapping[str, Any],
) -> None:
  """Moves a stage's folder away, and says why."""
  keys = sorted(before.keys() | parts.keys())
  changed = [key for key in keys if before.get(key) != parts.get(key)]
  if before:
    _LOG.warning('%s runs anew: %s changed.', name, ', '.join(changed))
  if not folder.exists():
    return
  number = 1
  while (aside := folder.with_name(f'{name}.{number}')).exists():
    number += 1
  with files.writing(aside, 'another --work_dir'):
    folder.rename(aside)
  _LOG.warning('What it had made is kept in %s.', aside)
  if any(key.startswith('content of') for key in changed):
    return
  # Of the same texts and teacher, and they cost the most.
  for path in [*aside.glob('scores*.tsv'), *aside.glob('scores.json')]:
    files.make_folder(folder, 'another --work_dir')
    shutil.copy(path, folder)


def _write(
    record: pathlib.Path, parts: Mapping[str, Any], done: bool, seconds: float
) -> None:
  content = {'parts': parts, 'done': done, 'seconds': float(seconds)}
  files.write_json(record, content)
