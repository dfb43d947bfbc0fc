"""Comparisons of a model with others: by their results, and their training.

The others are those that are asked for, and BM25, hybrid search and re-ranking
where `dualenc evaluate` has measured them with the model.
"""

from collections.abc import Mapping, Sequence
import pathlib
from typing import NamedTuple

from dualenc_jax.evaluation.report import curves
from dualenc_jax.evaluation.report.curves import Curves
from dualenc_jax.evaluation.results import (
  compared_systems,
  comparison,
  comparison_files,
  result_files,
)
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.table import Table

_BM25 = result_files.BASELINES[0]


class Comparisons(NamedTuple):
  """A model and others.

  Attributes:
    name: the model's name, distinct from the others'.
    tables: those of `dualenc compare`, one for each baseline.
    runs: training curves by the run's name, of those that have any.
  """

  name: str
  tables: Sequence[Table]
  runs: Mapping[str, Curves]


def read(
    model_dir: pathlib.Path, others: Sequence[pathlib.Path]
) -> Comparisons:
  """Compares a model with others by their results, and reads their curves.

  The baselines are the first of the others, and BM25.

  Raises:
    UserError: one of the others is neither a model_dir nor a result folder, or
      has results of other data.
  """
  runs: dict[str, Curves] = {}
  folders = [model_dir, *others]
  model_name, *names = compared_systems.distinct(
      [path.resolve().name for path in folders], folders
  )
  for path, name in zip(others, names):
    home, system = compared_systems.split_system(path)
    if not result_files.find_results(home, system):
      raise UserError(
          f'--beside={path} has no results of `dualenc evaluate`. Give a'
          f' model_dir, a result folder or MODEL_DIR:{_BM25}.'
      )
    # Curves are those of the model, not of BM25 beside it.
    if not system and (lines := curves.read(home / curves.FILE)):
      runs[name] = lines
  ours = [
      pathlib.Path(f'{model_dir}:{system}') if system else model_dir
      for system in ('', *result_files.SYSTEMS)
      if result_files.find_results(model_dir, system)
  ]
  if others and not ours:
    raise UserError(
        f'{model_dir} has no results to compare: evaluate it first.'
    )
  bm25 = pathlib.Path(f'{model_dir}:{_BM25}')
  groups = [[*others, *ours]] if others else []
  if bm25 in ours and bm25 not in others[:1]:
    groups.append([bm25, *ours])
  tables = []
  for group in groups:
    first, *models = compared_systems.read([*dict.fromkeys(group)])
    compared = comparison.compare(first, models)
    tables.append(comparison_files.make_table(compared))
  return Comparisons(model_name, tables, runs)
