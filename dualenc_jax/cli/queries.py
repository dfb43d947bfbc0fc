"""Queries of the file of --queries, with their ids."""

import pathlib

from dualenc_jax.data.readers import rows, tables
from dualenc_jax.data.readers.texts import Texts
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import UserError


def read(path: pathlib.Path) -> list[tuple[str, str]]:
  """Ids and texts of the queries of a file.

  The file has a text a line, whose id is its number from 1 on; or it is a table
  or a BEIR folder with ids, see `data.readers.texts.Texts`.
  """
  form = path.name.removesuffix('.gz').rpartition('.')[2]
  if path.is_dir() or form in tables.FORMATS:
    with rows.skipped_by(None):
      found = Texts(str(path)).examples('queries')
      return [(row['query_id'], row['query']) for row in found]
  again = '--queries takes a UTF-8 file with one text per line.'
  lines = json_file.read_text(path.expanduser(), again).splitlines()
  texts = list(filter(str.strip, lines))
  if not texts:
    raise UserError(f'--queries {path} has no texts. Expected one per line.')
  return [(str(i), text) for i, text in enumerate(texts, start=1)]
