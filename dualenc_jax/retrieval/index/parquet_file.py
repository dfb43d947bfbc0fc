"""An index as one Parquet file, which every vector database has a loader for.

A row is a passage, in the order of the index: id, name, location (null where
there is none), text, and its embedding as either `vector`, a list of D float32,
or `codes`, bytes of one length. What these are the schema says: the JSON object
under the key `dualenc`.
"""

from collections.abc import Iterator, Mapping
import itertools
import json
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.retrieval.index.index import Index
from dualenc_jax.retrieval.index.rows import Rows
from dualenc_jax.utils import files
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.progress import Progress

METADATA = b'dualenc'


def check_installed() -> None:
  """Raises UserError without pyarrow."""
  try:
    import pyarrow.parquet  # noqa: F401
  except ImportError as e:
    raise UserError(
        f'--to=vectors needs pyarrow, which cannot be imported ({e}). pip'
        " install 'dualenc-jax[data]'"
    ) from e


def write(
    path: pathlib.Path, index: Index, rows: Rows, about: Mapping[str, Any]
) -> None:
  """Writes a file, reads it again and compares ids and embeddings.

  A block of rows, floats, which become float32, or codes, uint8, is a row
  group, and one of them is in memory at a time. `about` is JSON for the schema.

  Raises:
    UserError: it cannot be written, or reads otherwise than it was written.
  """
  from pyarrow import parquet

  schema = _schema(rows, about)
  with files.writing(path, 'another --out'):
    with (
        parquet.ParquetWriter(path, schema, use_dictionary=False) as writer,
        Progress('Writing', len(rows), 'rows') as progress,
    ):
      for start, block in _numbered(rows):
        table = _table(schema, index, start, block)
        writer.write_table(table, row_group_size=len(block))
        progress(len(block))
    ids = iter(index.ids)
    with parquet.ParquetFile(path) as file:
      for group, (start, block) in enumerate(_numbered(rows)):
        found = file.read_row_group(group, ['id', schema.names[-1]])
        own = list(itertools.islice(ids, len(block)))
        column = found.column(1).combine_chunks()
        if found['id'].to_pylist() != own or not column.equals(
            _array(column.type, block)
        ):
          raise UserError(
              f'{path} differs from what was written, after row {start}. Check'
              ' the disk, and convert again.'
          )


def _numbered(rows: Rows) -> Iterator[tuple[int, np.ndarray]]:
  """Blocks with their first row."""
  start = 0
  for block in rows:
    yield start, block
    start += len(block)


def _schema(rows: Rows, about: Mapping[str, Any]) -> Any:
  import pyarrow as pa

  embedding = pa.field('vector', pa.list_(pa.float32(), rows.width), False)
  if np.dtype(rows.dtype) == np.uint8:
    embedding = pa.field('codes', pa.binary(rows.width), False)
  texts = [pa.field(n, pa.string()) for n in ('name', 'location', 'text')]
  return pa.schema(
      [pa.field('id', pa.string(), False), *texts, embedding],
      {METADATA: json.dumps(about)},
  )


def _table(schema: Any, index: Index, start: int, block: np.ndarray) -> Any:
  """A row group."""
  import pyarrow as pa

  passages = [index.passage(row) for row in range(start, start + len(block))]
  columns = zip(*((p.id, p.name or None, p.location or None, p.text)
                  for p in passages))
  try:
    arrays = [pa.array(column, pa.string()) for column in columns]
  except UnicodeEncodeError as e:
    texts = [p.id + p.name + p.location + p.text for p in passages]
    row = next(i for i, text in enumerate(texts) if e.object in text)
    raise UserError(
        f'Row {start + row} of {index.folder}, {passages[row].id!r}, has half a'
        ' surrogate pair, which Parquet cannot hold. Repair the source of the'
        ' text, and encode again.'
    ) from e
  arrays.append(_array(schema.field(len(arrays)).type, block))
  return pa.Table.from_arrays(arrays, schema=schema)


def _array(kind: Any, block: np.ndarray) -> Any:
  """[b, width] as a column of lists, or of bytes, without a copy of float32."""
  import pyarrow as pa

  if pa.types.is_fixed_size_binary(kind):
    content = pa.py_buffer(np.ascontiguousarray(block))
    return pa.FixedSizeBinaryArray.from_buffers(
        kind, len(block), [None, content]
    )
  values = np.ascontiguousarray(block, np.float32).reshape(-1)
  return pa.FixedSizeListArray.from_arrays(pa.array(values), type=kind)
