"""An index as files of other programs: of faiss, or Parquet.

The folder of `--to=faiss` has

  index.faiss   the index, for `faiss.read_index` or `read_index_binary`.
  ids.txt       the id of row i in line i.
  about.json    codec, dtype, bit order and model.

The folder of `--to=vectors` has

  vectors.parquet   a row per passage, in the order of the index: id, name and
                    location (null where missing), text, and its embedding as
                    `vector`, a list of float32, or `codes`, bytes of one
                    length. The schema has about.json under the key `dualenc`.
  codec.safetensors the arrays that decode codes.
"""

from collections.abc import Callable, Iterator, Mapping
import importlib
import json
import os
import pathlib
import shutil
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.retrieval.compression import (
  Codec,
  codec as codec_lib,
  Coded,
)
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.retrieval.compression.quantisers import Signs
from dualenc_jax.retrieval.encoding.towers import TOWER_SHA256
from dualenc_jax.retrieval.index.header import FILE
from dualenc_jax.retrieval.index.index import Index
from dualenc_jax.retrieval.index.shard import IDS, IndexFolders
from dualenc_jax.utils import files
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.files import format_size
from dualenc_jax.utils.progress import Progress

METADATA = b'dualenc'
# Rows that are read at once: 50 MB of float32 at 768 dimensions.
BLOCK = 2**14
# Fields of the provenance that name the model, and no folders.
_MODEL_FIELDS = (TOWER_SHA256, 'vocabulary', 'run_id', 'checkpoint_step')


def is_index(path: str | os.PathLike[str]) -> bool:
  """Returns whether a folder has an index, complete or not."""
  folders = IndexFolders(path)
  of_index = folders.readable(), folders.partial
  return any((folder / FILE).is_file() for folder in of_index)


def convert(
    source: str | os.PathLike[str], name: str, out: pathlib.Path,
    log: Callable[[str], None] = print,
) -> None:
  """Writes an index in a form of `FORMS` to a new or an empty folder.

  The folder appears when it is complete. `log` takes a line on each step.
  """
  form = FORMS[name]
  try:
    importlib.import_module(form.library)
  except ImportError as e:
    raise UserError(
        f'--to={name} needs {form.library}, which cannot be imported ({e}). pip'
        f" install 'dualenc-jax[{form.extra}]'"
    ) from e
  index = Index.open(source)
  rows = stored_rows(index)
  about = describe(index)
  texts = 'queries' if index.header.tower == 'query' else 'passages'
  size = format_size(len(rows) * rows.shape[1] * rows.dtype.itemsize)
  log(
      f'{source}: {len(index):,} {texts}, {about["codec"]}'
      f' [{index.header.dim}], {size} of embeddings.'
  )
  with files.new_folder(out, 'another --output_dir') as partial:
    with files.writing(out, 'another --output_dir'):
      form.write(index, about, partial)
    written = sorted(path.name for path in partial.iterdir())
  log(f'Wrote {out}: {", ".join(written)}.')


def stored_rows(index: Index) -> Any:
  """Returns the rows [N, W] of an index: embeddings, or their codes."""
  stored = index.embeddings
  return stored.codes if isinstance(stored, Coded) else stored


def blocks(rows: Any) -> Iterator[np.ndarray]:
  """Yields a store of rows [N, W] in blocks [b, W], with a bar."""
  with Progress('Writing', len(rows), 'rows') as progress:
    for start in range(0, len(rows), BLOCK):
      block = np.asarray(rows[start : start + BLOCK])
      yield block
      progress(len(block))


def describe(index: Index) -> dict[str, Any]:
  """Describes the rows of an index for their users elsewhere, as JSON."""
  header, stored = index.header, index.embeddings
  codec = stored.codec if isinstance(stored, Coded) else None
  dim, normalised = header.dim, header.normalised
  if codec is not None:
    # Decoded vectors are not of length one.
    dim, normalised = codec.quantiser.dim, codec.is_normalised
  known = header.provenance
  return {
      'passages': len(index),
      'tower': header.tower,
      'dim': dim,
      **({} if dim == header.dim else {'query_dim': header.dim}),
      'metric': 'inner product',
      'normalised': normalised,
      'codec': header.codec or header.dtype,
      **({'dtype': header.dtype} if codec is None else _describe_codes(codec)),
      'model': {name: known[name] for name in _MODEL_FIELDS if name in known},
  }


