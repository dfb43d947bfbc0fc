"""The systems of a comparison: model_dirs, result folders or run files."""

from collections.abc import Sequence
import pathlib

from dualenc_jax.errors import UserError
from dualenc_jax.results import folder, run_file
from dualenc_jax.results.folder import Model


def read(
    paths: Sequence[pathlib.Path],
    names: Sequence[str] | None = None,
    qrels: pathlib.Path | None = None,
    k: int | None = None,
) -> list[Model]:
  """Reads two systems or more, under different names.

  Args:
    paths: folders with results of `dualenc evaluate`, or TREC run files.
    names: what to call the systems; None for what their folders or files say.
    qrels: what run files are measured by.
    k: how many of the best hits a query of run files to use, None for all.

  Raises:
    UserError: fewer than two, one that cannot be read, run files without qrels
      or mixed with folders, or names that do not fit.
  """
  if len(paths) < 2:
    raise UserError('Give two or more systems to compare, the baseline first.')
  if names is not None and len(names) != len(paths):
    raise UserError(
        f'--names has {len(names)} names for {len(paths)} systems; expected as'
        ' many.'
    )
  if names is not None and len({*names}) < len(names):
    raise UserError(f'--names={",".join(names)} has a name twice.')
  for path in paths:
    if not path.exists():
      raise UserError(f'{path} does not exist.')
  named = list(zip(paths, names or [None] * len(paths)))
  runs = [path for path in paths if path.is_file()]
  if runs and len(runs) < len(paths):
    raise UserError(
        f'{runs[0]} is a run file, but others are folders. Give the run.trec'
        ' of their result folders instead, and --qrels.'
    )
  if runs and qrels is None:
    raise UserError(f'{runs[0]} is a run file: give --qrels to measure it by.')
  if not runs and (qrels is not None or k):
    raise UserError('--qrels and --k are for run files, and none is given.')
  if not runs:
    return _told_apart([folder.read_model(*system) for system in named])
  judgements = run_file.Judgements.read(qrels)
  return _told_apart([
      run_file.read_model(path, judgements, k, name) for path, name in named
  ])


def _told_apart(models: list[Model]) -> list[Model]:
  """The models, where names are repeated under their paths."""
  for names in ([m.name for m in models], [m.where for m in models]):
    if len({*names}) == len(names):
      return [
          Model(name, model.where, model.results)
          for name, model in zip(names, models)
      ]
  raise UserError(
      f'{", ".join(names)}: one is given twice. Give different ones, or tell'
      ' them apart by --names.'
  )
