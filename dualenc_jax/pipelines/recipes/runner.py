"""Runs the stages of a recipe whose inputs are not those of the last run."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import hashlib
import json
import logging
import pathlib
import shutil
import time
from typing import Any, NamedTuple

from dualenc_jax.pipelines.recipes.recipe import outputs_in, Recipe, Stage
from dualenc_jax.utils import files, hub, json_file
from dualenc_jax.utils.errors import did_you_mean, UserError

RAN, SAME, GIVEN, UNUSED = 'ran', 'as before', 'given', 'not wanted'
FAILED, LEFT_OUT = 'failed', 'left out'
_LOG = logging.getLogger(__name__)
# Larger files of a model_dir count by name and size alone.
_SMALL = 2**20
_OF_MODEL = 'checkpoints', 'calibration.json', 'config.gin', 'vocabulary.model'
Execute = Callable[[Sequence[str]], int]
# Paths of outputs, by stage and output.
Places = Mapping[tuple[str, str], pathlib.Path]


class StageFailed(UserError):
  """Stages that failed, the exit status of the first, and their seconds."""

  def __init__(
      self, message: str, status: int, stages: Collection[str] = (),
      seconds: float = 0.0,
  ):
    super().__init__(message)
    self.status, self.stages, self.seconds = status, stages, seconds


class Done(NamedTuple):
  """A stage that is done, its state, and its seconds if it ran.

  States are 'ran', 'as before', 'given', 'not wanted' and 'failed', in a grid
  'left out', too.
  """

  name: str
  state: str
  seconds: float | None


def run(
    recipe: Recipe, work_dir: pathlib.Path, execute: Execute,
    given: Places = {}, until: Collection[str] = (), is_grid: bool = False,
) -> Iterator[Done]:
  """Runs a recipe; yields each stage once it is done.

  A stage is skipped if it ended before with the same flags and the same content
  of its inputs. A killed stage runs again in its folder; a stage whose inputs
  have changed runs in a new one, and the old folder is kept aside.

  If a stage of a grid fails, the others run, except those that read what it
  makes. A comparison with the flag skip_missing runs if its baseline and
  another system are there; in place of the others it gets paths that do not
  exist.

  Args:
    recipe: the stages.
    work_dir: has a folder for each stage.
    execute: runs arguments of `dualenc`; returns the exit status.
    given: the user's files in place of outputs. A stage does not run if all of
      its outputs that are read are given, or are read by such stages alone.
    until: the last stages to run; none are all.
    is_grid: whether the other stages run after one has failed.

  Raises:
    UserError: an input does not exist.
    StageFailed: a stage fails; in a grid after the last one.
  """
  places, states = _places(recipe, work_dir, given), idle(recipe, given, until)
  for name, stage in recipe.stages.items():
    for path in _inputs(stage):
      if name not in states and not path.exists():
        raise UserError(f'Stage {name}: its input {path} does not exist.')
  failures: dict[str, StageFailed] = {}
  # Hashed once, however many cells of a grid read it.
  read: dict[pathlib.Path, str] = {}
  missing: set[str] = set()
  last = next((name for name in reversed(recipe.stages) if name in until), '')
  for name, stage in recipe.stages.items():
    if name in states:
      yield Done(name, states[name], None)
    elif not (lack := _lack(stage, missing)):
      own = {
          pair: work_dir / f'{pair[0]}.failed' if pair[0] in missing else path
          for pair, path in places.items()
      }
      try:
        done = _run(name, stage, work_dir, own, execute, read)
      except StageFailed as e:
        done = Done(name, FAILED, e.seconds)
        if not is_grid:
          yield done
          raise
        _LOG.error('%s', e)
        failures[name] = e
        missing.add(name)
      yield done
    else:
      _LOG.error('Stage %s is left out: it lacks %s.', name, lack)
      missing.add(name)
      yield Done(name, LEFT_OUT, None)
    if name == last:
      break
  if failures:
    raise StageFailed(
        f'{len(failures)} of {len(recipe.stages) - len(states)} stages failed:'
        f' {", ".join(failures)}. Run the recipe again to continue with them.',
        next(iter(failures.values())).status, [*failures],
    )


def _lack(stage: Stage, missing: Collection[str]) -> str:
  """Names what a stage needs of the stages that are missing; '' if nothing."""

  def lacking(value: Any) -> str:
    sources = dict.fromkeys(source for source, _ in outputs_in(value))
    return ', '.join(source for source in sources if source in missing)

  lack = lacking([*stage.flags.values(), stage.arguments])
  if not lack or not stage.flags.get('skip_missing'):
    return lack
  if of_flags := lacking([*stage.flags.values()]):
    return of_flags
  names = str(stage.flags.get('names', '')).split(',')
  if len(names) != len(stage.arguments):
    names = [*stage.arguments]
  found = {n for n, each in zip(names, stage.arguments) if not lacking(each)}
  if names[0] not in found:
    return f'its baseline, {lacking(stage.arguments[:1])}'
  return '' if len(found) > 1 else lack


def command_lines(
    recipe: Recipe, work_dir: pathlib.Path, given: Places = {},
    until: Collection[str] = (),
) -> dict[str, list[str]]:
  """The arguments of each stage that runs, by name."""
  places, states = _places(recipe, work_dir, given), idle(recipe, given, until)
  return {
      name: stage.command_line(work_dir / name, places)
      for name, stage in recipe.stages.items()
      if name not in states
  }


def idle(
    recipe: Recipe, given: Collection[tuple[str, str]],
    until: Collection[str] = (),
) -> dict[str, str]:
  """The states of the stages that do not run, by name."""
  states: dict[str, str] = {}
  read_by_any: set[str] = set()
  wanted: set[tuple[str, str]] = set()
  is_later = bool(until)
  for name, stage in reversed(recipe.stages.items()):
    is_later = is_later and name not in until
    outputs = {(name, output) for output in stage.outputs}
    is_read = name in read_by_any
    read_by_any.update(source for source, _ in stage.reads())
    if is_later or is_read and name not in until and wanted.isdisjoint(outputs):
      states[name] = UNUSED
    elif outputs & {*given} and outputs & wanted <= {*given}:
      states[name] = GIVEN
    else:
      wanted.update(stage.reads())
  return states


def _places(recipe: Recipe, work_dir: pathlib.Path, given: Places) -> Places:
  """The path of every output."""
  places = {
      (name, output): work_dir / name / path
      for name, stage in recipe.stages.items()
      for output, path in stage.outputs.items()
  }
  read = {pair for stage in recipe.stages.values() for pair in stage.reads()}
  for pair, path in given.items():
    name = '.'.join(pair)
    if pair not in places:
      known = map('.'.join, places)
      raise UserError(
          f'No stage makes {name}, for which {path} is'
          f' given.{did_you_mean(name, known)}'
      )
    if pair in read and not hub.folder_of(path).exists():
      raise UserError(f'{path}, in place of {name}, does not exist.')
  return {**places, **given}


def _run(
    name: str, stage: Stage, work_dir: pathlib.Path, places: Places,
    execute: Execute, read: dict[pathlib.Path, str],
) -> Done:
  folder = work_dir / name
  record = work_dir / '.stages' / f'{name}.json'
  parts = _parts(stage, places, read)
  before: dict[str, Any] = {}
  if record.exists():
    again = 'Remove it, and the stage runs again.'
    before = json_file.read(record, again, parts=dict, done=bool, seconds=float)
  outputs = [folder / path for path in stage.outputs.values()]
  if before.get('parts') == parts and before.get('done'):
    missing = [path for path in outputs if not path.exists()]
    if not missing:
      return Done(name, SAME, before['seconds'])
    _LOG.warning('%s: %s is gone, and made again.', name, missing[0])
  elif before.get('parts') != parts:
    _set_aside(name, folder, before.get('parts', {}), parts)
  files.make_folder(record.parent, 'another --output_dir')
  spent = before['seconds'] if before.get('parts') == parts else 0.0
  _write(record, parts, False, spent)
  started = time.perf_counter()
  status = execute(stage.command_line(folder, places))
  seconds = spent + time.perf_counter() - started
  _write(record, parts, False, seconds)
  if status:
    if not folder.exists():
      record.unlink()  # Refused, before anything was made.
    raise StageFailed(
        f'Stage {name} failed, with status {status}; its error is above. Run'
        ' the recipe again to continue from here.', status, [name], seconds,
    )
  for path in outputs:
    if not path.exists():
      raise StageFailed(
          f'Stage {name} ended without {path}, which `dualenc {stage.command}`'
          ' should make.', 1, [name], seconds,
      )
  _write(record, parts, True, seconds)
  return Done(name, RAN, seconds)


def _parts(
    stage: Stage, places: Places, read: dict[pathlib.Path, str]
) -> dict[str, Any]:
  """Flags and contents that decide what a stage makes, by name, as in JSON.

  `read` has the contents of the user's files that are known; more are added.
  """
  parts = {
      'command': stage.command,
      'arguments': stage.arguments,
      **{f'--{name}': value for name, value in stage.flags.items()},
  }
  # Shipped files change with the library.
  own = [f for f in stage.values('gin_file') if pathlib.Path(f).is_file()]
  for path in [*_inputs(stage), *map(pathlib.Path, own)]:
    if path not in read:
      read[path] = content(path)
    parts[f'content of {path}'] = read[path]
  for pair in stage.reads():
    parts[f'content of {".".join(pair)}'] = content(places[pair])
  return json.loads(json.dumps(parts, default=repr))


def _inputs(stage: Stage) -> list[pathlib.Path]:
  """The user's files and folders, whether they exist or not."""
  paths = {x: hub.folder_of(x) for x in stage.inputs if x}
  # A plain word is the name of something shipped, such as a vocabulary; the
  # content of a bucket is known by its name.
  return [
      path
      for given, path in paths.items()
      if path.exists() or '://' not in given
      and (path.name != given or path.suffix)
  ]


def content(path: pathlib.Path) -> str:
  """SHA-256 of a file, or of a folder: names, sizes and content.

  In a model_dir only the model's files count, not evaluation results, and its
  tensors count by size alone, as each run has an id in its metadata.
  """
  path = hub.folder_of(path)
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
  with files.writing(aside, 'another --output_dir'):
    folder.rename(aside)
  _LOG.warning('What it had made is kept in %s.', aside)
  if any(key.startswith('content of') for key in changed):
    return
  # Scores of the same texts by the same teacher cost the most.
  for path in [*aside.glob('scores*.tsv'), *aside.glob('scores.json')]:
    files.make_folder(folder, 'another --output_dir')
    shutil.copy(path, folder)


def _write(
    record: pathlib.Path, parts: Mapping[str, Any], done: bool, seconds: float
) -> None:
  content = {'parts': parts, 'done': done, 'seconds': float(seconds)}
  files.write_json(record, content)
