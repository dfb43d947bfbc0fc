"""Passages and queries with ids: read from a file, each id once."""

import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
import dataclasses
import pathlib
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.data.dataset import Dataset, example
from dualenc_jax.data.readers import files, rows, tables
from dualenc_jax.data.readers.files import FilesDataset
from dualenc_jax.data.readers.pairs import Pairs
from dualenc_jax.data.readers.rows import BadRow
from dualenc_jax.data.readers.tables import OF_TEXTS
from dualenc_jax.utils import hub
from dualenc_jax.utils.errors import missing, SourceUnavailable, UserError

# The columns of a TSV without a first line of names.
_TSV = 'id', 'text', 'title'


class Row(NamedTuple):
  """A query or a passage at a location, 'file:line'; its name is the title."""

  location: str
  id: str
  text: str
  name: str = ''


@dataclasses.dataclass(frozen=True)
class Texts(FilesDataset):
  """Texts with ids, as passages (split corpus) or as queries (split queries).

  The path is a folder in BEIR's layout, of which corpus.jsonl or queries.jsonl
  is read, or a file of one of these forms:

    JSONL   an object a line, with an id, a text and perhaps a title, by the
            names in `tables.OF_TEXTS`; the first that a row has counts.
    TSV     id, text and perhaps title, or in the order of a first line of
            names; cells are taken as they are, without quotes or escapes.
    others  of `tables`: .json, .csv, .tsv with cells in quotes, .parquet
            and folders of `save_to_disk`, with columns of the names of JSONL.

  The name tells which, else the first line. Files of lines, .json and .csv may
  be packed (.gz). A title goes in front of its text. A row without an id, and a
  query without a text, is bad; a blank passage is kept.

  Attributes:
    path: a folder or file.
    strict: whether a bad row, or an id that occurs twice, is an error that
      names file and line; else bad rows are skipped, the first row of an id is
      kept, and the log says how many were skipped.
  """

  task_name = 'texts'
  FILES = ('path',)

  path: str
  strict: bool = True

  def splits(self) -> tuple[str, ...]:
    return tuple(OF_TEXTS)

  def paths(self, split: str) -> list[pathlib.Path]:
    return tables.files_of(self._file(split))

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    """Yields the texts in the order of the file."""
    path = self._file(split)
    side = 'query' if split == 'queries' else 'passage'
    row = None
    for row in unique(lambda: read(path, split, self.strict), self.strict):
      values = {side: row.text, f'{side}_id': row.id}
      yield example(**values, name=row.name, location=row.location)
    if row is None:
      raise UserError(f'{path} has no texts.')

  def _file(self, split: str) -> pathlib.Path:
    if split not in OF_TEXTS:
      raise self.missing_split(split, OF_TEXTS)
    path = pathlib.Path(hub.data(self.path)).expanduser()
    if tables.is_arrow_folder(path) or path.is_file():
      return path
    if not path.is_dir():
      raise SourceUnavailable(missing(path))
    names = [f'{split}.jsonl', f'{split}.jsonl.gz']
    for name in names:
      if (path / name).is_file():
        return path / name
    raise UserError(
        f'{path} has no {names[0]} (or {names[1]}). Expected a folder in BEIR'
        "'s layout, or a file."
    )


@dataclasses.dataclass(frozen=True)
class Queries(Dataset):
  """A file of queries alone to train on, and pairs to evaluate on.

  Attributes:
    queries: JSONL, TSV or a folder in BEIR's layout, as of `Texts`.
    pairs: the reader of the splits validation and test.
    strict: as of `Texts`.
  """

  task_name = 'queries'
  FILES = ('queries',)

  queries: str | None
  pairs: Pairs
  strict: bool = True

  def splits(self) -> tuple[str, ...]:
    return 'train', *(s for s in self.pairs.splits() if s != 'train')

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    reader, split = self._reader(split)
    return reader.examples(split)

  def fingerprint(self, split: str) -> str:
    reader, split = self._reader(split)
    return reader.fingerprint(split)

  def _reader(self, split: str) -> tuple[Texts | Pairs, str]:
    """The reader of a split, and what it calls the split."""
    if split != 'train':
      return self.pairs, split
    if not isinstance(self.queries, str):
      raise UserError(
          f'QUERIES is {self.queries!r}; expected a file of queries.'
      )
    return Texts(self.queries, self.strict), 'queries'


