"""Folders that `save_to_disk` of datasets wrote, without that library."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import pathlib
from typing import Any

from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.errors import UserError

STATE = 'state.json'
SPLITS = 'dataset_dict.json'
_AGAIN = 'Save the data set again with save_to_disk.'


def is_one(path: pathlib.Path) -> bool:
  """Whether it is a folder of one split, or one of several."""
  return any((path / name).is_file() for name in (STATE, SPLITS))


def files(path: pathlib.Path) -> list[pathlib.Path]:
  """What lists the files of a split's rows, and these in their order.

  Raises:
    UserError: the folder is of several splits, is damaged, or its rows are
      chosen or put in order by an index.
  """
  if (path / SPLITS).is_file():
    about = json_file.read(path / SPLITS, _AGAIN, splits=[str])
    places = [str(path / name) for name in about['splits']]
    raise UserError(
        f'{path} is a folder of several splits. Give one:'
        f' {", ".join(places)[:400]}.'
    )
  state = path / STATE
  about = json_file.read(state, _AGAIN, _data_files=[{'filename': str}])
  if about.get('_indices_files'):
    raise UserError(
        f'{path} keeps its rows by an index, _indices_files. Call'
        ' flatten_indices() before save_to_disk.'
    )
  found = [state]
  for entry in about['_data_files']:
    where = f'{state}: a filename of _data_files'
    file = path / untrusted.check_name(entry['filename'], where, _AGAIN)
    if not untrusted.is_file(file):
      raise UserError(f'{untrusted.why_no_file(file)}. {_AGAIN}')
    found.append(file)
  if len(found) == 1:
    raise UserError(f'{state} names no _data_files. {_AGAIN}')
  return found


def read(
    path: pathlib.Path, wanted: Callable[[str], bool]
) -> tuple[Sequence[str], Iterator[tuple[int, Any]]]:
  """The columns, and (row number from 1 on, record batch of that row).

  The files are mapped into memory, not read into it; `wanted` says by its name
  whether a column is read. Without pyarrow it is an ImportError.
  """
  import pyarrow

  parts = files(path)[1:]

  @contextlib.contextmanager
  def opened(part: pathlib.Path) -> Iterator[Any]:
    try:
      with pyarrow.memory_map(str(part)) as source:
        yield pyarrow.ipc.open_stream(source)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
      reason = ' '.join(str(error).split()).rstrip('.')
      raise UserError(
          f'{part} is not an Arrow stream, or is damaged: {reason}. {_AGAIN}'
      ) from error

  def numbered() -> Iterator[tuple[int, Any]]:
    number = 0
    for part in parts:
      with opened(part) as stream:
        if stream.schema.names != names:
          raise UserError(f'{part} has other columns than {parts[0]}. {_AGAIN}')
        for batch in stream:
          batch = batch.select([name for name in names if wanted(name)])
          batch.validate(full=True)  # Offsets may lead anywhere.
          for row in range(len(batch)):
            number += 1
            yield number, batch.slice(row, 1)

  with opened(parts[0]) as stream:
    names = stream.schema.names
  return names, numbered()
