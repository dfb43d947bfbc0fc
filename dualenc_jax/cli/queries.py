"""Queries of a file that a flag names, with their ids."""

import pathlib

from dualenc_jax.data.readers import tables
from dualenc_jax.data.readers.texts import Texts
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import UserError


def read(path: pathlib.Path, flag: str = '--queries') -> list[tuple[str, str]]:
  """Ids and texts of the queries of a file.

  Args:
    path: a text a line, whose id is its number from 1 on; or a table or a BEIR
      folder with ids, see `data.readers.texts.Texts`.
    flag: that it was given by, for messages.

  Raises:
    UserError: it cannot be read, has a bad row, or no query.
  """
  form = path.name.removesuffix('.gz').rpartition('.')[2]
  if not path.is_dir() and form not in tables.FORMATS:
    lines = _read_lines(path, flag)
    return [(str(i), line) for i, line in enumerate(lines, start=1)]
  found = [
      (row['query_id'], row['query'])
      for row in Texts(str(path)).examples('queries')
  ]
  if not found:
    raise UserError(f'{flag} {path} has no query.')
  return found


def _read_lines(path: pathlib.Path, flag: str) -> list[str]:
  """Lines of the file of a flag that are not empty."""
  again = f'{flag} takes a UTF-8 file with one text per line.'
  lines = json_file.read_text(path.expanduser(), again).splitlines()
  texts = [line for line in lines if line.strip()]
  if not texts:
    raise UserError(f'{flag} {path} has no texts. Expected one per line.')
  return texts
