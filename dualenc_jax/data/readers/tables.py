"""Files of rows with named columns, of each format a stream."""

from collections.abc import (
  Callable,
  Collection,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
import contextlib
import csv
import functools
import io
import itertools
import math
import pathlib
import re
import types
from typing import Any, NamedTuple

from dualenc_jax.data.readers import files, rows
from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.errors import SourceUnavailable, UserError

# Limits for Parquet: rows, and bytes of texts, decoded at a time; bytes read at
# a time.
_ROWS, _TEXTS, _BUFFER = 256, 2**28, 2**20
# Bytes of a TSV's begin that tell whether its cells are in quotes; a cell in or
# without quotes, and what ends it; one that does not end.
_SAMPLE = 2**24
_CELL = re.compile(rb'("(?:[^"]|"")*"|[^"\t\n]*)([\t\n])')
_OPEN_CELL = re.compile(rb'"(?:[^"]|"")*')
# Lists the files of a folder that `save_to_disk` wrote.
_STATE = 'state.json'
_SAVE_AGAIN = 'Save the data set again with save_to_disk.'
# By the usual name; the first that a file has stands for a missing one.
ALIASES: Mapping[str, Sequence[str]] = {
    'query': ('query', 'anchor', 'question'),
    'passage': ('passage', 'positive', 'pos', 'document', 'context', 'answer'),
    'negatives': ('negatives', 'negative', 'neg'),
}
# Names of columns of ids and of texts, by split.
OF_TEXTS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    'corpus': (
        ('_id', 'id', 'passage_id', 'pid', 'docid', 'doc_id', 'docno'),
        ('text', 'passage', 'contents', 'content', 'document', 'body'),
    ),
    'queries': (
        ('_id', 'id', 'query_id', 'qid'), ('text', 'query', 'question')
    ),
}
_KNOWN = {'title'}.union(
    *ALIASES.values(), *(names for both in OF_TEXTS.values() for names in both)
)
_ID = re.compile(r'_?(\w+[ _-])?id|[pqd]id|docid|docno', re.IGNORECASE)


class Table(NamedTuple):
  """The rows of a file, numbered from 1 on, and what parses them.

  `columns` are in the file's order, None where every row names its own. `parse`
  raises rows.BadRow.
  """

  columns: Sequence[str] | None
  numbered: Iterator[tuple[int, Any]]
  parse: Callable[[Any], dict[str, Any]]


def tsv(
    path: pathlib.Path,
    columns: Sequence[str] | None,
    unused: Any = None,
    *,
    needed: int | None = None,
    split: Callable[[bytes], list[str]] | None = None,
) -> Table:
  """Tab-separated cells as they are, without quotes or escapes.

  Without a first line of names a row must have the first `needed` of `columns`,
  None for all. `split` is for other cells.
  """
  return _cells(path, columns, files.lines(path), split or _plain, needed)


def _plain(line: bytes) -> list[str]:
  return rows.decode(line).split('\t')


def csv_file(
    path: pathlib.Path,
    columns: Sequence[str] | None,
    unused: Any = None,
    delimiter: str | None = None,
) -> Table:
  """Cells in quotes where they need them, as of `_csv_rows`."""

  def checked(row: list[str] | csv.Error) -> list[str]:
    if isinstance(row, csv.Error):
      raise rows.BadRow(f'not a row of cells in quotes ({row})')
    for cell in row:
      rows.decode(cell.encode('utf-8', 'surrogateescape'))
    return row

  return _cells(path, columns, _csv_rows(path, delimiter), checked)


def csv_reader(lines: Iterable[str], **options: Any) -> Any:
  """`csv.reader` of cells as long as a line may be."""
  # For the process: its own limit, 128 KiB, is less than many documents have.
  csv.field_size_limit(files.LONGEST_LINE)
  return csv.reader(lines, **options)


def _csv_rows(
    path: pathlib.Path, delimiter: str | None
) -> Iterator[tuple[int, list[str] | csv.Error]]:
  """Yields (its first line's number, cells) of each row that is not blank.

  A cell may go over several lines; `""` in one is a quote. Bytes that are not
  UTF-8 are lone surrogates. A line that is not a row is the error that says
  why, and reading goes on in the next line. Without a delimiter it is the
  comma, semicolon or tab that the first line has most of. Errors are those of
  `files.lines`.
  """
  number = 0

  def lines() -> Iterator[str]:
    nonlocal number
    for number, line in files.lines(path, blank=True):
      yield line.decode('utf-8', 'surrogateescape') + '\n'

  stream = lines()
  first = next(stream, None)
  if first is None:
    return
  found = csv_reader(
      itertools.chain([first], stream),
      delimiter=delimiter or max(',;\t', key=first.count),
      strict=True,
  )
  start = 1
  while True:
    row: list[str] | csv.Error
    try:
      row = next(found)
    except StopIteration:
      return
    except csv.Error as error:
      row = error
    if row:
      yield start, row
    start = number + 1


