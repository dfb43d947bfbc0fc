"""MS MARCO passage ranking."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.data.dataset import example
from dualenc_jax.errors import UserError
from dualenc_jax.readers import beir_sets, qrels, rows
from dualenc_jax.readers.beir import BeirFolder
from dualenc_jax.readers.qrels_reader import (
    check_file_names,
    CORPUS,
    QrelsReader,
    Source,
    SPLITS,
)
from dualenc_jax.readers.rows import BadRow
from dualenc_jax.readers.texts_by_id import Row

_SET = 'msmarco'
_TRIPLE = ('query', 'positive', 'negative')
URL = 'https://msmarco.z22.web.core.windows.net/msmarcoranking'
HINT = (
    f'{URL}/collectionandqueries.tar.gz (1,058 MB) holds collection.tsv,'
    ' queries.train.tsv, qrels.train.tsv, queries.dev.small.tsv and'
    ' qrels.dev.small.tsv: unpack it there. The test split, TREC Deep Learning'
    f' 2019, is {URL}/msmarco-test2019-queries.tsv.gz and'
    ' https://trec.nist.gov/data/deep/2019qrels-pass.txt. A folder in'
    " BEIR's layout (corpus.jsonl, ...) serves, too."
)
TRIPLES = 'triples'
TRIPLES_HINT = (
    f'{URL}/triples.train.small.tar.gz (7,931 MB) holds it: unpack it there.'
)
# Counts of the catalogue of ir_datasets (ir-datasets.com/msmarco-passage.html).
# BEIR's copy has ten judgements fewer in train.
_PASSAGES = {'passages': 8_841_823}
PUBLISHED: Mapping[str, Mapping[str, int]] = {
    'train': {'queries': 502_939, 'judgements': 532_761, **_PASSAGES},
    'validation': {'queries': 6_980, 'judgements': 7_437, **_PASSAGES},
    'test': {'queries': 43, 'judgements': 9_260, **_PASSAGES},
    CORPUS: _PASSAGES,
    TRIPLES: {'triples': 39_780_811},
}
_NAMES: Mapping[str, tuple[str, ...]] = {
    'collection': ('collection.tsv',),
    'train_queries': ('queries.train.tsv',),
    'train_qrels': ('qrels.train.tsv',),
    'validation_queries': ('queries.dev.small.tsv',),
    'validation_qrels': ('qrels.dev.small.tsv',),
    'test_queries': ('msmarco-test2019-queries.tsv',),
    'test_qrels': ('2019qrels-pass.txt', 'qrels.dl19-passage.txt'),
    TRIPLES: ('triples.train.small.tsv',),
}
_FOLDERS = ('', 'collectionandqueries/')


@dataclasses.dataclass(frozen=True)
class MsMarcoFiles:
  """MS MARCO passage ranking as Microsoft publishes it, unpacked.

  collection.tsv has lines of passage id and passage, queries.*.tsv of query id
  and query, separated by tabs; qrels are of any form that `qrels.read` knows.
  All may be .gz, and lie in a folder collectionandqueries/.

  Attributes:
    folder: where the files are, None if the user has not given one.
    files: names of files below it in place of the usual ones, by 'collection',
      'train_queries', 'train_qrels', the same of validation and test, and
      'triples'.
    strict: as of `rows.parsed`.
  """

  folder: pathlib.Path | None
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)
  strict: bool = True

  def __post_init__(self):
    check_file_names(self.files, tuple(_NAMES))

  def has(self, name: str) -> bool:
    """Whether a file is there, by its key of `files`."""
    return self.folder is not None and any(
        (self.folder / file).is_file() for file in self._names(name)
    )

  def find(self, name: str, hint: str = HINT) -> pathlib.Path:
    """Path of a file; raises SourceUnavailable."""
    return rows.find(self.folder, self._names(name), 'msmarco', hint)

  def splits(self) -> tuple[str, ...]:
    found = [split for split in SPLITS if self.has(f'{split}_qrels')]
    return (*found, *([CORPUS] if self.has('collection') else []))

  def paths(self, split: str) -> list[pathlib.Path]:
    names = ['collection']
    if split != CORPUS:
      names = [f'{split}_qrels', f'{split}_queries', 'collection']
    return [self.find(name) for name in names]

  def passages(self) -> Iterator[Row]:
    return self._rows('collection', _parse_passage)

  def queries(self, split: str) -> Iterator[Row]:
    return self._rows(f'{split}_queries', _parse_query)

  def qrels(self, split: str) -> qrels.Qrels:
    return qrels.read(self.find(f'{split}_qrels'), self.strict)

  def comparable(
      self, split: str, published: Mapping[str, int]
  ) -> Mapping[str, int]:
    """Files that the user names are not the published ones."""
    kept = dict(published)
    if TRIPLES in self.files:
      kept.pop('triples', None)
    if 'collection' in self.files:
      kept.pop('passages', None)
    if f'{split}_qrels' in self.files:
      kept.pop('queries', None)
      kept.pop('judgements', None)
    return kept

  def _names(self, name: str) -> list[str]:
    if name in self.files:
      return [self.files[name]]
    return [
        f'{folder}{file}{suffix}'
        for folder in _FOLDERS
        for file in _NAMES[name]
        for suffix in ('', '.gz')
    ]

  def _rows(
      self, name: str, parse: Callable[[bytes], tuple[str, str]]
  ) -> Iterator[Row]:
    path = self.find(name)
    for number, row in rows.parsed(path, parse, self.strict):
      yield Row(f'{path}:{number}', *row)


@dataclasses.dataclass(frozen=True)
class MsMarco(QrelsReader):
  """MS MARCO passage ranking, with the counts compared with the published ones.

  The first of these that is there: the official files in <root> (see
  `MsMarcoFiles`); a folder in BEIR's layout, which is <root>, <root>/msmarco or
  <data_root>/beir/msmarco.

  Splits are train, validation (the 6,980 queries of dev.small), test (TREC Deep
  Learning 2019) and corpus.

  Attributes:
    train_from: what train is made of. 'qrels' are the judgements; 'triples' the
      rows of triples.train.small.tsv, each of a query, a positive and a hard
      negative, without ids; a negative that is its positive is an error if
      `strict`, else left out and counted.
  """

  train_from: str = 'qrels'

  task_name = 'msmarco'
  evaluated = 'validation'

  def __post_init__(self):
    super().__post_init__()
    rows.check_choice('train_from', self.train_from, ('qrels', TRIPLES))
    if self.train_from == TRIPLES and self.hard_negatives is not None:
      raise UserError(
          'msmarco: triples have hard negatives of their own. Expected either'
          " train_from = 'triples' or a file of hard_negatives."
      )

  def splits(self) -> tuple[str, ...]:
    splits = super().splits()
    if self.train_from != TRIPLES:
      return splits
    train = ('train',) if self._official().has(TRIPLES) else ()
    return (*train, *(split for split in splits if split != 'train'))

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    if split == 'train' and self.train_from == TRIPLES:
      yield from self._triples()
    else:
      yield from super().examples(split)

  def published(self, split: str) -> Mapping[str, int]:
    if isinstance(self.source(), MsMarcoFiles):
      return PUBLISHED[split]
    return beir_sets.one(_SET).published(split)

  def source(self) -> Source:
    official = self._official()
    if self.files or official.has('collection'):
      return official
    for folder in self._beir_folders():
      if any(
          (folder / name).is_file()
          for name in ('corpus.jsonl', 'corpus.jsonl.gz')
      ):
        return BeirFolder(
            folder=folder,
            task=self.task_name,
            hint=beir_sets.hint(_SET),
            titles=beir_sets.one(_SET).titles,
            strict=self.strict,
        )
    return official

  def _paths(self, split: str) -> list[pathlib.Path]:
    if split == 'train' and self.train_from == TRIPLES:
      return [self._triples_path()]
    return super()._paths(split)

  def _official(self) -> MsMarcoFiles:
    return MsMarcoFiles(self._root(), self.files or {}, self.strict)

  def _beir_folders(self) -> list[pathlib.Path]:
    root = self._root()
    folders = [] if root is None else [root, root / _SET]
    if self.data_root is not None:
      data_root = pathlib.Path(self.data_root).expanduser()
      folders.append(data_root / 'beir' / _SET)
    return folders

  def _triples_path(self) -> pathlib.Path:
    return self._official().find(TRIPLES, TRIPLES_HINT)

  def _triples(self) -> Iterator[dict[str, Any]]:
    path = self._triples_path()
    count = 0
    faults = rows.Faults(self.strict, 'negatives')
    for number, (query, positive, negative) in rows.parsed(
        path, _parse_triple, self.strict
    ):
      count += 1
      location = f'{path}:{number}'
      same = positive.strip() == negative.strip()
      if same:
        faults.add('the negative is the positive', location)
      yield example(
          query=query,
          passage=positive,
          negatives=[] if same else [negative],
          location=location,
      )
    rows.compare_counts(
        str(path),
        {'triples': count},
        self._official().comparable(TRIPLES, PUBLISHED[TRIPLES]),
        **self._allowed(),
    )
    faults.warn(path)


def _parse_triple(line: bytes) -> list[str]:
  cells = rows.tsv_cells(line, _TRIPLE)
  for name, text in zip(_TRIPLE, cells):
    rows.check_text(name, text)
  return cells


def _parse_passage(line: bytes) -> tuple[str, str]:
  name, text = rows.tsv_cells(line, ('passage id', 'passage'))
  _check_id(name)
  return name, text.strip()


def _parse_query(line: bytes) -> tuple[str, str]:
  name, text = rows.tsv_cells(line, ('query id', 'query'))
  _check_id(name)
  rows.check_text('query', text)
  return name, text


def _check_id(name: str) -> None:
  if not name.strip():
    raise BadRow('the id is empty')
