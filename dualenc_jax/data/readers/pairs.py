"""The user's own files of pairs of query and passage."""

from collections.abc import Collection, Iterator, Mapping, Sequence
import dataclasses
import logging
import pathlib
from typing import Any

from dualenc_jax.data.columns import Column, TEACHER_SCORES, WEIGHTS
from dualenc_jax.data.dataset import example
from dualenc_jax.data.readers import rows, tables
from dualenc_jax.data.readers.files import FilesDataset
from dualenc_jax.data.readers.rows import BadRow
from dualenc_jax.utils import hub, untrusted
from dualenc_jax.utils.errors import (
  check_one_of,
  did_you_mean,
  SourceUnavailable,
  UserError,
)

_SPLITS = ('train', 'validation', 'test')
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Pairs(FilesDataset):
  """Pairs of query and passage, with optional hard negatives, one file a split.

  Files are of the formats of `tables`. Texts are UTF-8; blank lines and columns
  without a use are ignored. JSONL and JSON name columns in every row, TSV and
  CSV in the first line, or `columns` names them.

  The column `passage` holds a string or a list of strings, all of them passages
  of the query; a title, passage_id or name belongs to the one passage, or is a
  list as long. Hard negatives are in the column called `negatives` and in those
  called `negatives_1`, `negatives_2`, ..., each a list of strings, one string,
  or nothing. A row is bad when it has no query or passage, any of its texts is
  nothing but whitespace, or a column holds something else than it should.

  A row with several passages is as many examples, each with all hard negatives
  of the row. A row that has one of its own passages among its hard negatives,
  equal except for whitespace around it, is bad by default. Rows are not
  compared with each other; `dualenc data check` does that.

  The attributes down to negative_scores name columns; where query, passage or
  negatives are missing, the names of `tables.ALIASES` are taken for them, and
  the log says so. Columns from negatives on
  may be missing in a file, unless called otherwise than by default; None leaves
  one out. Training alone reads weights and scores. The arguments train,
  validation and test are the files of the splits.

  Attributes:
    title: titles, joined in front of passages with a space.
    negative_titles: titles of the hard negatives, entry by entry. Without it
      hard negatives are taken to have their titles in their texts.
    query_id: strings or integers, as of passage_id.
    name: what a search hit displays.
    weight: weights of the row's pairs in the loss, finite numbers from 0 on.
    positive_scores: a teacher's scores of the passage, or passages, numbers.
    negative_scores: its scores of the hard negatives, entry by entry. With one
      of the two columns there must be the other.
    format: a name in `tables.FORMATS`; None tells by `tables.format_of`.
    columns: names of the columns of TSV and CSV files without a first line of
      names, in order; those of no use may have any name.
    list_cells: read texts that are lists, of JSON or Python, as lists: what
      there is in a column of CSV. Not of queries.
    strict: whether the first bad row is an error that names file and line, in
      Parquet the row, from 1 on; else bad rows, and of rows just the hard
      negatives that are passages of them, are skipped and the log says how
      many.
  """

  task_name = 'pairs'
  FILES = ('train', 'validation', 'test')

  query: str = 'query'
  passage: str = 'passage'
  negatives: str | None = 'negatives'
  title: str | None = None
  negative_titles: str | None = None
  query_id: str | None = 'query_id'
  passage_id: str | None = 'passage_id'
  name: str | None = 'name'
  weight: str | None = None
  positive_scores: str | None = None
  negative_scores: str | None = None
  train: str | None = None
  validation: str | None = None
  test: str | None = None
  format: str | None = None
  columns: Sequence[str] | None = None
  list_cells: bool = False
  strict: bool = True

  def __post_init__(self):
    if (self.positive_scores is None) != (self.negative_scores is None):
      raise UserError(
          'Pairs: one of POSITIVE_SCORES_COLUMN and NEGATIVE_SCORES_COLUMN is'
          ' given; expected both, or neither.'
      )
    if self.format is not None:
      check_one_of('FORMAT', self.format, tuple(tables.FORMATS))

  @property
  def extra_columns(self) -> tuple[Column, ...]:
    wanted = {WEIGHTS: self.weight, TEACHER_SCORES: self.positive_scores}
    return tuple(column for column, name in wanted.items() if name)

  def splits(self) -> tuple[str, ...]:
    return tuple(split for split in _SPLITS if getattr(self, split))

  def paths(self, split: str) -> list[pathlib.Path]:
    return tables.files_of(self._file(split))

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    """Yields the examples of the good rows, in the file's order.

    Raises UserError, also for no good row at all and a column that no row has.
    """
    if self.extra_columns and split != 'train':
      plain: dict[str, Any] = dict.fromkeys(
          ('weight', 'positive_scores', 'negative_scores')
      )
      yield from dataclasses.replace(self, **plain).examples(split)
      return
    path = self._file(split)
    table = self._table(path)
    unseen, columns = self._required(), table.columns
    if columns is not None:
      self._log_columns(path, columns)
      names = self._aliases(columns)
      columns = [names.get(name, name) for name in columns]
      self._check_columns(path, columns)
      unseen = {}

    def parse(raw: Any) -> tuple[list[dict[str, Any]], int]:
      nonlocal columns
      row = table.parse(raw)
      if columns is None:
        columns = list(row)
        self._log_columns(path, columns)
      if names := self._aliases(row):
        row = {names.get(name, name): value for name, value in row.items()}
      for attribute in [a for a in unseen if self._find(row, a)]:
        del unseen[attribute]
      if self.list_cells:
        row = {
            name: value if name == self.query else rows.read_list(name, value)
            for name, value in row.items() if self._wants(name)
        }
      return self._pairs(row)

    number, lists = 0, rows.Occurrences()
    faults = rows.Faults(self.strict, 'hard negatives')
    for number, (pairs, false_negatives) in rows.parse_rows(
        path, table.numbered, parse, self.strict
    ):
      location = f'{path}:{number}'
      if false_negatives:
        faults.add(
            f'{self.passage!r} is among its hard negatives, {self.negatives!r}',
            location, count=false_negatives,
        )
      if any(map(rows.is_list, _texts(pairs))):
        lists.add(location)
      for pair in pairs:
        yield pair | {'location': location}
    if not number:
      raise UserError(f'{path} has no rows.')
    if unseen:
      raise UserError(f'{path}: {self._lacking(unseen, columns or ())}.')
    faults.warn(path)
    if lists.count:
      _LOG.warning(
          '%s: %d rows have a text that is a list, the first at %s. It is taken'
          ' as it is, with brackets and quotes; --gin.LIST_CELLS=True reads the'
          ' list.', path, lists.count, lists.places[0],
      )

  def _pairs(self, row: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """The examples of a row, without their location, and how many hard
    negatives were skipped as they are passages of the row; raises BadRow."""
    need = {name: getattr(self, name) for name in ('query', 'passage')}
    if lacking := {k: name for k, name in need.items() if name not in row}:
      raise BadRow(self._lacking(lacking, row))
    query = rows.text(row, self.query)
    texts = rows.texts(row, self.passage)
    if not texts:
      raise BadRow(f'{self.passage!r} is an empty list')
    passages = _titled(row, texts, self.title)
    given, scores = self._negatives(row)
    positives = {text.strip() for text in passages}
    # Without titles of their own, negatives compare with the bare texts.
    if self.title and not self.negative_titles:
      positives |= {text.strip() for text in texts}
    kept = [i for i, text in enumerate(given) if text.strip() not in positives]
    values: dict[str, Any] = {
        'query': query,
        'negatives': [given[i] for i in kept],
        'query_id': rows.identifier(row, self.query_id),
    }
    if self.weight:
      weight = row.get(self.weight)
      values[WEIGHTS.name] = rows.number(self.weight, weight, 0)
    passage_ids = rows.parallel(row, self.passage_id, len(texts))
    names = rows.parallel(row, self.name, len(texts))
    examples = [
        example(passage=text, passage_id=id_, name=name, **values)
        for text, id_, name in zip(passages, passage_ids, names)
    ]
    if self.positive_scores:
      own = rows.numbers(row, self.positive_scores, len(texts))
      for pair, score in zip(examples, own):
        pair[TEACHER_SCORES.name] = [score, *(scores[i] for i in kept)]
    return examples, len(given) - len(kept)

  def _negatives(
      self, row: Mapping[str, Any]
  ) -> tuple[list[str], list[float]]:
    """Hard negatives of the row, and a teacher's scores of them, if wanted."""
    found: list[str] = []
    scores: list[float] = []
    for column in self._find(row, 'negatives'):
      if row[column] is None or row[column] == '':
        continue
      number = column.removeprefix(self.negatives or '')
      texts = rows.texts(row, column)
      titles = self.negative_titles and self.negative_titles + number
      found += _titled(row, texts, titles)
      if self.negative_scores:
        scores += rows.numbers(row, self.negative_scores + number, len(texts))
    return found, scores

  def _table(self, path: pathlib.Path) -> tables.Table:
    return tables.open_table(path, self.format, self.columns, self._wants)

  def _aliases(self, columns: Collection[str]) -> Mapping[str, str]:
    """The names that columns are read by which have others; by alias."""
    own = self.query, self.passage, self.negatives
    return tables.renaming(tuple(columns), own)

  def _required(self) -> dict[str, str]:
    """Names of the columns that a file must have, by attribute."""
    return {
        attribute: getattr(self, attribute)
        for attribute, default in _COLUMNS.items()
        if attribute in ('query', 'passage')
        or getattr(self, attribute) not in (None, default)
    }

  def _wants(self, column: str) -> bool:
    """Whether a file's column of this name is read."""
    column = self._aliases([column]).get(column, column)
    return self._uses(column)

  def _uses(self, column: str) -> bool:
    return any(self._find([column], attribute) for attribute in _COLUMNS)

  def _find(self, columns: Collection[str], attribute: str) -> list[str]:
    """The columns of a file that an attribute means."""
    name = getattr(self, attribute)
    if name is not None and attribute in _NUMBERED:
      return tables.numbered_columns(columns, name)
    return [name] if name in columns else []

  def _check_columns(
      self, path: pathlib.Path, columns: Sequence[str]
  ) -> None:
    need = self._required()
    if lacking := {k: need[k] for k in need if not self._find(columns, k)}:
      raise UserError(
          f'{path}: {self._lacking(lacking, columns)}; or with --gin.COLUMNS'
          ' those of a file without a first line of names. Columns:'
          f' {", ".join(columns)[:200]}.'
      )
    for name in columns:
      if self._wants(name) and list(columns).count(name) > 1:
        raise UserError(f'{path} has two columns {name!r}; expected one.')

  def _lacking(
      self, lacking: Mapping[str, str], columns: Collection[str]
  ) -> str:
    """Says which columns are missing, by attribute, and how to name them."""
    meant = ''.join(did_you_mean(name, columns) for name in lacking.values())
    flags = ', '.join(f'--gin.{name.upper()}_COLUMN=...' for name in lacking)
    return (
        f'no column {" or ".join(map(repr, lacking.values()))}.{meant} Give the'
        f' right names with {flags}'
    )

  def _log_columns(self, path: pathlib.Path, columns: Sequence[str]) -> None:
    """Hard negatives under another name would be missed in silence."""
    names = self._aliases(columns)
    if names:
      pairs = ', '.join(f'{old!r} as {new!r}' for old, new in names.items())
      _LOG.warning('%s: reads the columns %s.', path, pairs[:200])
    unread = [n for n in columns if n not in names and not self._uses(n)]
    if unread:
      _LOG.warning(
          '%s: columns that are not read: %s. --gin.NEGATIVES_COLUMN=... names'
          ' hard negatives, and so on for the others of tasks/pairs.gin.',
          path, ', '.join(unread)[:200],
      )

  def _file(self, split: str) -> pathlib.Path:
    if split not in _SPLITS:
      raise self.missing_split(split, self.splits())
    flag = f'--gin.{split.upper()}_FILE=PATH'
    given = getattr(self, split)
    if not given:
      for other in self.splits():
        self._file(other)  # A wrong name is reported first.
      raise UserError(
          f'pairs has no file for split {split!r}; it has'
          f' {", ".join(self.splits()) or "none"}. Give it with {flag}.'
      )
    path = pathlib.Path(hub.data(given)).expanduser()
    if tables.is_arrow_folder(path):
      return path
    if path.is_dir():
      raise UserError(
          f'pairs, split {split!r}: {path} is a folder. Expected a file, or a'
          f' folder of save_to_disk; --gin.BEIR_FOLDER of tasks/beir.gin reads'
          " one in BEIR's layout."
      )
    if not path.is_file():
      beside = (file.name for file in path.parent.glob('*'))
      near = did_you_mean(path.name, beside)
      raise SourceUnavailable(
          f'pairs, split {split!r}: {untrusted.explain_path(path)}.{near} Give'
          f' it with {flag}.'
      )
    if not self.format:
      tables.format_of(path)
    return path


_NO_COLUMNS = (*_SPLITS, 'format', 'columns', 'list_cells', 'strict')
# The attributes that name a column, with their defaults.
_COLUMNS = {
    field.name: field.default
    for field in dataclasses.fields(Pairs)
    if field.name not in _NO_COLUMNS
}
# Columns of which a file may have several.
_NUMBERED = ('negatives', 'negative_titles', 'negative_scores')


def _texts(pairs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
  """All texts of a row's examples, which share query and hard negatives."""
  yield from (pair['passage'] for pair in pairs)
  yield from (pairs[0]['query'], *pairs[0]['negatives'])


def _titled(
    row: Mapping[str, Any], texts: list[str], column: str | None
) -> list[str]:
  """Texts with the titles of a column in front of them."""
  if not column:
    return texts
  return [
      f'{title} {text}' if title.strip() else text
      for title, text in zip(rows.parallel(row, column, len(texts)), texts)
  ]
