"""What a MODEL_DIR holds that a report can show, read into plain objects."""

from collections.abc import Callable, Mapping
import dataclasses
import datetime
import pathlib
from typing import Any, TypeVar

from dualenc_jax.errors import UserError
from dualenc_jax.report import event_files, files, gin_text
from dualenc_jax.report.series import Series
from dualenc_jax.results.again import again
from dualenc_jax.results.folder import read_result, Result

CONFIG = 'config.gin'
_NONE = type(None)
_NUMBER = (int, float)
_ANALYZE = 'Run `dualenc analyze` again.'
_RESTORE = 'Restore the file.'
_T = TypeVar('_T')


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """The newest checkpoint.

  Attributes:
    step: training steps done.
    meta: what was saved beside the tensors, without the config; empty if that
      is damaged.
    saved: when it was complete, UTC; None where that is not told.
  """

  step: int
  meta: Mapping[str, Any]
  saved: datetime.datetime | None


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """A result folder of `dualenc evaluate`.

  Attributes:
    name: of the folder, <label>-<split>.
    result: its numbers.
    examples: queries with their top hits, None if there is no file of them
      that can be read.
  """

  name: str
  result: Result
  examples: list[Mapping[str, Any]] | None


@dataclasses.dataclass(frozen=True)
class Analysis:
  """A folder of `dualenc analyze`.

  Attributes:
    folder: where it is.
    facts: what it was made of.
    numbers: by model, then by name.
    figures: title, caption and names of files of each.
  """

  folder: pathlib.Path
  facts: Mapping[str, Any]
  numbers: Mapping[str, Mapping[str, float]]
  figures: list[Mapping[str, str]]


@dataclasses.dataclass(frozen=True)
class Material:
  """All that a report shows.

  Attributes:
    name: of the model's folder.
    command_path: the folder as commands should be given it.
    config: the gin config as text.
    bindings: what it binds.
    checkpoint: None before the first.
    curves: scalars of training by tag.
    evaluations: by name.
    analyses: of embedding spaces, by name.
    baselines: metrics by system, of `dualenc quickstart`.
    problems: what is damaged, one sentence each.
  """

  name: str
  command_path: str
  config: str
  bindings: Mapping[str, str]
  checkpoint: Checkpoint | None
  curves: Mapping[str, Series]
  evaluations: list[Evaluation]
  analyses: list[Analysis]
  baselines: Mapping[str, Mapping[str, float]]
  problems: list[str]


def read(model_dir: str) -> Material:
  """Reads what is there of a model_dir.

  What is damaged is left out and told, except for the config and for results:
  without one of them, averages would be over other sets than they seem to be.

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
  text = files.read_text(config)
  curves, problems = event_files.read_scalars(folder / 'events')
  analyses = [
      _unless_damaged(lambda: _analysis(path), None, problems, _ANALYZE)
      for path in sorted(folder.glob('analysis/*/analysis.json'))
  ]
  return Material(
      name=folder.resolve().name,
      command_path=model_dir,
      config=text,
      bindings=gin_text.bindings(text),
      checkpoint=_newest_checkpoint(folder / 'checkpoints', problems),
      curves=curves,
      evaluations=[
          _evaluation(path.parent, problems)
          for path in sorted(folder.glob('evaluation/*/metrics.json'))
      ],
      analyses=[analysis for analysis in analyses if analysis],
      baselines=_unless_damaged(
          lambda: _baselines(folder / 'quickstart.json'),
          {},
          problems,
          'Run `dualenc quickstart` again.',
      ),
      problems=problems,
  )


def _unless_damaged(
    read: Callable[[], _T], otherwise: _T, problems: list[str], advice: str
) -> _T:
  """What `read` returns, or `otherwise` and a problem more, with advice."""
  try:
    return read()
  except UserError as e:
    problems.append(f'{e} It is left out. {advice}')
    return otherwise


def _newest_checkpoint(
    folder: pathlib.Path, problems: list[str]
) -> Checkpoint | None:
  # Orbax gives a checkpoint its name, the step, when it is complete.
  steps = [int(p.name) for p in folder.glob('*') if p.name.isdecimal()]
  if not steps:
    return None
  newest = folder / str(max(steps))
  meta = newest / 'meta' / 'metadata'
  time = newest / '_CHECKPOINT_METADATA'
  return Checkpoint(
      step=max(steps),
      meta=_unless_damaged(lambda: _meta(meta), {}, problems, _RESTORE),
      saved=_unless_damaged(lambda: _saved(time), None, problems, _RESTORE),
  )


def _meta(path: pathlib.Path) -> dict[str, Any]:
  meta = files.read_json(path)
  if 'data' in meta:
    files.require(meta, path, data=dict)
    if 'task' in meta['data']:
      # The tasks of a mixture are a list.
      files.require(meta['data'], path, task=(str, list))
  return {name: meta[name] for name in meta if name != 'config'}


def _saved(path: pathlib.Path) -> datetime.datetime | None:
  name = 'commit_timestamp_nsecs'
  written = files.read_json(path)
  if written.get(name) is None:
    return None
  files.require(written, path, **{name: int})
  # Of 64 bits, whose nanoseconds do not leave the 17th to 23rd century.
  return datetime.datetime.fromtimestamp(
      written[name] // 10**9, datetime.timezone.utc
  )


def _evaluation(folder: pathlib.Path, problems: list[str]) -> Evaluation:
  path = folder / 'examples.jsonl'
  return Evaluation(
      folder.name,
      read_result(folder),
      _unless_damaged(lambda: _examples(path), None, problems, again(folder)),
  )


def _examples(path: pathlib.Path) -> list[Mapping[str, Any]] | None:
  if not path.exists():
    return None
  examples = []
  for where, example in files.read_json_lines(path):
    files.require(example, where, query=str, rank=(int, _NONE), hits=list)
    passages = [*example['hits']]
    if example.get('relevant') is not None:
      files.require(example['relevant'], where, text=str)
      passages.append(example['relevant'])
    for hit in example['hits']:
      files.require(
          hit,
          where,
          rank=int,
          score=_NUMBER,
          text=str,
          grade=(int, _NONE),
      )
    for passage in passages:
      if 'id' in passage:
        files.require(passage, where, id=(str, _NONE))
    examples.append(example)
  return examples


def _baselines(path: pathlib.Path) -> dict[str, dict[str, float]]:
  if not path.exists():
    return {}
  systems = files.read_json(path)
  files.require(systems, path, **dict.fromkeys(systems, dict))
  for metrics in systems.values():
    files.require(metrics, path, **dict.fromkeys(metrics, _NUMBER))
  return systems


def _analysis(path: pathlib.Path) -> Analysis:
  facts = files.read_json(path)
  files.require(facts, path, figures=list)
  figures = facts.pop('figures')
  for figure in figures:
    files.require(figure, path, title=str, caption=str)
  if 'models' not in facts:
    files.require(facts, path, numbers=dict)
    numbers = {'': facts.pop('numbers')}
  else:
    # Several models in one: what is of each comes under its name.
    files.require(facts, path, models=list)
    numbers = {}
    for model in facts.pop('models'):
      files.require(model, path, name=str, numbers=dict)
      numbers[model['name']] = model.pop('numbers')
      facts[model.pop('name')] = model
    if not numbers:
      raise UserError(f'{path} has no model.')
  for values in numbers.values():
    files.require(values, path, **dict.fromkeys(values, _NUMBER))
  return Analysis(path.parent, facts, numbers, figures)