def _is_quoted(path: pathlib.Path) -> bool:
  """Whether the cells of a TSV are in quotes, not plain.

  They are where in its first 16 MiB all rows have as many cells, every quote is
  around a cell or doubled in such a one, and for a reason: a cell has a tab, a
  line's end or a doubled quote within, or all that are not numbers are in
  quotes.
  """
  lines = (line + b'\n' for _, line in files.lines(path))
  sample = io.BytesIO()
  while sample.tell() < _SAMPLE and (line := next(lines, b'')):
    sample.write(line)
  text = sample.getvalue()
  if b'"' not in text:
    return False
  needed, all_quoted, width, cells, at = False, True, 0, 0, 0
  while found := _CELL.match(text, at):
    (cell, end), at, cells = found.groups(), found.end(), cells + 1
    if cell.startswith(b'"'):
      needed = needed or any(sign in cell[1:-1] for sign in b'\t\n"')
    else:
      all_quoted &= not cell or not math.isnan(untrusted.parse_number(cell))
    if end == b'\n':
      width = width or cells
      if cells != width or width < 2:
        return False
      cells = 0
  # The sample may end within a cell.
  is_cut = next(lines, b'') and _OPEN_CELL.fullmatch(text, at)
  return (at == len(text) or bool(is_cut)) and (needed or all_quoted)


def _cells(
    path: pathlib.Path,
    columns: Sequence[str] | None,
    numbered: Iterator[tuple[int, Any]],
    split: Callable[[Any], list[str]],
    needed: int | None = None,
) -> Table:
  """A table of `columns`; without them, or if it is of names, the first row
  names them. A row has the first `needed` of `columns`, None for all."""
  names, first = columns or (), list(itertools.islice(numbered, 1))
  for number, raw in first:
    try:
      begin = [cell.strip() for cell in split(raw)]
    except rows.BadRow as reason:
      if columns is None:
        raise UserError(f'{path}:{number}: {reason}.') from None
      break
    if columns is None or are_names(begin, columns):
      names, needed, first = begin, None, []
  least = len(names) if needed is None else needed

  def parse(raw: Any) -> dict[str, str]:
    row = split(raw)
    wanted = names[: max(least, len(row))]
    return dict(zip(wanted, rows.named_cells(row, wanted)))

  return Table(names or None, itertools.chain(first, numbered), parse)


def arrow_folder(
    path: pathlib.Path, unused: Any, wanted: Callable[[str], bool]
) -> Table:
  """The rows that `save_to_disk` of datasets wrote, mapped into memory."""
  parts = files_of(path)[1:]
  with _arrow_stream(parts[0]) as stream:
    names = stream.schema.names

  def parsed() -> Iterator[dict[str, Any]]:
    for part in parts:
      with _arrow_stream(part) as stream:
        for batch in stream:
          batch = batch.select([name for name in names if wanted(name)])
          batch.validate(full=True)  # Offsets may lead anywhere.
          for start in range(0, len(batch), _ROWS):
            yield from batch.slice(start, _ROWS).to_pylist()

  return Table(names, enumerate(parsed(), 1), rows.as_object)


@contextlib.contextmanager
def _arrow_stream(path: pathlib.Path) -> Iterator[Any]:
  with (
      explained_pyarrow(path, 'an Arrow stream', _SAVE_AGAIN) as pyarrow,
      pyarrow.memory_map(str(path)) as source,
  ):
    yield pyarrow.ipc.open_stream(source)


