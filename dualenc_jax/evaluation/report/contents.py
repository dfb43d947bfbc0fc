"""The contents of a MODEL_DIR that a report can show, as plain objects."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import pathlib
import re
from typing import Any

from dualenc_jax.evaluation.report import curves
from dualenc_jax.evaluation.results import (
  compared_systems,
  comparison,
  comparison_files,
  result_files,
)
from dualenc_jax.evaluation.results.result_files import (
  Model,
  read_result,
  Result,
)
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.table import Table

CONFIG = 'config.gin'
_BM25 = result_files.BASELINES[0]
# The owner's words on a model: uses, licence, languages, faults.
ABOUT = 'about.md'
# Folders in a model_dir with results of a dim or of prompts.
_PART = re.compile(r'(dim|prompt)-')
# `gin.config_str` writes a long value in a line of its own.
_MACRO = re.compile(r'^([A-Z]\w*) = (?:\\\n\s*)?(.*)$', re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """A result folder of `dualenc evaluate`.

  Attributes:
    name: the folder's name.
    result: the model's result.
    examples: queries with their top hits, None without a file of them.
  """

  name: str
  result: Result
  examples: list[Mapping[str, Any]] | None


@dataclasses.dataclass(frozen=True)
class Analysis:
  """A folder of `dualenc analyze`: numbers by name, and its figures."""

  folder: pathlib.Path
  facts: Mapping[str, Any]
  numbers: Mapping[str, float]
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
    runs: training curves by name, the model's first; see `curves.read`.
    evaluations: result folders.
    systems: the model, BM25 and the like, with the results of these folders.
    comparisons: tables of `dualenc compare`, one for each baseline.
    analyses: folders of figures.
    about: the owner's words, '' if missing.
    before_after: what training has changed, a sentence each.
  """

  name: str
  command_path: str
  config: str
  settings: Mapping[str, str]
  step: int | None
  meta: Mapping[str, Any]
  runs: Mapping[str, curves.Curves]
  evaluations: list[Evaluation]
  systems: list[Model]
  comparisons: list[Table]
  analyses: list[Analysis]
  about: str
  before_after: list[str]

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


def read(model_dir: str, others: Sequence[pathlib.Path] = ()) -> Contents:
  """Reads the files of a model_dir, or of a folder of dim or prompts in it.

  The model is compared with the first of the others, and with BM25 where
  `dualenc evaluate` has measured it beside the model.

  Raises:
    UserError: it is not a model_dir, a file in it is damaged, or one of the
      others has no results or those of other data.
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
  config = json_file.read_text(root / CONFIG)
  step = result_files.newest_step(root)
  paths = sorted(folder.glob(f'evaluation/*/{result_files.METRICS}'))
  about = ''
  if (root / ABOUT).exists():
    about = json_file.read_text(root / ABOUT)
  return Contents(
      name='/'.join([root.resolve().name, *folder.relative_to(root).parts]),
      command_path=str(root) if parts else model_dir,
      config=config,
      settings=dict(_MACRO.findall(config)),
      step=step,
      meta={} if step is None else result_files.read_meta(root, step),
      runs=_read_runs([folder, *others], root),
      evaluations=[_read_evaluation(path.parent) for path in paths],
      systems=result_files.read_all(folder) if paths else [],
      comparisons=list(_compare(folder, others)),
      analyses=[
          _read_analysis(path)
          for path in sorted(folder.glob('analysis/*/analysis.json'))
      ],
      about=about.strip(),
      before_after=list(comparison.verdict_of_training(root)),
  )


def _read_runs(
    folders: Sequence[pathlib.Path], root: pathlib.Path
) -> dict[str, curves.Curves]:
  """The model's curves, and those of others that have any."""
  names = compared_systems.distinct(
      [path.resolve().name for path in folders], folders
  )
  runs = {names[0]: curves.read(root / curves.FILE)}
  for name, other in zip(names[1:], folders[1:]):
    if lines := curves.read(other / curves.FILE):
      runs[name] = lines
  return runs


def _compare(
    folder: pathlib.Path, others: Sequence[pathlib.Path]
) -> Iterator[Table]:
  for path in others:
    if not result_files.find_results(*compared_systems.split_system(path)):
      raise UserError(
          f'--beside={path} has no results of `dualenc evaluate`. Give a'
          f' model_dir, a result folder or MODEL_DIR:{_BM25}.'
      )
  ours = [
      pathlib.Path(f'{folder}:{system}') if system else folder
      for system in ('', *result_files.SYSTEMS)
      if result_files.find_results(folder, system)
  ]
  if others and not ours:
    raise UserError(f'{folder} has no results to compare: evaluate it first.')
  bm25 = pathlib.Path(f'{folder}:{_BM25}')
  groups = [[*others, *ours]] if others else []
  if bm25 in ours and bm25 not in others[:1]:
    groups.append([bm25, *ours])
  for group in groups:
    first, *models = compared_systems.read(
        [*map(compared_systems.System, dict.fromkeys(group))]
    )
    yield comparison_files.make_table(comparison.compare(first, models))


def _read_evaluation(home: pathlib.Path) -> Evaluation:
  examples = home / result_files.EXAMPLES
  lines = json_file.read_lines(examples) if examples.exists() else None
  return Evaluation(
      home.name,
      read_result(home),
      None if lines is None else [example for _, example in lines],
  )


def _read_analysis(path: pathlib.Path) -> Analysis:
  facts = json_file.read(path)
  numbers, figures = facts.pop('numbers'), facts.pop('figures')
  return Analysis(path.parent, facts, numbers, figures)
