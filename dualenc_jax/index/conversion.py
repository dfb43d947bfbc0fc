"""An index in the files of other programs: faiss's own, or Parquet."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import os
import pathlib
import re
from typing import Any

import numpy as np

from dualenc_jax.compression import Codec
from dualenc_jax.compression.product import Product
from dualenc_jax.compression.quantisers import Levels, Signs
from dualenc_jax.errors import UserError
from dualenc_jax.index import faiss_forms, parquet_file
from dualenc_jax.index.header import FILE, FORMAT
from dualenc_jax.index.index import Index
from dualenc_jax.index.shard import IDS, INFO, Places
from dualenc_jax.inference.towers import TOWER_SHA256
from dualenc_jax.interop import faiss_files
from dualenc_jax.interop.rows import Rows
from dualenc_jax.io import files, json_file
from dualenc_jax.io.forecast import gigabytes

FAISS_FILE = 'index.faiss'
PARQUET_FILE = 'vectors.parquet'
ABOUT_FILE = 'about.json'
ARRAYS_FILE = 'codec.npz'
IDS_OF_FAISS = ('rows', 'own')
# Of the header's provenance: what names the model, and no places.
_OF_MODEL = (TOWER_SHA256, 'vocabulary', 'run_id', 'checkpoint_step')
_NUMBER = re.compile(r'0|-?[1-9]\d{0,18}')


@dataclasses.dataclass(frozen=True)
class Parts:
  """What the writers need of an index.

  Attributes:
    codec: its name: 'float32', 'float16', 'pq:96'.
    rows: what it keeps of each vector: floats, or codes, uint8.
    about: what the numbers of `rows` mean, as JSON: dtype, bit order, sign.
    faiss: makes the index of faiss of `rows`; raises UserError if there is
      none of this codec.
    arrays: what decodes codes, by name; empty of floats.
  """

  codec: str
  rows: Rows
  about: Mapping[str, Any]
  faiss: Callable[[Rows], faiss_files.Index]
  arrays: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Form:
  """A form that indexes are written in.

  Attributes:
    text: what it is, for --help.
    write: (index, parts, what is known of them, which ids, an empty folder).
    check: raises UserError where it cannot be written here.
  """

  text: str
  write: Callable[..., None]
  check: Callable[[], None] = lambda: None


def parts_of(index: Index) -> Parts:
  """What the writers need of an index."""
  codec = getattr(index.embeddings, 'codec', None)
  if codec is None:
    dtype = index.header.dtype
    rows = Rows.of(index.embeddings)
    return Parts(dtype, rows, {'dtype': dtype}, faiss_forms.FLOATS[dtype])
  return Parts(
      codec.name,
      Rows.of(index.embeddings.codes),
      codec_about(codec),
      functools.partial(faiss_forms.of_codec, codec),
      codec_arrays(codec),
  )


def codec_about(codec: Codec) -> dict[str, Any]:
  """What the bytes of codes mean, as JSON."""
  quantiser = codec.quantiser
  about = {'dtype': str(codec.code_dtype), 'rescored': codec.rescored}
  kind = type(quantiser).__name__
  if isinstance(quantiser, Signs):
    about |= {'bits': 1, 'bit_order': 'big'}
  elif isinstance(quantiser, Levels | Product):
    about |= {'bits': quantiser.bits, 'bit_order': 'little'}
  return {**about, 'quantiser': kind, 'transforms': len(codec.transforms)}


def codec_arrays(codec: Codec) -> dict[str, np.ndarray]:
  """What decodes codes, and maps queries, by name."""
  parts = {
      **{f'transform_{i}': part for i, part in enumerate(codec.transforms)},
      'quantiser': codec.quantiser,
  }
  return {
      f'{name}_{field}': np.asarray(value)
      for name, part in parts.items()
      for field, value in vars(part).items()
      if hasattr(value, 'shape')
  }


def is_index(path: str | os.PathLike[str]) -> bool:
  """Whether a folder is an index, whole or not, told by its content."""
  if '://' in str(path):
    return False
  places = Places(path)
  for folder in (places.readable(), places.partial):
    if any(folder.glob(f'shard-*/{INFO}')):
      return True
    try:
      value = json_file.read(folder / FILE)
    except UserError:
      continue
    if value.get('format') == FORMAT:
      return True
  return False


def convert(
    source: str | os.PathLike[str],
    name: str,
    out: pathlib.Path,
    ids: str = 'rows',
    say: Callable[[str], None] = print,
) -> None:
  """Writes beside the output, reads it again, and moves it into place.

  Args:
    source: an index.
    name: a key of `FORMS`.
    out: a new or an empty folder.
    ids: what faiss returns: 'rows', numbers of lines of ids.txt, or 'own', the
      ids, which must be whole numbers.
    say: gets a line for people about each step.

  Raises:
    UserError: the index is damaged or not to be written so, or the output is
      there. Nothing is left then.
  """
  form = FORMS[name]
  form.check()
  index = Index.open(source)
  parts = parts_of(index)
  about = describe(index, parts)
  texts = 'queries' if index.header.tower == 'query' else 'passages'
  say(
      f'{source}: {len(index):,} {texts}, {parts.codec} [{index.header.dim}],'
      f' {gigabytes(parts.rows.nbytes)} of embeddings.'
  )
  with files.new_folder(out, 'another --out') as partial:
    form.write(index, parts, about, ids, partial)
    written = sorted(path.name for path in partial.iterdir())
  say(f'Wrote {out}, read back and compared: {", ".join(written)}.')


def describe(index: Index, parts: Parts) -> dict[str, Any]:
  """What those who use the numbers elsewhere have to know of them."""
  header = index.header
  known = header.provenance
  dim, normalised = header.dim, header.normalised
  codec = getattr(index.embeddings, 'codec', None)
  if codec is not None:
    # What codes stand for is not of length one but to rounding.
    dim, normalised = codec.quantiser.dim, codec.is_normalised
  return {
      'passages': len(index),
      'tower': header.tower,
      'dim': dim,
      **({} if dim == header.dim else {'query_dim': header.dim}),
      'metric': 'inner product',
      'normalised': normalised,
      'codec': parts.codec,
      **parts.about,
      'model': {name: known[name] for name in _OF_MODEL if name in known},
  }


def write_faiss(
    index: Index,
    parts: Parts,
    about: Mapping[str, Any],
    ids: str,
    folder: pathlib.Path,
) -> None:
  """index.faiss; ids.txt, unless its ids are the own ones; about.json."""
  found = parts.faiss(parts.rows)
  if ids == 'own':
    found = faiss_files.with_ids(Rows.of(whole_numbers(index)), found)
  faiss_files.write(folder / FAISS_FILE, found, 'another --out')
  if ids == 'rows':
    with files.writing(folder / IDS, 'another --out'):
      with (folder / IDS).open('wb') as file:
        for shard in index.shards:
          file.write(shard.ids)
  reader = 'read_index_binary' if found.is_binary else 'read_index'
  files.write_json(
      folder / ABOUT_FILE, {**about, 'faiss': reader, 'faiss_ids': ids}
  )


def whole_numbers(index: Index) -> np.ndarray:
  """The ids as int64 [N, 1].

  Raises:
    UserError: one is no whole number of 64 bits, in the digits that it is
      printed with; so different ids stay different.
  """
  numbers = np.empty((len(index), 1), np.int64)
  for row, id_ in enumerate(index.ids):
    number = int(id_) if _NUMBER.fullmatch(id_) else 2**63
    if not -(2**63) <= number < 2**63:
      raise UserError(
          f'--ids=own: row {row} of {index.folder} has the id {id_!r}, and'
          ' faiss takes whole numbers of 64 bits, without zeros in front. Leave'
          ' the flag out: hits are numbers of rows then, with ids in ids.txt.'
      )
    numbers[row] = number
  return numbers


def write_parquet(
    index: Index,
    parts: Parts,
    about: Mapping[str, Any],
    ids: str,
    folder: pathlib.Path,
) -> None:
  """vectors.parquet; of codes also codec.npz, which decodes them."""
  del ids
  parquet_file.write(folder / PARQUET_FILE, index, parts.rows, about)
  if parts.arrays:
    with files.writing(folder / ARRAYS_FILE, 'another --out'):
      np.savez(folder / ARRAYS_FILE, **parts.arrays)


FORMS = {
    'faiss': Form(
        'index.faiss of an index, written without faiss', write_faiss
    ),
    'vectors': Form(
        'Parquet of an index: id, text, vector, for vector databases',
        write_parquet,
        parquet_file.check_installed,
    ),
}
