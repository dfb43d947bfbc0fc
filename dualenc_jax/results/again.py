"""The advice that ends messages on a damaged result folder."""

import pathlib


def again(folder: pathlib.Path) -> str:
  """A sentence with the command that makes a result folder anew.

  It names task and split where the folder is one of `evaluation`, whose names
  are <label>-<split>.
  """
  where = folder.resolve()
  label, _, split = where.name.rpartition('-')
  if where.parent.name != 'evaluation' or not (label and split):
    return 'Run `dualenc evaluate` again.'
  return f'Run `dualenc evaluate` again, on {label}, split {split}.'
