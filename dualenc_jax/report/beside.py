"""Scores of other systems, and training of other models, beside a model.

Others are those that are asked for, and BM25 and the like, where `dualenc
evaluate` has measured them beside the model.
"""

from collections.abc import Mapping, Sequence
import pathlib
from typing import NamedTuple

from dualenc_jax.errors import UserError
from dualenc_jax.figures.table import Table
from dualenc_jax.report import curves
from dualenc_jax.report.curves import Curves
from dualenc_jax.results import comparison, comparison_files, folder, systems

_BM25 = folder.BASELINES[0]


class Beside(NamedTuple):
  """The others.

  Attributes:
    name: of the model, beside the others.
    tables: of `dualenc compare`, a summary first if there are several.
    runs: training curves by the run's name, of those that have any.
    notes: why there is no comparison, or what is damaged, a sentence each.
  """

  name: str
  tables: Sequence[Table]
  runs: Mapping[str, Curves]
  notes: Sequence[str]


def read(model_dir: pathlib.Path, others: Sequence[pathlib.Path]) -> Beside:
  """Compares a model with others by their results, and reads their curves.

  The baseline is the first of the others; without any it is BM25.

  Raises:
    UserError: one of the others is neither a model_dir nor a result folder.
  """
  runs: dict[str, Curves] = {}
  notes, paths, tables = [], [], []
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
    beside = [pathlib.Path(f'{model_dir}:{system}') for system in own]
    # BM25 is a baseline, the others are made of the model.
    first = [] if others or _BM25 not in own else [beside.pop(0)]
    paths += [*first, model_dir, *(p for p in beside if p not in others)]
  if len(paths) > 1:
    try:
      baseline, *models = systems.read(paths)
      tables = comparison_files.comparison_tables(
          comparison.compare(baseline, models)
      )
    except UserError as e:
      notes.append(f'There is no comparison: {e}')
  return Beside(own_name, tables, runs, notes)
