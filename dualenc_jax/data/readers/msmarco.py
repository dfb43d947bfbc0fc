"""MS MARCO passage ranking."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.data.dataset import example
from dualenc_jax.data.readers import beir_sets, pairs_formats, rows
from dualenc_jax.data.readers.beir import BeirFolder
from dualenc_jax.data.readers.column_aliases import ALIASES, OF_TEXTS
from dualenc_jax.data.readers.qrels_reader import CORPUS, QrelsReader, Source
from dualenc_jax.utils.errors import UserError

_SET = 'msmarco'
_TRIPLE = ('query', 'positive', 'negative')
_TRIPLES = 'triples'
_URL = 'https://msmarco.z22.web.core.windows.net/msmarcoranking'
_HINT = (
    f'{_URL}/collectionandqueries.tar.gz (1,058 MB) holds collection.tsv,'
    ' queries.train.tsv, qrels.train.tsv, queries.dev.small.tsv and'
    f' qrels.dev.small.tsv, {_URL}/triples.train.small.tar.gz (7,931 MB) holds'
    ' triples.train.small.tsv: unpack it there. The test split, TREC Deep'
    f' Learning 2019, is {_URL}/msmarco-test2019-queries.tsv.gz and'
    ' https://trec.nist.gov/data/deep/2019qrels-pass.txt. A folder in'
    " BEIR's layout (corpus.jsonl, ...) serves, too."
)
# Counts of the catalogue of ir_datasets (ir-datasets.com/msmarco-passage.html).
# BEIR's copy has ten judgements fewer in train.
_PASSAGES = {'passages': 8_841_823}
_PUBLISHED: Mapping[str, Mapping[str, int]] = {
    'train': {'queries': 502_939, 'judgements': 532_761, **_PASSAGES},
    'validation': {'queries': 6_980, 'judgements': 7_437, **_PASSAGES},
    'test': {'queries': 43, 'judgements': 9_260, **_PASSAGES},
    CORPUS: _PASSAGES,
    _TRIPLES: {'triples': 39_780_811},
}
_NAMES: Mapping[str, tuple[str, ...]] = {
    'collection': ('collection.tsv',),
    'train_queries': ('queries.train.tsv',),
    'train_qrels': ('qrels.train.tsv',),
    'validation_queries': ('queries.dev.small.tsv',),
    'validation_qrels': ('qrels.dev.small.tsv',),
    'test_queries': ('msmarco-test2019-queries.tsv',),
    'test_qrels': ('2019qrels-pass.txt', 'qrels.dl19-passage.txt'),
    _TRIPLES: ('triples.train.small.tsv',),
}


@dataclasses.dataclass(frozen=True)
class MsMarcoFiles(Source):
  """MS MARCO passage ranking as Microsoft publishes it, unpacked.

  collection.tsv has lines of passage id and passage, queries.*.tsv of query id
  and query, separated by tabs, or in the order of a first line of names, see
  `column_aliases.are_names`; qrels are of any form that `qrels.read` knows.
  All may be .gz, and lie in a folder collectionandqueries/. The keys are
  'collection', 'train_queries', 'train_qrels', the same of validation and test,
  and 'triples'.
  """

  CORPUS_KEY = 'collection'

  def names(self) -> Mapping[str, Sequence[str]]:
    return {
        key: [
            f'{folder}{name}{suffix}'
            for folder in ('', 'collectionandqueries/')
            for name in names
            for suffix in ('', '.gz')
        ]
        for key, names in _NAMES.items()
    }

  def open(self, path: pathlib.Path, key: str) -> pairs_formats.Table:
    what = 'passage' if key == self.CORPUS_KEY else 'query'
    return pairs_formats.tsv(path, (f'{what}_id', what))

  def parse_passage(self, row: Mapping[str, str]) -> tuple[str, str]:
    name, text = _cells(row, *OF_TEXTS['corpus'])
    return name, text.strip()

  def parse_query(self, row: Mapping[str, str]) -> tuple[str, str]:
    name, text = _cells(row, *OF_TEXTS['queries'])
    rows.check_text('query', text)
    return name, text


@dataclasses.dataclass(frozen=True)
class MsMarco(QrelsReader):
  """MS MARCO passage ranking, with the counts compared with the published ones.

  The first of these that exists: the official files in <root> (see
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
    rows.check_choice('train_from', self.train_from, ('qrels', _TRIPLES))
    if self.train_from == _TRIPLES and self.hard_negatives is not None:
      raise UserError(
          'msmarco: triples already have hard negatives. Expected either'
          " train_from = 'triples' or a file of hard_negatives."
      )

  def splits(self) -> tuple[str, ...]:
    splits = super().splits()
    if self.train_from != _TRIPLES:
      return splits
    train = ('train',) if self._official().has(_TRIPLES) else ()
    return (*train, *(split for split in splits if split != 'train'))

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    if self._of_triples(split):
      yield from self._triples()
    else:
      yield from super().examples(split)

  def most_examples(self, split: str, enough: int) -> int | None:
    if self._of_triples(split):
      return None
    return super().most_examples(split, enough)

  def published(self, split: str) -> Mapping[str, int]:
    if isinstance(self.source(), MsMarcoFiles):
      return _PUBLISHED[split]
    return beir_sets.one(_SET).published(split)

  def source(self) -> Source:
    official, root = self._official(), self._root()
    if self.files or official.has('collection'):
      return official
    folders = [] if root is None else [root, root / _SET]
    if self.data_root is not None:
      folders.append(pathlib.Path(self.data_root, 'beir', _SET).expanduser())
    for folder in folders:
      found = BeirFolder(
          folder, self.task_name, beir_sets.hint(_SET), {}, self.strict,
          titles=beir_sets.one(_SET).titles,
      )
      if CORPUS in found.splits():
        return found
    return official

  def _of_triples(self, split: str) -> bool:
    return split == 'train' and self.train_from == _TRIPLES

  def paths(self, split: str) -> list[pathlib.Path]:
    if self._of_triples(split):
      return [self._official().find(_TRIPLES)]
    return super().paths(split)

  def _official(self) -> MsMarcoFiles:
    return MsMarcoFiles(
        self._root(), self.task_name, _HINT, self.files or {}, self.strict
    )

  def _triples(self) -> Iterator[dict[str, Any]]:
    path = self._official().find(_TRIPLES)
    count = 0
    faults = rows.Faults(self.strict, 'negatives')
    table = pairs_formats.tsv(path, _TRIPLE)

    def parse(line: bytes) -> list[str]:
      cells = _cells(table.parse(line), *ALIASES.values())
      for name, text in zip(_TRIPLE, cells):
        rows.check_text(name, text)
      return cells

    for number, (query, positive, negative) in rows.checked(
        path, table.numbered, parse, self.strict
    ):
      count += 1
      location = f'{path}:{number}'
      negatives = [negative]
      if positive.strip() == negative.strip():
        faults.add('the negative is the positive', location)
        negatives = []
      yield example(query, positive, negatives=negatives, location=location)
    published = {} if _TRIPLES in (self.files or ()) else _PUBLISHED[_TRIPLES]
    rows.compare_counts(
        str(path), {'triples': count}, published, *self._allowed()
    )
    faults.warn(path)


def _cells(row: Mapping[str, str], *columns: Sequence[str]) -> list[str]:
  """The cells of columns that may have these names, the first with a text."""
  names = [rows.first(row, names) for names in columns]
  rows.check_text(names[0], row[names[0]])
  return [row[name] for name in names]
