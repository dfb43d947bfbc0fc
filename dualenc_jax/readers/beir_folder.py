"""A folder in BEIR's layout: corpus.jsonl, queries.jsonl, qrels/*.tsv."""

from collections.abc import Iterator, Mapping
import dataclasses
import pathlib

from dualenc_jax.readers import qrels, rows
from dualenc_jax.readers.qrels_reader import check_file_names, CORPUS, SPLITS
from dualenc_jax.readers.rows import BadRow
from dualenc_jax.readers.texts_by_id import Row

_QRELS = {'train': 'train', 'validation': 'dev', 'test': 'test'}
_SUFFIXES = ('.tsv', '.tsv.gz')


@dataclasses.dataclass(frozen=True)
class BeirFolder:
  """A data set in BEIR's layout, all files plain or .gz.

  corpus.jsonl has objects {_id, title, text}, the title optional, and
  queries.jsonl objects {_id, text}; qrels/train.tsv, qrels/dev.tsv and
  qrels/test.tsv are those that there are, of any form that `qrels.read` knows.
  A passage is (title + ' ' + text).strip(), as in BEIR's own models.

  Attributes:
    folder: the data set's own.
    task: name of the task, for errors.
    hint: where to get missing files, for errors.
    titles: whether titles go in front of texts.
    prefix: 'qgen' reads qgen-queries.jsonl and qgen-qrels/, as made by BEIR's
      query generation and by GPL.
    files: names of files below the folder in place of the usual ones, by
      'corpus', 'queries', 'train', 'validation' and 'test' (qrels).
    strict: as of `rows.parsed`.
  """

  folder: pathlib.Path
  task: str
  hint: str
  titles: bool = True
  prefix: str = ''
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)
  strict: bool = True

  def __post_init__(self):
    check_file_names(self.files, (CORPUS, 'queries', *SPLITS))

  def splits(self) -> tuple[str, ...]:
    return tuple(
        split
        for split in (*SPLITS, CORPUS)
        if any((self.folder / name).is_file() for name in self._names(split))
    )

  def paths(self, split: str) -> list[pathlib.Path]:
    names = (CORPUS,) if split == CORPUS else (split, 'queries', CORPUS)
    return [self._find(name) for name in names]

  def passages(self) -> Iterator[Row]:
    path = self._find(CORPUS)
    parsed = rows.parsed(path, self._parse_passage, self.strict)
    for number, (name, title, text) in parsed:
      yield Row(f'{path}:{number}', name, rows.titled(title, text), title)

  def queries(self, split: str) -> Iterator[Row]:
    path = self._find('queries')
    parsed = rows.parsed(path, _parse_query, self.strict)
    for number, (name, text) in parsed:
      yield Row(f'{path}:{number}', name, text)

  def qrels(self, split: str) -> qrels.Qrels:
    return qrels.read(self._find(split), self.strict)

  def comparable(
      self, split: str, published: Mapping[str, int]
  ) -> Mapping[str, int]:
    """Files that the user names are not the published ones."""
    kept = dict(published)
    if CORPUS in self.files:
      kept.pop('passages', None)
    if self.prefix or split in self.files:
      kept.pop('queries', None)
      kept.pop('judgements', None)
    return kept

  def _find(self, name: str) -> pathlib.Path:
    return rows.find(self.folder, self._names(name), self.task, self.hint)

  def _names(self, name: str) -> list[str]:
    if name in self.files:
      return [self.files[name]]
    prefix = f'{self.prefix}-' if self.prefix else ''
    if name == CORPUS:
      return ['corpus.jsonl', 'corpus.jsonl.gz']
    if name == 'queries':
      return [f'{prefix}queries.jsonl', f'{prefix}queries.jsonl.gz']
    return [f'{prefix}qrels/{_QRELS[name]}{suffix}' for suffix in _SUFFIXES]

  def _parse_passage(self, line: bytes) -> tuple[str, str, str]:
    row = rows.json_object(line)
    title = rows.title(row)
    # Some corpora have passages of a title only, or of nothing at all.
    text = rows.text(row, 'text', empty=True)
    return _identifier(row), title if self.titles else '', text


def _parse_query(line: bytes) -> tuple[str, str]:
  row = rows.json_object(line)
  return _identifier(row), rows.text(row, 'text')


def _identifier(row: dict) -> str:
  name = rows.identifier(row, '_id')
  if not name:
    raise BadRow("'_id' is missing or empty")
  return name