def read(
    path: pathlib.Path,
    split: str,
    strict: bool = True,
    form: str | None = None,
    columns: Sequence[str] = _TSV,
) -> Iterator[Row]:
  """Yields the rows of a file of texts, of forms as of `Texts`.

  Args:
    path: the file.
    split: a key of `OF_TEXTS`, which has the names of its columns.
    strict: as of `rows.parse_rows`.
    form: a name in `tables.FORMATS`; None tells by the file.
    columns: of a TSV without a first line of names; the first two are needed.
  """
  ids, texts = OF_TEXTS[split]
  form = form or _form(path)
  if form == 'tsv':
    table = tables.tsv(path, columns, needed=2)
  else:
    wanted = {*ids, *texts, 'title'}
    table = tables.open_table(path, form, None, wanted.__contains__)
  names = list(table.columns or (*ids, *texts))
  if missing := _missing(names, ids, texts):
    raise UserError(f'{path} has {missing}. Columns: {", ".join(names)[:200]}.')
  for name in (*ids, *texts, 'title'):
    if names.count(name) > 1:
      raise UserError(f'{path} has two columns {name!r}; expected one.')

  def parse(raw: Any) -> tuple[str, str, str]:
    row = table.parse(raw)
    try:
      id_column, text_column = rows.first(row, ids), rows.first(row, texts)
    except BadRow:
      raise BadRow(_missing(row, ids, texts)) from None
    name = rows.identifier(row, id_column)
    if not name.strip():
      raise BadRow('the id is empty')
    title = rows.title(row)
    text = rows.text(row, text_column, empty=True)
    # A passage may be blank, as some of BEIR are.
    if split == 'corpus' or title:
      text = rows.titled(title, text)
    elif not text.strip():
      raise BadRow('the text is empty')
    return name, text, title

  for number, row in rows.parse_rows(path, table.numbered, parse, strict):
    yield Row(f'{path}:{number}', *row)


def _missing(
    columns: Collection[str], ids: Sequence[str], texts: Sequence[str]
) -> str:
  """Says which of the columns there must be are missing; '' if none is."""
  missing = [
      f'{what} ({rows.one_of(names)})'
      for what, names in (('ids', ids), ('texts', texts))
      if not {*names} & {*columns}
  ]
  return f'no column of {", and none of ".join(missing)}' if missing else ''


def _form(path: pathlib.Path) -> str:
  """A name in `tables.FORMATS`; raises UserError."""
  try:
    return tables.format_of(path)
  except UserError:  # A file of any other name.
    for _, line in files.lines(path):
      return 'jsonl' if line.lstrip().startswith(b'{') else 'tsv'
    raise UserError(f'{path} is empty; expected one text per line.') from None


def unique(read: Callable[[], Iterable[Row]], strict: bool) -> Iterator[Row]:
  """Yields rows, and sees to it that no id comes twice.

  If strict, an id that does is a UserError after the last row, for 8 bytes of
  RAM a row; else the first row of an id is yielded and the log says how many
  others exist, for about 100 bytes a row.

  Args:
    read: begins to read the rows; called twice where an id occurs twice.
    strict: as of `rows.Faults`.
  """
  faults = rows.Faults(strict)
  if not faults.stops:
    known = set()
    for row in read():
      if row.id in known:
        faults.add('the id of an earlier row', row.location)
        continue
      known.add(row.id)
      yield row
    faults.warn('ids')
    return
  hashes = array.array('q')
  for row in read():
    hashes.append(hash(row.id))
    yield row
  different, counts = np.unique(
      np.frombuffer(hashes, np.int64), return_counts=True
  )
  repeated = {*different[counts > 1].tolist()}
  seen: dict[str, Row] = {}
  for row in read() if repeated else ():
    if hash(row.id) in repeated:
      first = seen.setdefault(row.id, row)
      if first is not row:
        faults.add(
            'the id of an earlier row', row.location,
            f'id {row.id!r} is also that of {first.location}; expected one row'
            ' per id',
        )
