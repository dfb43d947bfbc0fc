"""Files of passages or of queries, to encode."""

from collections.abc import Callable, Collection, Iterator, Sequence
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.data.dataset import example
from dualenc_jax.data.readers import arrow, pairs_formats, rows
from dualenc_jax.data.readers.column_aliases import OF_TEXTS
from dualenc_jax.data.readers.files_dataset import FilesDataset
from dualenc_jax.data.readers.rows import BadRow
from dualenc_jax.data.readers.texts_by_id import Row, unique
from dualenc_jax.utils import hub
from dualenc_jax.utils.errors import UserError

# Of a TSV without a first line of names.
_TSV = 'id', 'text', 'title'


@dataclasses.dataclass(frozen=True)
class Texts(FilesDataset):
  """Texts with ids, as passages (split corpus) or as queries (split queries).

  The path is a folder in BEIR's layout, of which corpus.jsonl or queries.jsonl
  is read, or a file of one of these forms:

    JSONL   an object a line, with an id, a text and perhaps a title, by the
            names in `column_aliases.OF_TEXTS`; the first that a row has counts.
    TSV     id, text and perhaps title, or in the order of a first line of
            names; cells are taken as they are, without quotes or escapes.
    others  of `pairs_formats`: .json, .csv, .tsv with cells in quotes, .parquet
            and folders of `save_to_disk`, with columns of the names of JSONL.

  The name tells which, else the first line. Those of lines, .json and .csv may
  be packed (.gz). A title goes in front of its text as in `BeirFolder`. Every
  line is a row: an empty one is as bad as one without an id, or a query without
  a text. A blank passage is kept.

  Attributes:
    path: a folder or file.
    strict: whether a bad row, or an id that occurs twice, is an error that
      names file and line; else bad rows are left out, the first row of an id
      is kept, and the log says how many were left out.
    flag: the flag that unsets it, for messages; '' where there is none.
    given: the flag that gives the path, for messages.
  """

  task_name = 'texts'
  FILES = ('path',)

  path: str
  strict: bool = True
  flag: str = rows.LENIENT
  given: str = ''

  @property
  def options(self) -> dict[str, Any]:
    told = 'flag', 'given'
    return {k: v for k, v in super().options.items() if k not in told}

  def splits(self) -> tuple[str, ...]:
    return tuple(OF_TEXTS)

  def paths(self, split: str) -> list[pathlib.Path]:
    return pairs_formats.files_of(self._file(split))

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    """Yields the texts in the order of the file."""
    path = self._file(split)
    side = 'query' if split == 'queries' else 'passage'
    for row in unique(lambda: self._rows(path, split), self.strict, self.flag):
      values = {side: row.text, f'{side}_id': row.id}
      yield example(**values, name=row.name, location=row.location)

  def _file(self, split: str) -> pathlib.Path:
    if split not in OF_TEXTS:
      raise self.no_split(split, OF_TEXTS)
    path = pathlib.Path(hub.data(self.path)).expanduser()
    if arrow.is_one(path) or path.is_file():
      return path
    if not path.is_dir():
      where = self.given and f' Give it with {self.given}=PATH.'
      raise UserError(f'There is no file or folder {path}.{where}')
    names = [f'{split}.jsonl', f'{split}.jsonl.gz']
    for name in names:
      if (path / name).is_file():
        return path / name
    raise UserError(
        f'{path} has no {names[0]} (or {names[1]}). Expected a folder in BEIR'
        "'s layout, or a file."
    )

  def _rows(self, path: pathlib.Path, split: str) -> Iterator[Row]:
    cells_of, numbered = _opened(path, *OF_TEXTS[split])

    def parse(line: Any) -> tuple[str, str, str]:
      if isinstance(line, bytes) and not line.strip():
        raise BadRow('the line is empty')
      name, title, text = cells_of(line)
      if not name.strip():
        raise BadRow('the id is empty')
      passage = rows.titled(title, text)
      # A passage may be blank, as some of BEIR are.
      if split == 'queries' and not passage:
        raise BadRow('the text is empty')
      return name, passage, title

    for number, row in rows.checked(
        path, numbered, parse, self.strict, self.flag
    ):
      yield Row(f'{path}:{number}', *row)


def _opened(
    path: pathlib.Path, ids: Sequence[str], texts: Sequence[str]
) -> tuple[Callable[[Any], tuple[str, str, str]], Iterator[tuple[int, Any]]]:
  """What takes id, title and text from a row, and (number, row) of each."""
  form = _form(path)
  if form == 'tsv':
    table = pairs_formats.tsv(path, _TSV, needed=2, blank=True)
  elif form == 'jsonl':
    numbered = rows.lines(path, blank=True)
    table = pairs_formats.Table(None, numbered, rows.json_object)
  else:
    wanted = {*ids, *texts, 'title'}
    table = pairs_formats.open_table(path, form, None, wanted.__contains__)
  columns = table.columns or (*ids, *texts)
  if missing := _missing(columns, ids, texts):
    raise UserError(
        f'{path} has {missing}. Columns: {", ".join(columns)[:200]}. Rename'
        ' one, or add one.'
    )
  for name in (*ids, *texts, 'title'):
    if list(columns).count(name) > 1:
      raise UserError(f'{path} has two columns {name!r}; expected one.')

  def named(raw: Any) -> tuple[str, str, str]:
    row = table.parse(raw)
    try:
      of_id, of_text = rows.first(row, ids), rows.first(row, texts)
    except BadRow:
      raise BadRow(_missing(row, ids, texts)) from None
    name = rows.identifier(row, of_id)
    text = rows.text(row, of_text, empty=True)
    return name, rows.title(row), text

  return named, table.numbered


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
  """A name in `pairs_formats.FORMATS`; raises UserError."""
  try:
    return pairs_formats.format_of(path)
  except UserError:  # Of any other name.
    for _, line in rows.lines(path):
      return 'jsonl' if line.lstrip().startswith(b'{') else 'tsv'
    raise UserError(f'{path} is empty; expected one text per line.') from None
