"""Vectors that another model gives the texts of a run, in its batches."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import hashlib
import logging
from typing import Any

import jax
import numpy as np

from dualenc_jax.data import Batches, Cache
from dualenc_jax.data.columns import TEACHER_VECTORS
from dualenc_jax.data.text.ragged import fingerprints, from_uint32_pairs
from dualenc_jax.objectives.objective import Run
from dualenc_jax.retrieval.index.vector_files import VectorFile
from dualenc_jax.utils.errors import UserError

# Vectors whose content is in the facts of a run's data.
_SAMPLE = 256
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TeacherVectors:
  """Where a teacher's vectors of queries and of passages are.

  A text has the vector of the equal text there or, in a file without texts,
  that of its id. A hard negative, which has no id, has that of the passage with
  its tokens: among the run's passages, the texts of the file, or the corpus.
  Vectors are scaled to length one.

  Attributes:
    queries, passages: a path or several, as of `VectorFile`; None for none. A
      model that does not tell queries from passages may have one file for both.
    strict: whether a text without a vector is an error; else it is left out of
      the loss, and the log says how many are.
  """

  queries: str | Sequence[str] | None = None
  passages: str | Sequence[str] | None = None
  strict: bool = True

  @property
  def sides(self) -> tuple[str, ...]:
    """The sides, 'queries' and 'passages', that have vectors."""
    return tuple(side for side in _TOWERS if getattr(self, side) is not None)

  @functools.cached_property
  def files(self) -> Mapping[str, Sequence[VectorFile]]:
    """The files of each side; UserError if they do not fit together."""
    opened: dict[str, list[VectorFile]] = {}
    for side in self.sides:
      paths = getattr(self, side)
      paths = [paths] if isinstance(paths, str) else paths
      opened[side] = [VectorFile.open(path) for path in paths]
      for file in opened[side]:
        if file.tower not in (None, _TOWERS[side]):
          raise UserError(
              f'{_macro(side)} is {file.path}, an index of the {file.tower}'
              f' tower. Expected vectors of {side}.'
          )
    every = [file for files in opened.values() for file in files]
    for file in every:
      if file.vectors.shape[1] != every[0].vectors.shape[1]:
        raise UserError(
            f'{file.path} has vectors of {file.vectors.shape[1]} dimensions,'
            f' and {every[0].path} of {every[0].vectors.shape[1]}. Expected'
            ' those of one model.'
        )
    return opened

  @property
  def dim(self) -> int | None:
    """Components of the vectors, D'; None without any."""
    return self.files[self.sides[0]][0].vectors.shape[1] if self.sides else None

  def check_use(self, is_read: bool, name: str) -> None:
    """Raises UserError for vectors that what is named lacks or ignores."""
    if is_read and not self.sides:
      raise UserError(
          f'{name} needs vectors of another model, but there are none. Give the'
          ' files of TEACHER_QUERIES and TEACHER_PASSAGES.'
      )
    if self.sides and not is_read:
      raise UserError(
          f'TEACHER_{self.sides[0].upper()} is given, but {name} does not read'
          ' vectors of a teacher. Use losses.EmbedDistill, alone or in a'
          ' losses.Sum, or leave it out.'
      )

  def add_to(self, batches: Batches, run: Run) -> Batches:
    """Returns the batches with vectors; UserError if texts have none."""
    if not self.sides:
      return batches
    fields = dataclasses.fields(batches)
    return TaughtBatches(
        **{field.name: getattr(batches, field.name) for field in fields},
        teacher={side: self._match(side, run) for side in self.sides},
    )

  def abstract(self, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays that a batch gets, abstract."""
    pairs, candidates = batch['query_ids'].shape[0], 1
    if 'negative_ids' in batch:
      candidates += batch['negative_ids'].shape[1]
    shapes = {'queries': (pairs,), 'passages': (pairs, candidates)}
    return {
        TEACHER_VECTORS[side]: jax.ShapeDtypeStruct(
            (*shapes[side], self.dim), np.float32
        ) for side in self.sides
    }

  def _match(self, side: str, run: Run) -> 'VectorTable':
    """Finds the vectors of the distinct texts of a side."""
    files, tower = self.files[side], _TOWERS[side]
    keys, rows, changed, example = [], [], 0, ''
    for cache in run.caches:
      there = np.flatnonzero(getattr(cache, f'{tower}_tokens').lengths)
      keys.append(getattr(cache, f'{tower}_fingerprints')[there])
      rows.append(_rows_of(files, cache, tower)[there])
      missing = there[rows[-1] < 0]
      changed += len(missing) and _count_changed(files, cache, tower, missing)
      if len(missing) and not example:
        text = getattr(cache, f'{tower}_texts').text(missing[0])
        example = f'{cache.locations.text(missing[0])} {text!r:.80}'.strip()
    table = VectorTable(files, np.concatenate(keys), np.concatenate(rows))
    if side == 'passages':
      table = self._add_negatives(table, run)
      if not example and (missing := np.flatnonzero(table.rows < 0)).size:
        example = _decode(run, table.keys[missing[0]])
    self._report(side, table, changed, example)
    return table

  def _add_negatives(self, table: 'VectorTable', run: Run) -> 'VectorTable':
    """Adds the hard negatives that are no passages of the run's pairs."""
    every = [cache.negative_fingerprints for cache in run.caches]
    keys = np.setdiff1d(np.concatenate(every), table.keys)
    rows, start = np.full(len(keys), -1), 0
    for file in table.files:
      found = np.full(len(keys), -1)
      if len(keys) and file.read_texts is not None:
        encode = run.tokenizer.encode_passages
        by_tokens = file.map_texts(lambda texts: fingerprints(encode(texts)))
        found = _find(by_tokens, keys)
      elif len(keys):
        for cache in run.corpora:
          of_corpus = _find(cache.passage_fingerprints, keys)
          there = _rows_of([file], cache, 'passage')[of_corpus]
          found = np.where((of_corpus >= 0) & (found < 0), there, found)
      rows = np.where((rows < 0) & (found >= 0), start + found, rows)
      start += len(file)
    return VectorTable(
        table.files, np.concatenate([table.keys, keys]),
        np.concatenate([table.rows, rows]),
    )

  def _report(
      self, side: str, table: 'VectorTable', changed: int, example: str
  ) -> None:
    """Logs, or raises UserError for, the texts without a vector."""
    total, found = len(table.rows), int(np.sum(table.rows >= 0))
    where = ', '.join(str(file.path) for file in table.files)
    what = side if side == 'queries' else 'passages and hard negatives'
    if not found:
      raise UserError(
          f'{_macro(side)}: {where} has a vector of none of the {total:,}'
          f' {what}, such as {example}. Expected those of this data set; its'
          f' first id is {table.files[0].ids.text(0)!r}.'
      )
    text = f'{where}: vectors of {found:,} of {total:,} {what}'
    if found == total:
      _LOG.info('%s.', text)
      return
    text += f'; there is none of {example}'
    if changed:
      text += f', and {changed:,} have the id of another text there'
    if self.strict:
      raise UserError(
          f'{text}. Encode these texts, or leave them out of the loss by'
          ' --gin.STRICT=False.'
      )
    _LOG.warning('%s. They are left out.', text)


class VectorTable:
  """Vectors of texts by the fingerprints of their tokens.

  Attributes:
    keys: fingerprints, uint64 [n], ascending.
    rows: their rows among those of all files, -1 for none: int64 [n].
  """

  def __init__(
      self, files: Sequence[VectorFile], keys: np.ndarray, rows: np.ndarray
  ):
    """Takes fingerprints, and for each the row of a vector or -1.

    The first of equal ones that has a vector counts.
    """
    order = np.lexsort((rows < 0, keys))
    self.files = files
    self.keys, first = np.unique(keys[order], return_index=True)
    self.rows = rows[order][first]

  def gather(self, wanted: np.ndarray) -> np.ndarray:
    """Returns vectors of length one, float32 [..., D'], zeros where none is.

    Raises UserError for a vector of zeros, NaN or infinity.
    """
    distinct, places = np.unique(wanted, return_inverse=True)
    # Keys are sorted already, and this is done for every batch.
    found = np.searchsorted(self.keys, distinct)
    found = np.minimum(found, len(self.keys) - 1)
    rows = np.where(self.keys[found] == distinct, self.rows[found], -1)
    out = np.zeros((len(rows), self.files[0].vectors.shape[1]), np.float32)
    start = 0
    for file in self.files:
      here = np.flatnonzero((rows >= start) & (rows < start + len(file)))
      own = rows[here] - start
      vectors = np.asarray(file.vectors[own], np.float32)
      norms = np.linalg.norm(vectors, axis=1)
      if (bad := np.flatnonzero(~np.isfinite(norms) | (norms == 0.0))).size:
        raise UserError(
            f'{file.path}: the vector of {file.ids.text(own[bad[0]])!r} is zero'
            ' or has NaN or infinity. Encode this text again.'
        )
      out[here] = vectors / norms[:, None]
      start += len(file)
    return out[places.reshape(wanted.shape)]

  @property
  def facts(self) -> str:
    """A digest of the keys and of a sample of the vectors."""
    sample = np.linspace(0, len(self.keys) - 1, _SAMPLE).astype(int)
    digest = hashlib.sha256(self.keys.astype('<u8').tobytes())
    digest.update(self.gather(self.keys[sample]).astype('<f4').tobytes())
    return digest.hexdigest()[:16]


@dataclasses.dataclass(frozen=True, eq=False)
class TaughtBatches(Batches):
  """Batches with a teacher's vectors: `columns.TEACHER_VECTORS`, float32.

  Vectors of queries are [b, D'], of passages and hard negatives [b, 1 + K, D'],
  zeros for a text that has none.
  """

  teacher: Mapping[str, VectorTable] = dataclasses.field(default_factory=dict)

  def __call__(self, step: int, cells: Any = slice(None)) -> dict[str, Any]:
    batch = super().__call__(step, cells)
    ids = {'queries': batch['query_ids'], 'passages': batch['passage_ids']}
    ids['passages'] = ids['passages'][:, None]
    if 'negative_ids' in batch:
      ids['passages'] = np.concatenate(
          [ids['passages'], batch['negative_ids']], axis=1
      )
    for side, table in self.teacher.items():
      wanted = from_uint32_pairs(ids[side])
      batch[TEACHER_VECTORS[side]] = table.gather(wanted)
    return batch

  @property
  def facts(self) -> dict[str, Any]:
    """Facts of the data beside those of its caches, as JSON."""
    return {f'teacher_{s}': table.facts for s, table in self.teacher.items()}


_TOWERS = {'queries': 'query', 'passages': 'passage'}


def _macro(side: str) -> str:
  return f'TeacherVectors.{side} (TEACHER_{side.upper()})'


def _find(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
  """Returns where keys [n] equal those wanted, -1 for none: int64 [m]."""
  order = np.argsort(keys, kind='stable')
  places = np.searchsorted(keys, wanted, sorter=order)
  rows = order[np.minimum(places, len(keys) - 1)]
  return np.where(keys[rows] == wanted, rows, -1)


def _rows_of(
    files: Sequence[VectorFile], cache: Cache, tower: str
) -> np.ndarray:
  """Returns rows of all files for the texts of a cache, -1 for none."""
  texts = fingerprints(getattr(cache, f'{tower}_texts'))
  ids = fingerprints(getattr(cache, f'{tower}_ids'))
  rows, start = np.full(len(ids), -1), 0
  for file in files:
    if file.read_texts is not None:
      found = _find(file.text_keys, texts)
    else:
      found = _find(file.id_keys, ids)
    rows = np.where((rows < 0) & (found >= 0), start + found, rows)
    start += len(file)
  return rows


def _count_changed(
    files: Sequence[VectorFile], cache: Cache, tower: str, rows: np.ndarray
) -> int:
  """Counts rows of a cache whose ids have vectors, but of other texts."""
  ids = fingerprints(getattr(cache, f'{tower}_ids'))[rows]
  known = [_find(file.id_keys, ids) >= 0 for file in files if file.read_texts]
  return int(np.sum(np.any(known, axis=0))) if known else 0


def _decode(run: Run, key: np.uint64) -> str:
  """Returns a hard negative, by its fingerprint, as a text."""
  for cache in run.caches:
    place = np.flatnonzero(cache.negative_fingerprints == key)
    if place.size:
      tokens = cache.negative_tokens.row(place[0])
      text = run.tokenizer.vocabulary.decode(tokens)
      return f'the hard negative {text!r:.80}'
  raise AssertionError('The fingerprint is of a hard negative.')
