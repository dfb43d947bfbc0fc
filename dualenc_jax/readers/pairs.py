"""The user's own files of query and passage."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import logging
import pathlib
from typing import Any

from dualenc_jax.data.columns import Column, WEIGHTS
from dualenc_jax.data.dataset import Dataset, example
from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.readers import bad_rows, files, pairs_formats, pairs_rows, rows
from dualenc_jax.suggest import did_you_mean

_SPLITS = ('train', 'validation', 'test')


@dataclasses.dataclass(frozen=True)
class Pairs(pairs_rows.PairColumns, Dataset):
  """Pairs of query and passage, with optional hard negatives, one file a split.

  JSONL (.jsonl, .jsonl.gz) is an object a line. TSV (.tsv, .tsv.gz) has its
  columns' names in the first line, or `columns` gives them; cells are taken as
  they are, without quotes or escapes. Parquet (.parquet) needs pyarrow. Texts
  are UTF-8; blank lines are ignored. Other columns than those of `PairColumns`
  are ignored, too.

  A row with several passages is as many examples, one after the other, each
  with all hard negatives of the row. They may meet in a batch: the losses mask
  pairs of equal queries out of each other's negatives, in both directions, so
  positives of a query are never its in-batch negatives. A hard negative,
  though, is compared with the anchor's own passage only; so a row that has one
  of its passages among its hard negatives, equal but for whitespace around it,
  is bad by default: the model would be taught both. Rows are not compared with
  each other; `dualenc data check` does that.

  Attributes:
    train: file of the split, None if there is none.
    validation: the same.
    test: the same.
    format: 'jsonl', 'tsv' or 'parquet'; None tells by the end of the name.
    columns: names of the columns of TSV files without a first line of
      names, in order; those of no use may have any name.
    strict: whether the first bad row is an error that names file and line, in
      Parquet the row, from 1 on; else bad rows, and of rows just the hard
      negatives that are passages of them, are left out and the log says how
      many.
  """

  task_name = 'pairs'
  FILES = ('train', 'validation', 'test')

  train: str | None = None
  validation: str | None = None
  test: str | None = None
  format: str | None = None
  columns: Sequence[str] | None = None
  strict: bool = True

  def __post_init__(self):
    rows.check_strict(self.strict)
    if self.format is not None:
      pairs_formats.check_format(self.format)
    if isinstance(self.columns, str):
      raise UserError(
          f'COLUMNS is the string {self.columns!r}; expected a tuple of'
          " names, such as ('query', 'passage', 'negatives')."
      )

  @property
  def extra_columns(self) -> tuple[Column, ...]:
    return (WEIGHTS,) if self.weight else ()

  def splits(self) -> tuple[str, ...]:
    return tuple(split for split in _SPLITS if getattr(self, split))

  def check_split(self, split: str) -> None:
    self._file(split)

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    """Yields the examples of the good rows, in the file's order.

    Raises:
      UserError: a bad row, unless they are skipped; no good row at all; a
        column that is not there; a damaged file.
      SourceUnavailable: a Parquet file, and pyarrow is not installed.
    """
    if self.weight and split != 'train':
      yield from dataclasses.replace(self, weight=None).examples(split)
      return
    path = self._file(split)
    table = pairs_formats.FORMATS[self._format(path)](
        path, self.columns, self.wants
    )
    if table.columns is not None:
      self._check_columns(path, table.columns, table.hint)
      self._tell_unread(path, table.columns)
    unseen, columns = self.required(), table.columns

    def parse(raw: Any) -> pairs_rows.PairRow:
      nonlocal columns
      row = table.parse(raw)
      if columns is None:
        columns = row.keys()
        self._tell_unread(path, columns)
      for attribute in [a for a in unseen if self.find(row, a)]:
        del unseen[attribute]
      return self.read(row)

    number = dropped = 0
    for number, row in rows.checked(
        path, table.numbered, parse, self.strict
    ):
      dropped += row.false_negatives
      location = f'{path}:{number}'
      more = {WEIGHTS.name: row.weight} if self.weight else {}
      for passage, passage_id, name in zip(
          row.passages, row.passage_ids, row.names
      ):
        yield example(
            query=row.query,
            passage=passage,
            negatives=row.negatives,
            query_id=row.query_id,
            passage_id=passage_id,
            name=name,
            location=location,
            **more,
        )
    if not number:
      raise UserError(f'{path} has no rows.')
    for attribute, name in unseen.items():
      raise UserError(
          f'{path}: no row has a column {name!r}. Give its right name with'
          f' {pairs_rows.flag(attribute)}.'
      )
    if dropped:
      logging.getLogger(__name__).warning(
          '%s: dropped %d hard negatives that are positives of their rows.',
          path,
          dropped,
      )

  def _tell_unread(self, path: pathlib.Path, columns: Iterable[str]) -> None:
    """Hard negatives under another name would be missed in silence."""
    unread = [name for name in columns if not self.wants(name)]
    if unread:
      logging.getLogger(__name__).warning(
          '%s: columns that are not read: %s. Of hard negatives, give the name'
          ' with --gin.NEGATIVES_COLUMN=....',
          path,
          ', '.join(unread)[:200],
      )

  def read(self, row: Mapping[str, Any]) -> pairs_rows.PairRow:
    """Checks a row, values by column; raises BadRow."""
    pair = super().read(row)
    if pair.false_negatives and (
        self.strict or bad_rows.collected() is not None
    ):
      raise rows.BadRow(
          f'{self.passage!r} is among its hard negatives, {self.negatives!r}'
      )
    return pair

  def fingerprint(self, split: str) -> str:
    """Hash of the file's content."""
    return files.fingerprint([self._file(split)])

  def _file(self, split: str) -> pathlib.Path:
    if split not in _SPLITS:
      raise self.no_split(split, _SPLITS)
    flag = f'--gin.{split.upper()}_FILE=...'
    path = getattr(self, split)
    if not path:
      raise UserError(
          f'pairs has no file for split {split!r}; it has'
          f' {", ".join(self.splits()) or "none"}. Give it with {flag} (JSONL,'
          ' TSV or Parquet of query and passage).'
      )
    path = pathlib.Path(path).expanduser()
    if not path.is_file():
      raise SourceUnavailable(
          f'pairs, split {split!r}: there is no file {path}. Give it with'
          f' {flag}.'
      )
    self._format(path)
    return path

  def _format(self, path: pathlib.Path) -> str:
    return self.format or pairs_formats.format_of(path)

  def _check_columns(
      self, path: pathlib.Path, columns: Sequence[str], hint: str
  ) -> None:
    for attribute, name in self.required().items():
      if not self.find(columns, attribute):
        raise UserError(
            f'{path} has no column {name!r}.{did_you_mean(name, columns)}'
            f' Columns: {", ".join(columns)[:200]}. Give the right name with'
            f' {pairs_rows.flag(attribute)}.{hint}'
        )
    for name in columns:
      if self.wants(name) and list(columns).count(name) > 1:
        raise UserError(
            f'{path} has two columns {name!r}. Hard negatives may be in'
            " columns negatives_1, negatives_2, ...; other names once."
        )
