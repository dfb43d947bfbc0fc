"""An index in the files of other programs: faiss's own, or Parquet."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import os
import pathlib
import re
from typing import Any

import numpy as np

from dualenc_jax.retrieval.compression import Codec, Coded
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.retrieval.compression.quantisers import Levels, Signs
from dualenc_jax.retrieval.encoding.towers import TOWER_SHA256
from dualenc_jax.retrieval.index import faiss_files, faiss_forms, parquet_file
from dualenc_jax.retrieval.index.header import FILE, FORMAT
from dualenc_jax.retrieval.index.index import Index
from dualenc_jax.retrieval.index.rows import Rows
from dualenc_jax.retrieval.index.shard import IDS, Places, SHARD_INFOS
from dualenc_jax.utils import files, json_file
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.sizes import gigabytes

IDS_OF_FAISS = ('rows', 'own')
# Of the header's provenance: what names the model, and no places.
_OF_MODEL = (TOWER_SHA256, 'vocabulary', 'run_id', 'checkpoint_step')
_NUMBER = re.compile('0|-?[1-9][0-9]{0,18}')


@dataclasses.dataclass(frozen=True)
class Parts:
  """The content of an index, for writers of other forms.

  Attributes:
    rows: vectors, floats, or their codes, uint8.
    about: a description of the rows for their users elsewhere, as JSON: codec,
      dtype, bit order, model.
    faiss: makes the faiss index of `rows`; raises UserError if faiss has none
      for this codec.
    arrays: arrays that decode the codes, by name; empty without codes.
  """

  rows: Rows
  about: Mapping[str, Any]
  faiss: Callable[[Rows], faiss_files.Index]
  arrays: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Form:
  """A form that indexes are written in.

  Attributes:
    text: a description for --help.
    write: writes (index, its parts, kind of ids) into an empty folder.
    check: raises UserError where a library for it is missing.
  """

  text: str
  write: Callable[[Index, Parts, str, pathlib.Path], None]
  check: Callable[[], None] = lambda: None


def parts_of(index: Index) -> Parts:
  """The content of an index, for writers of other forms."""
  header, stored = index.header, index.embeddings
  codec = stored.codec if isinstance(stored, Coded) else None
  dim, normalised = header.dim, header.normalised
  if codec is not None:
    # What codes stand for is not of length one but to rounding.
    dim, normalised = codec.quantiser.dim, codec.is_normalised
  known = header.provenance
  about = {
      'passages': len(index),
      'tower': header.tower,
      'dim': dim,
      **({} if dim == header.dim else {'query_dim': header.dim}),
      'metric': 'inner product',
      'normalised': normalised,
      'codec': header.codec or header.dtype,
      **({'dtype': header.dtype} if codec is None else _codec_about(codec)),
      'model': {name: known[name] for name in _OF_MODEL if name in known},
  }
  if not isinstance(stored, Coded):
    return Parts(Rows.of(stored), about, faiss_forms.FLOATS[header.dtype])
  codec = stored.codec
  parts = {f'transform_{i}': part for i, part in enumerate(codec.transforms)}
  arrays = {
      f'{name}_{field}': np.asarray(value)
      for name, part in (parts | {'quantiser': codec.quantiser}).items()
      for field, value in vars(part).items()
      if hasattr(value, 'shape')
  }
  faiss = functools.partial(faiss_forms.of_codec, codec)
  return Parts(Rows.of(stored.codes), about, faiss, arrays)


def _codec_about(codec: Codec) -> dict[str, Any]:
  """A description of the bytes of codes, as JSON."""
  quantiser = codec.quantiser
  about = {'dtype': str(codec.code_dtype), 'rescored': codec.rescored}
  if isinstance(quantiser, Signs):
    about |= {'bits': 1, 'bit_order': 'big'}
  elif isinstance(quantiser, Levels | Product):
    about |= {'bits': quantiser.bits, 'bit_order': 'little'}
  kind = type(quantiser).__name__
  return {**about, 'quantiser': kind, 'transforms': len(codec.transforms)}


def is_index(path: str | os.PathLike[str]) -> bool:
  """Whether a folder has the content of an index, whole or half."""
  if '://' in str(path):
    return False
  places = Places(path)
  for folder in (places.readable(), places.partial):
    if any(folder.glob(SHARD_INFOS)):
      return True
    try:
      if json_file.read(folder / FILE).get('format') == FORMAT:
        return True
    except UserError:
      continue
  return False


def convert(
    source: str | os.PathLike[str], name: str, out: pathlib.Path,
    ids: str = 'rows', say: Callable[[str], None] = print,
) -> None:
  """Writes an index in another form, reads it again, and moves it into place.

  Args:
    source: the index.
    name: a key of `FORMS`.
    out: a new or an empty folder.
    ids: the ids that faiss returns: 'rows', numbers of lines of ids.txt, or
      'own', the ids themselves, which must be whole numbers.
    say: takes a line for people about each step.

  Raises:
    UserError: the index is damaged, or has no such form. Nothing is left.
  """
  form = FORMS[name]
  form.check()
  index = Index.open(source)
  parts = parts_of(index)
  texts = 'queries' if index.header.tower == 'query' else 'passages'
  say(
      f'{source}: {len(index):,} {texts}, {parts.about["codec"]}'
      f' [{index.header.dim}], {gigabytes(parts.rows.nbytes)} of embeddings.'
  )
  with files.new_folder(out, 'another --out') as partial:
    form.write(index, parts, ids, partial)
    written = sorted(path.name for path in partial.iterdir())
  say(f'Wrote {out}, read back and compared: {", ".join(written)}.')


def _write_faiss(
    index: Index, parts: Parts, ids: str, folder: pathlib.Path
) -> None:
  """index.faiss; ids.txt, unless its ids are the own ones; about.json."""
  found = parts.faiss(parts.rows)
  if ids == 'own':
    found = faiss_files.with_ids(Rows.of(_whole_numbers(index)), found)
  faiss_files.write(folder / 'index.faiss', found, 'another --out')
  if ids == 'rows':
    with files.writing(folder / IDS, 'another --out'):
      with (folder / IDS).open('wb') as file:
        for shard in index.shards:
          file.write(shard.ids.tobytes())
  reader = 'read_index_binary' if found.is_binary else 'read_index'
  about = {**parts.about, 'faiss': reader, 'faiss_ids': ids}
  files.write_json(folder / 'about.json', about)


def _whole_numbers(index: Index) -> np.ndarray:
  """The ids as int64 [N, 1], each printed as it was, so that none coincide."""
  numbers = np.empty((len(index), 1), np.int64)
  for row, id_ in enumerate(index.ids):
    number = int(id_) if _NUMBER.fullmatch(id_) else 2**63
    if not -(2**63) <= number < 2**63:
      raise UserError(
          f'--ids=own: row {row} of {index.folder} has the id {id_!r}, but'
          ' faiss takes whole numbers of 64 bits, without leading zeros. Leave'
          ' the flag out: hits are then row numbers, with ids in ids.txt.'
      )
    numbers[row] = number
  return numbers


def _write_parquet(
    index: Index, parts: Parts, _: str, folder: pathlib.Path
) -> None:
  """vectors.parquet; of codes also codec.npz, which decodes them."""
  path = folder / 'vectors.parquet'
  parquet_file.write(path, index, parts.rows, parts.about)
  if parts.arrays:
    arrays = folder / 'codec.npz'
    with files.writing(arrays, 'another --out'):
      # NumPy's stub takes any name for its flag allow_pickle.
      np.savez(arrays, **parts.arrays)  # type: ignore[arg-type]


FORMS = {
    'faiss': Form(
        'index.faiss of an index, written without faiss', _write_faiss
    ),
    'vectors': Form(
        'Parquet of an index: id, text, vector, for vector databases',
        _write_parquet,
        parquet_file.check_installed,
    ),
}
