"""Formats of files with named columns, each read as a stream of rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import csv
import functools
import itertools
import pathlib
import re
from typing import Any, NamedTuple

from dualenc_jax.data.readers import arrow, json_array, quoted, rows, text_lines
from dualenc_jax.data.readers.column_aliases import are_names
from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import SourceUnavailable, UserError

_PARQUET_ROWS = 256  # Decoded at a time.
_PARQUET_BUFFER = 2**20  # Bytes read at a time.
# Bytes of texts decoded at a time, and of a dictionary that lists of texts take
# theirs from: writers end one after 1 MiB and a thousand texts.
_PARQUET_TEXTS, _OF_LISTS = 2**28, 2**24
# How a page begins in Thrift's compact form: type, size, compressed size.
_PAGE = re.compile(
    rb'\x15(?P<kind>[\x80-\xff]*[^\x80-\xff])'
    rb'\x15(?P<size>[\x80-\xff]*[^\x80-\xff])'
)
_DICTIONARY = b'\x04'


class Table(NamedTuple):
  """The rows of a file, numbered from 1 on, and what parses them.

  `columns` are in the file's order, None where every row names its own. `parse`
  raises rows.BadRow; `hint` is for the error about a missing column.
  """

  columns: Sequence[str] | None
  numbered: Iterator[tuple[int, Any]]
  parse: Callable[[Any], dict[str, Any]]
  hint: str = ''


def tsv(
    path: pathlib.Path,
    columns: Sequence[str] | None,
    unused: Any = None,
    *,
    needed: int | None = None,
    blank: bool = False,
    split: Callable[[bytes], list[str]] | None = None,
) -> Table:
  """Tab-separated cells as they are, without quotes or escapes.

  Without a first line of names a row must have the first `needed` of `columns`,
  None for all. `blank` lines are left out, or rows; `split` is for other cells.
  """
  numbered = rows.lines(path, blank)
  return _cells(path, columns, numbered, split or _plain, needed)


def _plain(line: bytes) -> list[str]:
  return rows.decode(line).split('\t')


def csv_file(
    path: pathlib.Path,
    columns: Sequence[str] | None,
    unused: Any = None,
    delimiter: str | None = None,
) -> Table:
  """Cells in quotes where they need them, as of `quoted.numbered`."""

  def checked(cells: list[str] | csv.Error) -> list[str]:
    if isinstance(cells, csv.Error):
      raise rows.BadRow(f'not a row of cells in quotes ({cells})')
    for cell in cells:
      rows.decode(cell.encode('utf-8', 'surrogateescape'))
    return cells

  return _cells(path, columns, quoted.numbered(path, delimiter), checked)


def _cells(
    path: pathlib.Path,
    columns: Sequence[str] | None,
    numbered: Iterator[tuple[int, Any]],
    split: Callable[[Any], list[str]],
    needed: int | None = None,
) -> Table:
  """A table of `columns`; without them, or if it is of names, the first row
  names them. A row has the first `needed` of `columns`, None for all."""
  hint = ''
  names, begin = columns or (), []
  for number, raw in numbered:
    begin.append((number, raw))
    if not raw:  # A blank line.
      continue
    try:
      cells = [cell.strip() for cell in split(raw)]
    except rows.BadRow as reason:
      if columns is None:
        raise UserError(f'{path}:{number}: {reason.full or reason}.') from None
      break
    if columns is None or are_names(cells, columns):
      if columns is None:
        more = (f'column_{number}' for number in range(4, len(cells) + 1))
        usual = ('query', 'passage', 'negatives', *more)[: len(cells)]
        hint = (
            ' Where its first line is not of names, give them with'
            f' --gin.COLUMNS="{usual}".'
        )
      else:
        hint = ' The first line is of names, so COLUMNS does not count.'
      names, needed = cells, None
      begin.pop()
    break
  least = len(names) if needed is None else needed

  def parse(raw: Any) -> dict[str, str]:
    cells = split(raw)
    wanted = names[: max(least, len(cells))]
    return dict(zip(wanted, rows.named_cells(cells, wanted)))

  return Table(names or None, itertools.chain(begin, numbered), parse, hint)


def arrow_folder(
    path: pathlib.Path, unused: Any, wanted: Callable[[str], bool]
) -> Table:
  """What `save_to_disk` of datasets wrote."""
  try:
    return Table(*arrow.read(path, wanted), _parse_parquet)
  except ImportError as error:
    raise _no_pyarrow(path, 'an Arrow folder', error) from error


def _no_pyarrow(
    path: pathlib.Path, what: str, error: ImportError
) -> SourceUnavailable:
  return SourceUnavailable(
      f'{path} is {what}, and pyarrow, which reads them, cannot be'
      f' imported here ({error}). Install dualenc-jax[data].'
  )


def parquet(
    path: pathlib.Path, unused: Any, wanted: Callable[[str], bool]
) -> Table:
  """A Parquet file, which names its columns; only wanted ones are read."""
  try:
    import pyarrow
    from pyarrow import parquet as pyarrow_parquet
  except ImportError as error:
    raise _no_pyarrow(path, 'a Parquet file', error) from error

  def damaged(after: int, error: Exception) -> UserError:
    reason = ' '.join(str(error).split()).rstrip('.')
    return UserError(
        f'{path} is not a Parquet file, or a damaged one, after row {after}:'
        f' {reason}. Copy or download it again.'
    )

  if not untrusted.is_file(path):
    raise UserError(f'{untrusted.why_no_file(path)}. Give a file.')
  try:
    names = pyarrow_parquet.read_schema(path).names
  except (pyarrow.ArrowException, OSError, ValueError) as error:
    raise damaged(0, error) from error

  def numbered() -> Iterator[tuple[int, Any]]:
    number = 0
    try:
      # By default a row group, which may be all of the file, is read whole.
      with pyarrow_parquet.ParquetFile(
          path, buffer_size=_PARQUET_BUFFER, pre_buffer=False,
          page_checksum_verification=True,  # Where there are sums, as Spark's.
      ) as file:
        for batch in file.iter_batches(
            _rows_at_a_time(path, file.metadata, wanted),
            columns=[name for name in names if wanted(name)],
        ):
          for row in _rows(batch):
            number += 1
            yield number, row
    except (pyarrow.ArrowException, OSError) as error:
      raise damaged(number, error) from error

  return Table(names, numbered(), _parse_parquet)


# By name: of (path, names of the columns or None, which columns are wanted).
FORMATS: Mapping[str, Callable[..., Table]] = {
    'jsonl': lambda p, *_: Table(None, rows.lines(p), rows.json_object),
    'json': lambda p, *_: Table(None, json_array.elements(p), rows.as_object),
    'tsv': tsv,
    'quoted_tsv': functools.partial(csv_file, delimiter='\t'),
    'csv': csv_file,
    'parquet': parquet,
    'arrow': arrow_folder,
}
_ENDINGS = ('.jsonl', '.json', '.tsv', '.csv', '.parquet')


def format_of(path: pathlib.Path) -> str:
  """The name in FORMATS that a file's own name tells; else raises UserError.

  What is in it tells a .tsv with cells in quotes from a plain one, and a .json
  of an object a line from an array.
  """
  if arrow.is_one(path):
    return 'arrow'
  ending = path.with_suffix('').suffix if path.suffix == '.gz' else path.suffix
  if ending not in _ENDINGS or path.suffixes[-2:] == ['.parquet', '.gz']:
    raise UserError(
        f'{path} is of an unknown format; expected a name that ends with'
        f" {', '.join(_ENDINGS)} (all but the last also with .gz), or"
        f" --gin.FORMAT={'|'.join(FORMATS)}."
    )
  if ending == '.tsv' and quoted.is_quoted(path):
    return 'quoted_tsv'
  if ending == '.json':
    _, line = next(text_lines.lines(path), (0, b''))
    return 'jsonl' if line.lstrip().startswith(b'{') else 'json'
  return ending[1:]


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


def files_of(path: pathlib.Path) -> list[pathlib.Path]:
  """The file itself, or those of a folder of Arrow files, see `arrow.files`."""
  return arrow.files(path) if arrow.is_one(path) else [path]


def _rows_at_a_time(
    path: pathlib.Path, metadata: Any, wanted: Callable[[str], bool]
) -> int:
  """How many rows may be decoded at once: each may have the longest text.

  A column chunk begins with its dictionary, if it has one. A text in it stands
  there once, however many rows have it, so a small file may be a large one.
  Raises UserError where a text may be longer than a line of the other formats.
  """
  largest = 1
  with text_lines.opened(path) as file:
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
      for leaf in range(metadata.num_columns):
        column = metadata.schema.column(leaf)
        name = column.path.partition('.')[0]
        if column.physical_type != 'BYTE_ARRAY' or not wanted(name):
          continue
        chunk = group.column(leaf)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        file.seek(max(0, min(start, chunk.data_page_offset)))
        begin = _PAGE.match(file.read(32))
        # What begins otherwise is read a row at a time, if at all.
        size = _number(begin['size']) if begin else _PARQUET_TEXTS
        is_list = column.max_repetition_level > 0
        most = _OF_LISTS if is_list else text_lines.LONGEST_LINE
        if begin and begin['kind'] == _DICTIONARY and size > most:
          raise UserError(
              f'{path}: column {name!r} has a dictionary of {size:,} bytes;'
              f' expected at most {most:,}. Write it without dictionaries, or'
              ' as JSONL.'
          )
        texts = chunk.num_values // max(1, group.num_rows)
        largest = max(largest, size * max(1, texts))
  return min(_PARQUET_ROWS, max(1, _PARQUET_TEXTS // largest))


def _number(varint: bytes) -> int:
  """A number of Thrift's compact form that is 0 or more."""
  # The last bit is the sign.
  return sum((byte & 127) << 7 * i for i, byte in enumerate(varint)) >> 1


def _rows(batch: Any) -> Sequence[Any]:
  """Rows of a record batch: dictionaries, or batches of one if one is bad."""
  try:
    return batch.to_pylist()
  except (ValueError, OverflowError):
    return [batch.slice(row, 1) for row in range(len(batch))]


def _parse_parquet(row: Any) -> dict[str, Any]:
  try:
    return row if isinstance(row, dict) else row.to_pylist()[0]
  except UnicodeDecodeError:
    raise rows.BadRow('not UTF-8') from None
  except (ValueError, OverflowError) as error:  # A year 0, say.
    raise rows.BadRow(f'not a value of Python: {error}') from None
