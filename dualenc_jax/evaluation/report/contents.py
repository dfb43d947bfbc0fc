"""The contents of a MODEL_DIR that a report can show, as plain objects."""

from collections.abc import Callable, Mapping
import csv
import dataclasses
import datetime
import io
import pathlib
import re
from typing import Any, TypeVar

from dualenc_jax.evaluation.report import curves
from dualenc_jax.evaluation.results import comparison, result_files
from dualenc_jax.evaluation.results.result_files import read_result, Result
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.json_file import check

CONFIG = 'config.gin'
# Folders in a model_dir with results of a dim or of prompts.
_PART = re.compile(r'(dim|prompt)-')
# What its owner has written of a model: uses, licence, languages, faults.
ABOUT = 'about.md'
_RESTORE = 'Restore the file.'
_NUMBERS = {str: int | float}
_PASSAGE = {'text': str, 'id?': str | None, 'name?': str | None}
_HIT = {**_PASSAGE, 'rank': int, 'score': int | float, 'grade': int | None}
_EXAMPLE = {'query': str, 'rank': int | None, 'hits': [_HIT]}
_ANALYSIS = {'figures': [{'title': str, 'caption': str}]}
_MODELS = {'models': [{'name': str, 'numbers': _NUMBERS}]}
# A value that `gin.config_str` breaks off starts in a line of its own.
_MACRO = re.compile(r'^([A-Z]\w*) = (?:\\\n\s*)?(.*)$', re.MULTILINE)
_T = TypeVar('_T')


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """A result folder of `dualenc evaluate`, and baselines by name.

  `examples` are queries with their top hits, None if no file of them can be
  read; `codecs` are numbers by name of each codec that was measured.
  """

  name: str
  result: Result
  examples: list[Mapping[str, Any]] | None
  beside: Mapping[str, Result]
  codecs: Mapping[str, Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Analysis:
  """A folder of `dualenc analyze`: numbers by name, by model; its figures."""

  folder: pathlib.Path
  facts: Mapping[str, Any]
  numbers: Mapping[str, Mapping[str, float]]
  figures: list[Mapping[str, str]]


@dataclasses.dataclass(frozen=True)
class Contents:
  """All that a report shows.

  Attributes:
    name: of the model's folder.
    command_path: the model_dir as commands should be given it.
    config: the gin config as text.
    settings: its macros in capitals, such as STEPS, as they stand there.
    step: of the newest checkpoint; None before the first.
    meta: what was saved beside its tensors, without the config.
    saved: when it was complete, UTC; None where that is not known.
    curves: as of `curves.read`.
    baselines: metrics by system, of `dualenc quickstart`.
    about: what its owner has written of it, '' for nothing.
    before_after: what training has changed, a sentence each.
    problems: what is damaged, one sentence each.
  """

  name: str
  command_path: str
  config: str
  settings: Mapping[str, str]
  step: int | None
  meta: Mapping[str, Any]
  saved: datetime.datetime | None
  curves: curves.Curves
  evaluations: list[Evaluation]
  analyses: list[Analysis]
  baselines: Mapping[str, Mapping[str, float]]
  about: str
  before_after: list[str]
  problems: list[str]

  @property
  def best(self) -> Mapping[str, Any]:
    """The step that `keep_best` has kept, with its metric; {} of none."""
    return self.meta.get('notes', {}).get('best', {})

  def other_checkpoint(self, result: Result) -> str:
    """What a result is of, if not of the model as it is; '' else."""
    if self.step is None:
      return ''
    return result_files.compare_checkpoint(result, self.step, self.meta)

  @property
  def ended(self) -> str | None:
    """Why the run ended before its last step, if it did."""
    return self.meta.get('notes', {}).get('ended')

  @property
  def task(self) -> str:
    """The task as the checkpoint has it, else by its name in the config."""
    name = self.meta.get('data', {}).get('task')
    if name is None:
      return self.settings.get('TASK', '').strip('@()')
    return name if isinstance(name, str) else ' + '.join(map(str, name))


def read(model_dir: str) -> Contents:
  """Reads what is there of a model_dir, or of a folder of dim or prompts in it.

  What is damaged is left out and reported, except for the config and for
  results: without one of them, averages would be over other sets than they seem
  to be.

  Raises:
    UserError: it is not a model_dir, or its config or the metrics.json of a
      result cannot be read.
  """
  folder = root = pathlib.Path(model_dir)
  # Of a dim or of prompts only evaluation and analysis are apart.
  parts = [f for f in (folder, *folder.parents) if _PART.match(f.name)]
  if parts and not (folder / CONFIG).exists():
    root = parts[-1].parent
  if not (root / CONFIG).is_file():
    what = f'has no {CONFIG}' if folder.exists() else 'does not exist'
    raise UserError(
        f'{model_dir} is not a model_dir: it {what}. Give the folder'
        ' that `dualenc train` wrote (its MODEL_DIR).'
    )
  config = json_file.read_text(root / CONFIG, _RESTORE)
  lines, problems = curves.read(root / curves.FILE)

  def whole(
      path: pathlib.Path, read: Callable[[pathlib.Path], _T], otherwise: _T,
      advice: str,
  ) -> _T:
    """What `read` returns; `otherwise` if there is no file, or no whole one."""
    if not path.exists():
      return otherwise
    try:
      return read(path)
    except UserError as e:
      problems.append(f'{str(e).strip()} It is left out. {advice}')
      return otherwise

  step = result_files.newest_step(root)
  newest = root / f'checkpoints/{step}'
  evaluations = []
  for path in sorted(folder.glob('evaluation/*/metrics.json')):
    home, again = path.parent, result_files.AGAIN
    beside = {
        name: found
        for name in result_files.SYSTEMS
        if (found := whole(home / name / path.name, _result, None, ''))
    }
    evaluations.append(Evaluation(
        home.name,
        read_result(home),
        whole(home / 'examples.jsonl', _examples, None, again),
        beside,
        whole(home / 'codecs/codecs.csv', _codecs, {}, again),
    ))
  analyses = [
      whole(path, _analysis, None, 'Run `dualenc analyze` again.')
      for path in sorted(folder.glob('analysis/*/analysis.json'))
  ]
  return Contents(
      name='/'.join([root.resolve().name, *folder.relative_to(root).parts]),
      command_path=str(root) if parts else model_dir,
      config=config,
      settings=dict(_MACRO.findall(config)),
      step=step,
      meta=whole(
          newest / 'meta/metadata', result_files.read_meta, {}, _RESTORE
      ),
      saved=whole(newest / '_CHECKPOINT_METADATA', _saved, None, _RESTORE),
      curves=lines,
      evaluations=evaluations,
      analyses=[analysis for analysis in analyses if analysis],
      baselines=whole(
          root / 'quickstart.json',
          lambda path: _checked(path, {str: _NUMBERS}), {},
          'Run `dualenc quickstart` again.',
      ),
      about=whole(
          root / ABOUT, lambda path: json_file.read_text(path, '').strip(), '',
          'Save it in UTF-8.',
      ),
      before_after=whole(
          root / result_files.VALIDATION,
          lambda _: list(comparison.verdict_of_training(root)),
          [],
          _RESTORE,
      ),
      problems=problems,
  )


def _checked(path: pathlib.Path, shape: Any) -> dict[str, Any]:
  value = json_file.read(path, '')
  check(value, shape, path)
  return value


def _result(path: pathlib.Path) -> Result | None:
  return read_result(path.parent)


def _saved(path: pathlib.Path) -> datetime.datetime | None:
  name = 'commit_timestamp_nsecs'
  nanoseconds = _checked(path, {f'{name}?': int | None}).get(name)
  if nanoseconds is None:
    return None
  seconds = nanoseconds // 10**9
  return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def _examples(path: pathlib.Path) -> list[Mapping[str, Any]] | None:
  examples: list[Mapping[str, Any]] = []
  for where, example in json_file.read_lines(path, ''):
    check(example, _EXAMPLE, where)
    if example.get('relevant') is not None:
      check(example['relevant'], _PASSAGE, f'{where}: relevant')
    examples.append(example)
  return examples


def _codecs(path: pathlib.Path) -> dict[str, dict[str, float]]:
  rows = csv.DictReader(io.StringIO(json_file.read_text(path, '')))
  try:
    return {
        row.pop('codec'): {name: float(row[name]) for name in row if row[name]}
        for row in rows
    }
  except (KeyError, TypeError, ValueError) as e:
    raise UserError(f'{path} has no numbers by codec: {e!r}.') from e


def _analysis(path: pathlib.Path) -> Analysis | None:
  facts = _checked(path, _ANALYSIS)
  several = 'models' in facts
  check(facts, _MODELS if several else {'numbers': _NUMBERS}, path)
  figures = facts.pop('figures')
  if not several:
    return Analysis(path.parent, facts, {'': facts.pop('numbers')}, figures)
  # What is of each model comes under its name.
  models = facts.pop('models')
  numbers = {model['name']: model.pop('numbers') for model in models}
  facts |= {model.pop('name'): model for model in models}
  return Analysis(path.parent, facts, numbers, figures)
