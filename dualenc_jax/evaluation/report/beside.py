"""Scores of other systems, and training of other models, beside a model.

Others are those that are asked for, and BM25 and the like, where `dualenc
evaluate` has measured them beside the model.
"""

from collections.abc import Mapping, Sequence
import pathlib
from typing import NamedTuple

from dualenc_jax.evaluation.report import curves
from dualenc_jax.evaluation.report.curves import Curves
from dualenc_jax.evaluation.results import (
  comparison,
  comparison_files,
  folder,
  systems,
)
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.table import Table

_BM25 = folder.BASELINES[0]


class Beside(NamedTuple):
  """The others.

  Attributes:
    name: of the model, beside the others.
    tables: of `dualenc compare` against each baseline, a summary first if there
      are several.
    runs: training curves by the run's name, of those that have any.
    notes: why there is no comparison, or what is damaged, a sentence each.
  """

  name: str
  tables: Sequence[Sequence[Table]]
  runs: Mapping[str, Curves]
  notes: Sequence[str]


def read(model_dir: pathlib.Path, others: Sequence[pathlib.Path]) -> Beside:
  """Compares a model with others by their results, and reads their curves.

  The baselines are the first of the others, and BM25.

  Raises:
    UserError: one of the others is neither a model_dir nor a result folder, or
      has results of other data: there would be nothing of what was asked for.
  """
  runs: dict[str, Curves] = {}
  notes, paths, tables, ours = [], [], [], []
  folders = [model_dir, *others]
  own_name, *names = systems.distinct(
      [path.resolve().name for path in folders], folders
  )
  for path, name in zip(others, names):
    home, system = systems.split(path)
    # Training is the model's; it need not be drawn of BM25 beside it.
    found, problems = ({}, []) if system else curves.read(home / curves.FILE)
    runs |= {name: found} if found else {}
    notes += problems
    if folder.found(home, system):
      paths.append(path)
    elif found:
      notes.append(f'{path} has no results to compare: evaluate it first.')
    else:
      raise UserError(
          f'--beside={path} has neither results of `dualenc evaluate` nor'
          f' {curves.FILE} of `dualenc train`. Give a model_dir, a result'
          f' folder or MODEL_DIR:{_BM25}; `dualenc compare` takes run files.'
      )
  if folder.found(model_dir):
    own = [s for s in folder.SYSTEMS if folder.found(model_dir, s)]
    ours = [model_dir, *(pathlib.Path(f'{model_dir}:{s}') for s in own)]
  elif paths:
    why = f'{model_dir} has no results to compare: evaluate it first.'
    if not runs:
      raise UserError(why)
    notes.append(why)
  groups = [[*paths, *(p for p in ours if p not in paths)]] if paths else []
  bm25 = pathlib.Path(f'{model_dir}:{_BM25}')
  if bm25 in ours and bm25 not in paths[:1]:
    groups.append([bm25, *(p for p in ours if p != bm25)])
  for group in groups:
    if len(group) < 2:
      continue
    try:
      baseline, *models = systems.read(group)
      tables.append(comparison_files.comparison_tables(
          comparison.compare(baseline, models)
      ))
    except UserError as e:
      if group[0] in paths:
        raise UserError(f'--beside={group[0]} cannot be compared: {e}') from e
      notes.append(f'There is no comparison: {e}')
  return Beside(own_name, tables, runs, notes)
