"""The contents of a MODEL_DIR that a report can show, as plain objects."""

from collections.abc import Callable, Mapping
import dataclasses
import datetime
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
# The owner's words on a model: uses, licence, languages, faults.
ABOUT = 'about.md'
# Folders in a model_dir with results of a dim or of prompts.
_PART = re.compile(r'(dim|prompt)-')
_RESTORE = 'Restore the file.'
_NUMBERS = {str: int | float}
_PASSAGE = {'text': str, 'id?': str | None, 'name?': str | None}
_HIT = {**_PASSAGE, 'rank': int, 'score': int | float, 'grade': int | None}
_EXAMPLE = {'query': str, 'rank': int | None, 'hits': [_HIT]}
_ANALYSIS = {'figures': [{'title': str, 'caption': str}]}
_MODELS = {'models': [{'name': str, 'numbers': _NUMBERS}]}
# `gin.config_str` writes a long value in a line of its own.
_MACRO = re.compile(r'^([A-Z]\w*) = (?:\\\n\s*)?(.*)$', re.MULTILINE)
_T = TypeVar('_T')


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """A result folder of `dualenc evaluate`.

  Attributes:
    name: the folder's name.
    result: the model's result.
    examples: queries with their top hits, None if no file of them can be read.
    systems: results of BM25 and the like by name.
  """

  name: str
  result: Result
  examples: list[Mapping[str, Any]] | None
  systems: Mapping[str, Result]


@dataclasses.dataclass(frozen=True)
class Analysis:
  """A folder of `dualenc analyze`: numbers by name, by model; its figures."""

  folder: pathlib.Path
  facts: Mapping[str, Any]
  numbers: Mapping[str, Mapping[str, float]]
  figures: list[Mapping[str, str]]


@dataclasses.dataclass(frozen=True)
class Contents:
  """Everything that a report shows.

  Attributes:
    name: the name of the model's folder.
    command_path: the model_dir as commands should be given it.
    config: the gin config as text.
    settings: its macros in capitals, such as STEPS, by their text.
    step: the newest checkpoint's step; None before the first.
    meta: the newest checkpoint's meta, without the config.
    saved: when the newest checkpoint was complete, UTC; None if unknown.
    curves: see `curves.read`.
    evaluations: result folders.
    analyses: folders of figures.
    baselines: metrics by system, of `dualenc quickstart`.
    about: the owner's words, '' if missing.
    before_after: what training has changed, a sentence each.
    problems: what is damaged, a sentence each.
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
    """The step that `keep_best` has kept, with its metric; {} if none."""
    return self.meta.get('notes', {}).get('best', {})

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

  def outdated(self, result: Result) -> str:
    """See `result_files.compare_checkpoint`."""
    if self.step is None:
      return ''
    return result_files.compare_checkpoint(result, self.step, self.meta)


def read(model_dir: str) -> Contents:
  """Reads the files of a model_dir, or of a folder of dim or prompts in it.

  Damaged files are left out and reported, except for the config and results:
  without one of them averages would be over other sets.

  Raises:
    UserError: it is not a model_dir, or its config or the metrics.json of a
      result cannot be read.
  """
  folder = root = pathlib.Path(model_dir)
  # A folder of a dim or of prompts has only evaluations and analyses.
  parts = [f for f in (folder, *folder.parents) if _PART.match(f.name)]
  if parts and not (folder / CONFIG).exists():
    root = parts[-1].parent
  if not (root / CONFIG).is_file():
    problem = f'has no {CONFIG}' if folder.exists() else 'does not exist'
    raise UserError(
        f'{model_dir} is not a model_dir: it {problem}. Give the folder that'
        ' `dualenc train` wrote (its MODEL_DIR).'
    )
  config = json_file.read_text(root / CONFIG, _RESTORE)
  lines, problems = curves.read(root / curves.FILE)

  def read_whole(
      path: pathlib.Path, read: Callable[[pathlib.Path], _T], otherwise: _T,
      advice: str,
  ) -> _T:
    """Reads a file; `otherwise` if it is missing or damaged."""
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
    home = path.parent
    systems = {
        name: result
        for name in result_files.SYSTEMS
        if (result := read_whole(home / name / path.name, _result, None, ''))
    }
    examples = read_whole(
        home / result_files.EXAMPLES, _examples, None, result_files.AGAIN
    )
    evaluations.append(
        Evaluation(home.name, read_result(home), examples, systems)
    )
  analyses = [
      read_whole(path, _analysis, None, 'Run `dualenc analyze` again.')
      for path in sorted(folder.glob('analysis/*/analysis.json'))
  ]
  return Contents(
      name='/'.join([root.resolve().name, *folder.relative_to(root).parts]),
      command_path=str(root) if parts else model_dir,
      config=config,
      settings=dict(_MACRO.findall(config)),
      step=step,
      meta=read_whole(
          newest / 'meta/metadata', result_files.read_meta, {}, _RESTORE
      ),
      saved=read_whole(newest / '_CHECKPOINT_METADATA', _saved, None, _RESTORE),
      curves=lines,
      evaluations=evaluations,
      analyses=[analysis for analysis in analyses if analysis],
      baselines=read_whole(
          root / 'quickstart.json',
          lambda path: _read_json(path, {str: _NUMBERS}), {},
          'Run `dualenc quickstart` again.',
      ),
      about=read_whole(
          root / ABOUT, lambda path: json_file.read_text(path, '').strip(), '',
          'Save it in UTF-8.',
      ),
      before_after=read_whole(
          root / result_files.VALIDATION,
          lambda _: list(comparison.verdict_of_training(root)),
          [],
          _RESTORE,
      ),
      problems=problems,
  )


def _read_json(path: pathlib.Path, shape: Any) -> dict[str, Any]:
  value = json_file.read(path, '')
  check(value, shape, path)
  return value


def _result(path: pathlib.Path) -> Result | None:
  return read_result(path.parent)


def _saved(path: pathlib.Path) -> datetime.datetime | None:
  name = 'commit_timestamp_nsecs'
  nanoseconds = _read_json(path, {f'{name}?': int | None}).get(name)
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


def _analysis(path: pathlib.Path) -> Analysis | None:
  facts = _read_json(path, _ANALYSIS)
  several = 'models' in facts
  check(facts, _MODELS if several else {'numbers': _NUMBERS}, path)
  figures = facts.pop('figures')
  if not several:
    return Analysis(path.parent, facts, {'': facts.pop('numbers')}, figures)
  models = facts.pop('models')
  numbers = {model['name']: model.pop('numbers') for model in models}
  # A model's other facts come under its name.
  facts |= {model.pop('name'): model for model in models}
  return Analysis(path.parent, facts, numbers, figures)