def _describe_codes(codec: Codec) -> dict[str, Any]:
  """Describes the bytes of codes, as JSON."""
  quantiser = codec.quantiser
  about = {'dtype': str(codec.code_dtype), 'rescored': codec.rescored}
  if isinstance(quantiser, Signs):
    about |= {'bits': 1, 'bit_order': 'big'}
  elif isinstance(quantiser, Product):
    about |= {'bits': quantiser.bits, 'bit_order': 'little'}
  kind = type(quantiser).__name__
  return {**about, 'quantiser': kind, 'transforms': len(codec.transforms)}


def _write_faiss(
    index: Index, about: Mapping[str, Any], folder: pathlib.Path
) -> None:
  import faiss

  from dualenc_jax.retrieval.index import faiss_index

  found = faiss_index.build(index.embeddings, blocks(stored_rows(index)))
  is_binary = isinstance(found, faiss.IndexBinary)
  write = faiss.write_index_binary if is_binary else faiss.write_index
  write(found, str(folder / 'index.faiss'))
  with (folder / IDS).open('wb') as file:
    for shard in index.shards:
      file.write(shard.ids.tobytes())
  reader = 'read_index_binary' if is_binary else 'read_index'
  files.write_json(folder / 'about.json', {**about, 'faiss': reader})


def _write_parquet(
    index: Index, about: Mapping[str, Any], folder: pathlib.Path
) -> None:
  import pyarrow as pa
  from pyarrow import parquet

  rows = stored_rows(index)
  width = rows.shape[1]
  embedding = pa.field('vector', pa.list_(pa.float32(), width), False)
  if rows.dtype == np.uint8:
    embedding = pa.field('codes', pa.binary(width), False)
  texts = [pa.field(n, pa.string()) for n in ('name', 'location', 'text')]
  schema = pa.schema(
      [pa.field('id', pa.string(), False), *texts, embedding],
      {METADATA: json.dumps(about)},
  )
  path, start = folder / 'vectors.parquet', 0
  with parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
    for block in blocks(rows):
      columns = [
          *_text_columns(index, start, len(block)),
          _embedding_column(embedding.type, block),
      ]
      table = pa.Table.from_arrays(columns, schema=schema)
      writer.write_table(table, row_group_size=len(block))
      start += len(block)
  if isinstance(index.embeddings, Coded):
    shutil.copyfile(index.folder / codec_lib.FILE, folder / codec_lib.FILE)


def _text_columns(index: Index, start: int, count: int) -> list[Any]:
  """The columns id, name, location and text of some rows."""
  import pyarrow as pa

  passages = [index.passage(row) for row in range(start, start + count)]
  columns = zip(*((p.id, p.name or None, p.location or None, p.text)
                  for p in passages))
  try:
    return [pa.array(column, pa.string()) for column in columns]
  except UnicodeEncodeError as e:
    texts = [p.id + p.name + p.location + p.text for p in passages]
    row = next(i for i, text in enumerate(texts) if e.object in text)
    raise UserError(
        f'Row {start + row} of {index.folder}, {passages[row].id!r}, has half a'
        ' surrogate pair, which Parquet cannot hold. Repair the source of the'
        ' text, and encode again.'
    ) from e


def _embedding_column(kind: Any, block: np.ndarray) -> Any:
  """[b, width] as a column of lists, or of bytes, without a copy of float32."""
  import pyarrow as pa

  if pa.types.is_fixed_size_binary(kind):
    content = pa.py_buffer(np.ascontiguousarray(block))
    return pa.FixedSizeBinaryArray.from_buffers(
        kind, len(block), [None, content]
    )
  values = np.ascontiguousarray(block, np.float32).reshape(-1)
  return pa.FixedSizeListArray.from_arrays(pa.array(values), type=kind)


class Form(NamedTuple):
  """A form that indexes are written in.

  Attributes:
    text: a description for --help.
    write: writes (index, its description, an empty folder).
    library, extra: the library that it needs, and the extra that brings it.
  """

  text: str
  write: Callable[[Index, Mapping[str, Any], pathlib.Path], None]
  library: str
  extra: str


FORMS = {
    'faiss': Form('index.faiss of an index', _write_faiss, 'faiss', 'faiss'),
    'vectors': Form(
        'Parquet of an index: id, text, vector, for vector databases',
        _write_parquet, 'pyarrow', 'data',
    ),
}
