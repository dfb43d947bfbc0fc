"""The reader behind `pairs`: JSONL or TSV files of query and passage."""

import collections
from collections.abc import Iterator
import dataclasses
import gzip
import hashlib
import json
import logging
import pathlib

from dualenc_jax.data import reader
from dualenc_jax.errors import SourceUnavailable
from dualenc_jax.errors import UserError
from dualenc_jax.suggest import did_you_mean

_FORMATS = ('.jsonl', '.jsonl.gz', '.tsv', '.tsv.gz')
_SPLITS = ('train', 'validation', 'test')


class _BadRow(Exception):
  """Why a row cannot be an example."""


@dataclasses.dataclass(frozen=True)
class Pairs:
  """Pairs of query and passage, with optional hard negatives, one file a split.

  JSONL (.jsonl, .jsonl.gz): an object a line; `query` and `passage` are
  strings, `negatives` a list of strings. TSV (.tsv, .tsv.gz): the first line
  names the columns, cells are taken as they are, without quotes or escapes;
  every column called `negatives` or `negatives_<anything>` holds one hard
  negative or nothing. Both may have `query_id`, `passage_id` and `name` (what
  a search hit displays), strings or integers. Files are UTF-8; blank lines are
  ignored.

  A row is bad when it is not of that form, lacks a column, or has a query,
  passage or negative of nothing but whitespace.

  Attributes:
    train: file of the split, None if there is none.
    validation: the same.
    test: the same.
    query: name of the query column.
    passage: name of the passage column.
    negatives: name of the column of hard negatives, optional in the file.
    on_bad_row: 'error' stops at the first bad row with its file and line;
      'skip' leaves bad rows out and logs how many, by reason.
  """

  train: str | None = None
  validation: str | None = None
  test: str | None = None
  query: str = 'query'
  passage: str = 'passage'
  negatives: str = 'negatives'
  on_bad_row: str = 'error'

  def __post_init__(self):
    if self.on_bad_row not in ('error', 'skip'):
      raise UserError(
          f'Pairs.on_bad_row is {self.on_bad_row!r}; expected'
          " 'error' or 'skip'."
      )

  def splits(self) -> tuple[str, ...]:
    return tuple(split for split in _SPLITS if getattr(self, split))

  def check_split(self, split: str) -> None:
    self._file(split)

  def examples(self, split: str) -> Iterator[dict]:
    """Yields the good rows in the file's order.

    Raises:
      UserError: a bad row, unless they are skipped; or no good row at all.
    """
    path = self._file(split)
    good, bad = 0, collections.Counter()
    for line, row in self._rows(path):
      try:
        example = self._example(row())
      except _BadRow as reason:
        if self.on_bad_row == 'error':
          raise UserError(
              f'{path}:{line}: {reason}. Mend the row, or leave out such rows'
              ' with --gin.ON_BAD_ROW=skip (on_bad_row).'
          ) from None
        bad[str(reason)] += 1
        continue
      good += 1
      yield example | {'location': f'{path}:{line}'}
    if bad:
      counts = ', '.join(f'{count} {text}' for text, count in bad.most_common())
      logging.getLogger(__name__).warning(
          '%s: skipped %d bad rows of %d: %s',
          path,
          bad.total(),
          bad.total() + good,
          counts,
      )
    if not good:
      raise UserError(
          f'{path} has no good row ({bad.total()} bad ones). Expected the'
          f' columns {self.query!r} and {self.passage!r}.'
      )

  def corpus_split(self, split: str) -> None:
    """None: a split is ranked over its own passages."""

  def fingerprint(self, split: str) -> str:
    """Hash of the file's content."""
    with open(self._file(split), 'rb') as stream:
      return hashlib.file_digest(stream, 'sha256').hexdigest()

  def _file(self, split: str) -> pathlib.Path:
    if split not in _SPLITS:
      raise UserError(
          f'pairs has no split {split!r}.{did_you_mean(split, _SPLITS)} Splits:'
          f' {", ".join(_SPLITS)}.'
      )
    flag = f'--gin.{split.upper()}_FILE=...'
    path = getattr(self, split)
    if not path:
      raise UserError(
          f'pairs has no file for split {split!r}; it has'
          f' {", ".join(self.splits()) or "none"}. Give it with {flag} (JSONL'
          ' or TSV of query and passage).'
      )
    path = pathlib.Path(path).expanduser()
    if not path.is_file():
      raise SourceUnavailable(
          f'pairs, split {split!r}: there is no file {path}. Give it with'
          f' {flag}.'
      )
    if not path.name.endswith(_FORMATS):
      raise UserError(
          f'pairs, split {split!r}: {path} is of an unknown format; expected'
          f' a name that ends with {", ".join(_FORMATS)}.'
      )
    return path

  def _rows(self, path: pathlib.Path):
    """Yields (line number, function that parses the row or raises _BadRow)."""
    opener = gzip.open if path.suffix == '.gz' else open
    header = None
    with opener(path, 'rb') as stream:
      try:
        for line, data in enumerate(stream, 1):
          data = data.rstrip(b'\r\n')
          if line == 1:
            data = data.removeprefix(b'\xef\xbb\xbf')
          if not data.strip():
            continue
          if '.jsonl' in path.suffixes:
            yield line, lambda: _parse_json(data)
          elif header is None:
            header = self._header(path, line, data)
          else:
            yield line, lambda: self._parse_tsv(header, data)
      except (gzip.BadGzipFile, EOFError) as error:
        raise UserError(f'{path} is a damaged gzip file: {error}') from error

  def _header(self, path: pathlib.Path, line: int, data: bytes) -> list[str]:
    try:
      header = [name.strip() for name in _decode(data).split('\t')]
    except _BadRow as reason:
      raise UserError(f'{path}:{line}: {reason}.') from None
    for name in (self.query, self.passage):
      if name not in header:
        raise UserError(
            f'{path}:{line}: the first line of a TSV must name its columns,'
            f' tab-separated, among them {self.query!r} and {self.passage!r};'
            f' {name!r} is missing. Found: {", ".join(header)[:200]}.'
        )
    return header

  def _parse_tsv(self, header: list[str], data: bytes) -> dict:
    cells = _decode(data).split('\t')
    if len(cells) != len(header):
      raise _BadRow(f'{len(cells)} columns, the header has {len(header)}')
    negatives = [
        cell
        for name, cell in zip(header, cells)
        if cell
        and (name == self.negatives or name.startswith(f'{self.negatives}_'))
    ]
    return dict(zip(header, cells)) | {self.negatives: negatives}

  def _example(self, row: dict) -> dict:
    negatives = row.get(self.negatives)
    if negatives is None:
      negatives = []
    if not isinstance(negatives, list):
      raise _BadRow(f'{self.negatives!r} is not a list of strings')
    for text in negatives:
      _check_text(self.negatives, text)
    for name in (self.query, self.passage):
      if name not in row:
        raise _BadRow(f'column {name!r} is missing')
      _check_text(name, row[name])
    example = reader.example(row[self.query], row[self.passage], negatives)
    for name in ('query_id', 'passage_id', 'name'):
      value = row.get(name)
      value = '' if value is None else value
      if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise _BadRow(f'{name!r} is neither a string nor an integer')
      example[name] = str(value)
      _check_unicode(name, example[name])
    return example


def _check_text(name: str, text) -> None:
  if not isinstance(text, str):
    raise _BadRow(f'{name!r} holds {type(text).__name__}, not a string')
  if not text.strip():
    raise _BadRow(f'{name!r} is empty')
  _check_unicode(name, text)


def _check_unicode(name: str, text: str) -> None:
  try:
    text.encode('utf-8')
  except UnicodeEncodeError:  # JSON can spell half of a surrogate pair.
    raise _BadRow(f'{name!r} is not valid Unicode') from None


def _decode(data: bytes) -> str:
  try:
    return data.decode('utf-8')
  except UnicodeDecodeError:
    raise _BadRow('not UTF-8') from None


def _parse_json(data: bytes) -> dict:
  try:
    row = json.loads(_decode(data))
  except (json.JSONDecodeError, RecursionError):
    raise _BadRow('not JSON') from None
  if not isinstance(row, dict):
    raise _BadRow('not a JSON object')
  return row
