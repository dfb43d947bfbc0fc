"""What a MODEL_DIR holds that a report can show, read into plain objects."""

from collections.abc import Callable, Mapping
import dataclasses
import datetime
import pathlib
import re
from typing import Any, TypeVar

from dualenc_jax.errors import UserError
from dualenc_jax.io import json_file
from dualenc_jax.io.json_file import check
from dualenc_jax.report import curves
from dualenc_jax.results import before_after
from dualenc_jax.results.folder import (
  AGAIN,
  METRICS,
  read_result,
  Result,
  SYSTEMS,
)

CONFIG = 'config.gin'
# What its owner has written of a model: uses, licence, languages, faults.
ABOUT = 'about.md'
_ANALYZE = 'Run `dualenc analyze` again.'
_QUICKSTART = 'Run `dualenc quickstart` again.'
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
class Checkpoint:
  """The newest checkpoint.

  Attributes:
    step: training steps done.
    meta: what was saved beside the tensors, without the config; empty if that
      is damaged.
    saved: when it was complete, UTC; None where that is not known.
  """

  step: int
  meta: Mapping[str, Any]
  saved: datetime.datetime | None

  @property
  def best(self) -> Mapping[str, Any]:
    """The step that `keep_best` has kept, with its metric; {} of none."""
    return self.meta.get('notes', {}).get('best', {})

  @property
  def ended(self) -> str | None:
    """Why the run ended before its last step, if it did."""
    return self.meta.get('notes', {}).get('ended')


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """A result folder of `dualenc evaluate`.

  Attributes:
    name: the folder's, <label>-<split>.
    result: its numbers.
    examples: queries with their top hits, None if no file of them can be read.
    beside: metrics of baselines by name.
  """

  name: str
  result: Result
  examples: list[Mapping[str, Any]] | None
  beside: Mapping[str, Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Analysis:
  """A folder of `dualenc analyze`.

  Attributes:
    folder: where it is.
    facts: what it was made of.
    numbers: values by name, by model.
    figures: title, caption and file names of each.
  """

  folder: pathlib.Path
  facts: Mapping[str, Any]
  numbers: Mapping[str, Mapping[str, float]]
  figures: list[Mapping[str, str]]


@dataclasses.dataclass(frozen=True)
class Contents:
  """All that a report shows.

  Attributes:
    name: the name of the model's folder.
    command_path: the folder as commands should be given it.
    config: the gin config as text.
    settings: its macros in capitals, such as STEPS, as they stand there.
    checkpoint: None before the first.
    curves: values by step, by '<group>/<name>'.
    evaluations: by name.
    analyses: embedding spaces, by name.
    baselines: metrics by system, of `dualenc quickstart`.
    about: what its owner has written of it, '' for nothing.
    before_after: what training has changed, a sentence each.
    problems: what is damaged, one sentence each.
  """

  name: str
  command_path: str
  config: str
  settings: Mapping[str, str]
  checkpoint: Checkpoint | None
  curves: curves.Curves
  evaluations: list[Evaluation]
  analyses: list[Analysis]
  baselines: Mapping[str, Mapping[str, float]]
  about: str
  before_after: list[str]
  problems: list[str]

  @property
  def task(self) -> str:
    """The task as the checkpoint has it, else by its name in the config."""
    if self.checkpoint and 'task' in self.checkpoint.meta.get('data', {}):
      name = self.checkpoint.meta['data']['task']
      return name if isinstance(name, str) else ' + '.join(map(str, name))
    return self.settings.get('TASK', '').strip('@()')


def read(model_dir: str) -> Contents:
  """Reads what is there of a model_dir.

  What is damaged is left out and reported, except for the config and for
  results: without one of them, averages would be over other sets than they seem
  to be.

  Raises:
    UserError: it is no model_dir, or its config or the metrics.json of a result
      cannot be read.
  """
  folder = pathlib.Path(model_dir)
  config = folder / CONFIG
  if not config.is_file():
    raise UserError(
        f'{model_dir} is no model_dir: it has no {CONFIG}. Give the folder that'
        ' `dualenc train` wrote (its MODEL_DIR).'
    )
  text = json_file.read_text(config, _RESTORE)
  lines, problems = curves.read(folder / 'metrics.jsonl')

  def whole(path: pathlib.Path, read: Callable, otherwise: _T, advice: str):
    """What `read` returns; `otherwise` if there is no file, or no whole one."""
    if not path.exists():
      return otherwise
    try:
      return read(path)
    except UserError as e:
      problems.append(f'{str(e).strip()} It is left out. {advice}')
      return otherwise

  checkpoint = None
  # Orbax gives a checkpoint its name, the step, when it is complete.
  steps = [
      int(path.name)
      for path in folder.glob('checkpoints/*')
      if path.name.isdecimal()
  ]
  if steps:
    newest = folder / 'checkpoints' / str(max(steps))
    checkpoint = Checkpoint(
        max(steps),
        whole(newest / 'meta' / 'metadata', _meta, {}, _RESTORE),
        whole(newest / '_CHECKPOINT_METADATA', _saved, None, _RESTORE),
    )
  analyses = [
      whole(path, _analysis, None, _ANALYZE)
      for path in sorted(folder.glob('analysis/*/analysis.json'))
  ]
  return Contents(
      name=folder.resolve().name,
      command_path=model_dir,
      config=text,
      settings=dict(_MACRO.findall(text)),
      checkpoint=checkpoint,
      curves=lines,
      evaluations=[
          Evaluation(
              path.parent.name,
              read_result(path.parent),
              whole(path.parent / 'examples.jsonl', _examples, None, AGAIN),
              {
                  name: found
                  for name in SYSTEMS
                  if (found := whole(
                      path.parent / name / METRICS, _metrics, None, ''
                  ))
              },
          )
          for path in sorted(folder.glob('evaluation/*/metrics.json'))
      ],
      analyses=[analysis for analysis in analyses if analysis],
      baselines=whole(
          folder / 'quickstart.json', _baselines, {}, _QUICKSTART
      ),
      about=whole(folder / ABOUT, _about, '', 'Save it in UTF-8.'),
      before_after=whole(
          folder / before_after.SPLIT, _before_after, [], _RESTORE
      ),
      problems=problems,
  )


def _about(path: pathlib.Path) -> str:
  return json_file.read_text(path, '').strip()


def _before_after(path: pathlib.Path) -> list[str]:
  return list(before_after.verdict(path.parent))


def _meta(path: pathlib.Path) -> dict[str, Any]:
  meta = json_file.read(path, '')
  # The tasks of a mixture are a list.
  best = {'step': int, 'metric': str, 'value': int | float}
  notes = {'best?': best, 'ended?': str}
  check(meta, {'data?': {'task?': str | list}, 'notes?': notes}, path)
  return {name: meta[name] for name in meta if name != 'config'}


def _metrics(path: pathlib.Path) -> Mapping[str, float]:
  return read_result(path.parent).metrics


def _saved(path: pathlib.Path) -> datetime.datetime | None:
  name = 'commit_timestamp_nsecs'
  written = json_file.read(path, '')
  check(written, {f'{name}?': int | None}, path)
  if written.get(name) is None:
    return None
  return datetime.datetime.fromtimestamp(
      written[name] // 10**9, datetime.timezone.utc
  )


def _examples(path: pathlib.Path) -> list[Mapping[str, Any]]:
  examples = []
  for where, example in json_file.read_lines(path, ''):
    check(example, _EXAMPLE, where)
    if example.get('relevant') is not None:
      check(example['relevant'], _PASSAGE, f'{where}: relevant')
    examples.append(example)
  return examples


def _baselines(path: pathlib.Path) -> dict[str, dict[str, float]]:
  systems = json_file.read(path, '')
  check(systems, {str: _NUMBERS}, path)
  return systems


def _analysis(path: pathlib.Path) -> Analysis:
  facts = json_file.read(path, '')
  several = 'models' in facts
  check(
      facts, _ANALYSIS | (_MODELS if several else {'numbers': _NUMBERS}), path
  )
  figures = facts.pop('figures')
  if not several:
    return Analysis(path.parent, facts, {'': facts.pop('numbers')}, figures)
  # What is of each model comes under its name.
  models = facts.pop('models')
  numbers = {model['name']: model.pop('numbers') for model in models}
  facts |= {model.pop('name'): model for model in models}
  return Analysis(path.parent, facts, numbers, figures)