def parquet(
    path: pathlib.Path, unused: Any, wanted: Callable[[str], bool]
) -> Table:
  """A Parquet file, which names its columns; only wanted ones are read."""
  if not untrusted.is_file(path):
    raise UserError(f'{untrusted.explain_path(path)}. Give a file.')
  kind = path, 'a Parquet file', 'Copy or download it again.'
  with explained_pyarrow(*kind) as pyarrow:
    names = pyarrow.parquet.read_schema(path).names

  def parsed() -> Iterator[dict[str, Any]]:
    # By default a row group, which may be all of the file, is read whole.
    with explained_pyarrow(*kind) as pyarrow, pyarrow.parquet.ParquetFile(
        path, buffer_size=_BUFFER, pre_buffer=False,
        page_checksum_verification=True,  # Where there are sums, as Spark's.
    ) as file:
      groups = map(file.metadata.row_group, range(file.num_row_groups))
      sizes = (g.total_byte_size // max(1, g.num_rows) for g in groups)
      count = _TEXTS // max([1, *sizes])
      for batch in file.iter_batches(
          min(_ROWS, max(1, count)),
          columns=[name for name in names if wanted(name)],
      ):
        yield from batch.to_pylist()

  return Table(names, enumerate(parsed(), 1), rows.as_object)


@contextlib.contextmanager
def explained_pyarrow(
    path: pathlib.Path, kind: str, again: str
) -> Iterator[types.ModuleType]:
  """Yields pyarrow to read a file of a kind; its errors are explained."""
  try:
    import pyarrow
    import pyarrow.parquet
  except ImportError as error:
    raise SourceUnavailable(
        f'{path} needs pyarrow, which cannot be imported here ({error}).'
        ' Install dualenc-jax[data].'
    ) from error
  try:
    yield pyarrow
  # Bytes that are not UTF-8, or no value of Python, are a ValueError.
  except (pyarrow.ArrowException, KeyError, OSError, ValueError) as error:
    reason = ' '.join(str(error).split()).rstrip('.')
    raise UserError(
        f'{path} is not {kind}, or is damaged: {reason}. {again}'
    ) from error


# By name: of (path, names of the columns or None, which columns are wanted).
FORMATS: Mapping[str, Callable[..., Table]] = {
    'jsonl': lambda p, *_: Table(None, files.lines(p), rows.json_object),
    'json': lambda p, *_: Table(None, files.elements(p), rows.as_object),
    'tsv': tsv,
    'quoted_tsv': functools.partial(csv_file, delimiter='\t'),
    'csv': csv_file,
    'parquet': parquet,
    'arrow': arrow_folder,
}
_ENDINGS = ('.jsonl', '.json', '.tsv', '.csv', '.parquet')


def open_table(
    path: pathlib.Path,
    form: str | None,
    columns: Sequence[str] | None,
    wanted: Callable[[str], bool],
) -> Table:
  """Opens a file of the format `form`, a name in FORMATS; None tells by `path`.

  `columns` are the names of a TSV or CSV without a first line of them; `wanted`
  says by its name whether a column is read. Raises UserError, and
  SourceUnavailable where pyarrow is needed and not installed.
  """
  return FORMATS[form or format_of(path)](path, columns, wanted)


def format_of(path: pathlib.Path) -> str:
  """The name in FORMATS that a file's own name tells; else raises UserError.

  The content tells a .tsv with cells in quotes from a plain one, and a .json of
  an object a line from an array.
  """
  if is_arrow_folder(path):
    return 'arrow'
  ending = path.with_suffix('').suffix if path.suffix == '.gz' else path.suffix
  if ending not in _ENDINGS or path.suffixes[-2:] == ['.parquet', '.gz']:
    raise UserError(
        f'{path} is of an unknown format; expected a name that ends with'
        f" {', '.join(_ENDINGS)} (all but the last also with .gz), or"
        f" --gin.FORMAT={'|'.join(FORMATS)}."
    )
  if ending == '.tsv' and _is_quoted(path):
    return 'quoted_tsv'
  if ending == '.json':
    _, line = next(files.lines(path), (0, b''))
    return 'jsonl' if line.lstrip().startswith(b'{') else 'json'
  return ending[1:]


def is_arrow_folder(path: pathlib.Path) -> bool:
  """Whether `save_to_disk` of datasets wrote the folder, of one split."""
  return (path / _STATE).is_file()


def files_of(path: pathlib.Path) -> list[pathlib.Path]:
  """The file itself, or those of a folder of Arrow files in their order."""
  if not is_arrow_folder(path):
    return [path]
  state = path / _STATE
  about = json_file.read(state, _SAVE_AGAIN, _data_files=[{'filename': str}])
  found = [
      path / untrusted.check_name(entry['filename'], state, _SAVE_AGAIN)
      for entry in about['_data_files']
  ]
  if about.get('_indices_files') or not all(map(untrusted.is_file, found)):
    raise UserError(
        f'{path} lacks some of its files, or has an index of its rows.'
        f' {_SAVE_AGAIN}'
    )
  return [state, *found]


def are_names(cells: Sequence[str], usual: Collection[str]) -> bool:
  """Whether the cells of a file's first row name its columns.

  They do if the first is a name of ids, or two are such names, known ones or
  among the `usual`.
  """
  cells = [cell.strip() for cell in cells]
  known = [
      cell.lower() in _KNOWN or cell in usual or bool(_ID.fullmatch(cell))
      for cell in cells
  ]
  return bool(_ID.fullmatch(cells[0])) or sum(known) > 1


def numbered_columns(columns: Collection[str], name: str) -> list[str]:
  """The columns that are called `name`, or `name`_ and a number."""
  prefix = f'{name}_'
  return [
      c for c in columns
      if c == name
      or c.startswith(prefix) and untrusted.is_digits(c.removeprefix(prefix))
  ]


@functools.lru_cache
def renaming(
    columns: tuple[str, ...], wanted: tuple[str | None, ...]
) -> Mapping[str, str]:
  """The usual names of columns that have an alias, by this.

  `wanted` has names in the order of `ALIASES`; those that the file has, or that
  are None or not the usual ones, stay.
  """
  found: dict[str, str] = {}
  for (usual, aliases), name in zip(ALIASES.items(), wanted):
    if name != usual or numbered_columns(columns, name):
      continue
    for alias in aliases:
      if have := numbered_columns(columns, alias):
        found |= {c: name + c.removeprefix(alias) for c in have}
        break
  return found
