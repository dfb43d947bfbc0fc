"""The base class of readers of judged collections."""

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json
import logging
import pathlib
from typing import Any

from dualenc_jax.data.columns import Column, TEACHER_SCORES
from dualenc_jax.data.dataset import Dataset, example
from dualenc_jax.data.readers import rows
from dualenc_jax.data.readers.files_dataset import FilesDataset
from dualenc_jax.data.readers.hard_negatives import HardNegatives, of_query
from dualenc_jax.data.readers.pairs_formats import Table
from dualenc_jax.data.readers.qrels import Judgement, Qrels, read
from dualenc_jax.data.readers.qrels_join import Documents, Join
from dualenc_jax.data.readers.texts_by_id import IdSet, Row, TextTable, unique
from dualenc_jax.utils.errors import expect, SourceUnavailable, UserError
from dualenc_jax.utils.suggest import did_you_mean

_LOG = logging.getLogger(__name__)
SPLITS = ('train', 'validation', 'test')
CORPUS = 'corpus'


@dataclasses.dataclass(frozen=True)
class Source(abc.ABC):
  """The files of a data set, of whatever layout, each plain or .gz.

  Attributes:
    folder: where the files are, None if the user has not given one.
    task: name of the task, for errors.
    hint: where to get missing files, for errors.
    files: paths of files below the folder in place of the usual ones, by the
      keys of `names`.
    strict: as of `rows.checked`.
  """

  CORPUS_KEY = CORPUS
  # Of a split.
  QUERIES_KEY = '{}_queries'
  QRELS_KEY = '{}_qrels'

  folder: pathlib.Path | None
  task: str
  hint: str
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)
  strict: bool = True

  def __post_init__(self):
    known = self.names()
    for name in self.files:
      if name not in known:
        raise UserError(
            f'files names {name!r}.{did_you_mean(name, known)} Expected some'
            f' of: {", ".join(known)}.'
        )

  @abc.abstractmethod
  def names(self) -> Mapping[str, Sequence[str]]:
    """The usual paths below the folder by key, the preferred one first."""

  @abc.abstractmethod
  def open(self, path: pathlib.Path, key: str) -> Table:
    """The rows of a file of passages or queries, by its key in `names`."""

  @abc.abstractmethod
  def parse_passage(self, row: Mapping[str, Any]) -> tuple[str, ...]:
    """Id, text and perhaps name of a row of the corpus; raises BadRow."""

  @abc.abstractmethod
  def parse_query(self, row: Mapping[str, Any]) -> tuple[str, ...]:
    """Id and text of a row of queries; raises BadRow."""

  def has(self, key: str) -> bool:
    """Whether a file exists."""
    return self.folder is not None and any(
        (self.folder / name).is_file() for name in self._names(key)
    )

  def find(self, key: str) -> pathlib.Path:
    """Path of a file; raises SourceUnavailable."""
    hint = self.hint
    if self.folder is not None and not self.has(key):
      if splits := self.splits():
        hint = f'Its splits: {", ".join(splits)}.{self.unread()} {hint}'
      if key != self.QRELS_KEY.format('train'):
        hint += ' Another split is measured by --split.' * (CORPUS in splits)
      elif self.has(self.CORPUS_KEY):
        hint += (
            ' To train on the corpus alone: --gin_file=tasks/documents.gin'
            f' --gin.DOCUMENTS={self.find(self.CORPUS_KEY)}.'
        )
    return rows.find(self.folder, self._names(key), self.task, hint)

  def unread(self) -> str:
    """A sentence on files in the folder of judgements that no split reads."""
    keys = [self.QRELS_KEY.format(split) for split in SPLITS]
    names = [name for key in keys for name in self._names(key)]
    usual = [self.names()[key][0] for key in keys]
    if self.folder is None or '/' not in usual[0]:
      return ''
    there = (self.folder / usual[0]).parent.glob('[!.]*')
    others = sorted({*there} - {self.folder / name for name in names})
    if not others:
      return ''
    return (
        f' No split reads {", ".join(map(str, others[:rows.SHOWN]))}; expected'
        f' {rows.one_of(usual)}.'
    )

  def splits(self) -> tuple[str, ...]:
    """The existing ones of SPLITS, those with judgements, and of CORPUS."""
    found = [s for s in SPLITS if self.has(self.QRELS_KEY.format(s))]
    return (*found, *([CORPUS] if self.has(self.CORPUS_KEY) else []))

  def paths(self, split: str) -> list[pathlib.Path]:
    """All files that a split is read from; raises SourceUnavailable."""
    of_split = [] if split == CORPUS else [self.QRELS_KEY, self.QUERIES_KEY]
    keys = [key.format(split) for key in (*of_split, self.CORPUS_KEY)]
    return [self.find(key) for key in keys]

  def passages(self) -> Iterator[Row]:
    """Yields all of the corpus."""
    return self._rows(self.CORPUS_KEY, self.parse_passage)

  def queries(self, split: str) -> Iterator[Row]:
    """Yields the queries of a split, perhaps those of other splits, too."""
    return self._rows(self.QUERIES_KEY.format(split), self.parse_query)

  def qrels(self, split: str) -> Qrels:
    """The judgements of a split."""
    return read(self.find(self.QRELS_KEY.format(split)), self.strict)

  def comparable(
      self, split: str, published: Mapping[str, int]
  ) -> Mapping[str, int]:
    """Published counts less those of files that the user names."""
    own = {'passages'} if self.CORPUS_KEY in self.files else set()
    if self.QRELS_KEY.format(split) in self.files:
      own |= {'queries', 'judgements'}
    return {name: n for name, n in published.items() if name not in own}

  def _names(self, key: str) -> Sequence[str]:
    return [self.files[key]] if key in self.files else self.names()[key]

  def _rows(
      self, key: str, parse: Callable[[Mapping[str, Any]], tuple[str, ...]]
  ) -> Iterator[Row]:
    path = self.find(key)
    table = self.open(path, key)
    for number, row in rows.checked(
        path, table.numbered, lambda raw: parse(table.parse(raw)), self.strict
    ):
      yield Row(f'{path}:{number}', *row)


@dataclasses.dataclass(frozen=True)
class QrelsReader(FilesDataset):
  """Reads queries, passages and judgements of a benchmark.

  The splits are train, validation and test, those that have judgements, and
  corpus, over which their queries are ranked. Nothing is downloaded.

  Attributes:
    root: folder of the benchmark's files.
    data_root: folder of all benchmarks' folders, where `root` is None.
    files: paths of files in place of the usual ones, below the folder of these
      unless absolute.
    hard_negatives: file of hard negatives of train, of a form that
      `hard_negatives.parse` knows.
    systems: whose hard negatives to take; None for all.
    max_negatives: most hard negatives that are kept of a query.
    scores: whether the file of hard negatives has a teacher's scores to learn
      from, `losses.Distill`: "ce-score" of objects, or GPL's margins.
    strict: whether a row that cannot be parsed, an id of two rows, a judgement
      or hard negative that names no query or passage, and a positive among
      the hard negatives of its query are errors; else they are left out, of
      two rows the second, and the log says how many.
    judged_ids: of what the judgements to evaluate on are: 'passages', or
      'documents' of which the passages are parts, whose rows have no text.
    tolerance: share by which counts may differ from the published ones; None
      for the benchmark's own. 1.0 takes any part of a data set.
  """

  FILES = ('files', 'folder', 'hard_negatives')
  NOT_OF_CORPUS = (
      'hard_negatives', 'judged_ids', 'max_negatives', 'scores', 'systems',
      'train_from',
  )

  root: str | None = None
  data_root: str | None = None
  files: Mapping[str, str] | None = None
  hard_negatives: str | None = None
  systems: Sequence[str] | None = None
  max_negatives: int = 30
  scores: bool = False
  strict: bool = True
  judged_ids: str = 'passages'
  tolerance: float | None = None

  # Also the name of the folder below `data_root`.
  task_name = ''

  def __post_init__(self):
    super().__post_init__()
    rows.check_choice('judged_ids', self.judged_ids, ('passages', 'documents'))
    expect(
        self.max_negatives >= 1, 'max_negatives', self.max_negatives,
        'at least 1, or no hard_negatives',
    )
    if self.scores and self.hard_negatives is None:
      raise UserError(
          'scores is True, but only a file of hard negatives has scores. Give'
          f' one, --gin.{self.task_name.upper()}_HARD_NEGATIVES'
          ' (hard_negatives).'
      )
    expect(
        not isinstance(self.systems, str), 'systems', self.systems,
        "a tuple of names, such as ('bm25',)",
    )
    expect(
        self.tolerance is None or self.tolerance >= 0, 'tolerance',
        self.tolerance, 'a share, 0.0 or more',
    )

  @property
  def evaluated(self) -> str:
    return 'test'

  @property
  def extra_columns(self) -> tuple[Column, ...]:
    return (TEACHER_SCORES,) if self.scores else ()

  @abc.abstractmethod
  def source(self) -> Source:
    """Where the data is found; raises SourceUnavailable."""

  @abc.abstractmethod
  def published(self, split: str) -> Mapping[str, int]:
    """Published counts by name of a split, as far as they are known."""

  def allowance(self) -> tuple[float, str]:
    """By what share counts may differ from the published ones, and why."""
    return 0.0, ''

  def name(self) -> str:
    """What messages call the data set."""
    return self.task_name

  def splits(self) -> tuple[str, ...]:
    try:
      return self.source().splits()
    except SourceUnavailable:
      return ()

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    """Yields pairs in the order of the judgements, or the corpus in its own.

    Raises UserError for bad rows, ids that are unknown or occur twice, other
    counts than the published ones, or a positive among hard negatives.
    """
    self.check_split(split)
    source = self.source()
    if split == CORPUS:
      if rows.collected() is not None and (unread := source.unread()):
        _LOG.warning('%s:%s', self.name(), unread)
      for row in self._passages(source, split):
        yield example(
            passage=row.text, passage_id=row.id, name=row.name,
            location=row.location,
        )
      return
    qrels = source.qrels(split)
    num_queries = len({judgement.query_id for judgement in qrels.judgements})
    self._compare(source, split, queries=num_queries, judgements=qrels.rows)
    training = split == 'train'
    judged = tuple(j for j in qrels.judgements if not training or j.grade > 0)
    # The judgements come first, so that of the corpus only texts that they, or
    # hard negatives, name are kept, on disk; of another passage 8 bytes are.
    with contextlib.ExitStack() as tables:

      def table(found: Iterable[Row], needed: IdSet) -> TextTable:
        texts = ((row.id, row.text) for row in found if row.id in needed)
        return tables.enter_context(TextTable(texts))

      negatives = tables.enter_context(self._negatives(split, judged))
      query_ids = IdSet(judgement.query_id for judgement in judged)
      found = unique(lambda: source.queries(split), self.strict)
      queries = table(found, query_ids)
      all_there = len(queries) == len(query_ids)
      passages: TextTable | Documents = Documents()
      if training or self.judged_ids != 'documents':
        passage_ids = IdSet(_passage_ids(judged, negatives))
        passages = table(self._passages(source, split), passage_ids)
        all_there &= len(passages) == len(passage_ids)
      join = Join(
          self.name(), qrels, judged, queries, passages, negatives,
          self.strict, self.scores and training,
      )
      if not all_there:
        join.check_ids()
      yield from join.examples(training)

  def most_examples(self, split: str, enough: int) -> int | None:
    del enough
    if split == CORPUS:
      return None
    judged = self.source().qrels(split).judgements
    return sum(split != 'train' or each.grade > 0 for each in judged)

  def judging_documents(self) -> Dataset:
    return dataclasses.replace(self, judged_ids='documents')

  def corpus_split(self, split: str) -> str | None:
    return None if split == CORPUS else CORPUS

  def _passages(self, source: Source, split: str) -> Iterator[Row]:
    count = 0
    for row in unique(source.passages, self.strict):
      count += 1
      yield row
    self._compare(source, split, passages=count)

  def _negatives(self, split: str, judged: Iterable[Judgement]) -> TextTable:
    mined = self._hard_negatives() if split == 'train' else None
    if mined is None:
      return TextTable(())
    positives: dict[str, list[str]] = {}
    for judgement in judged:
      positives.setdefault(judgement.query_id, []).append(judgement.passage_id)
    found = mined.read(positives)
    return TextTable((query_id, json.dumps(each)) for query_id, each in found)

  def _compare(self, source: Source, split: str, **found: int) -> None:
    rows.compare_counts(
        f'{self.name()}, split {split!r}',
        found,
        source.comparable(split, self.published(split)),
        *self._allowed(),
    )

  def _allowed(self) -> tuple[float, str]:
    """The tolerance of counts, and what to do about those beyond it."""
    usual, note = self.allowance()
    flag = f'--gin.{self.task_name.upper()}_TOLERANCE (tolerance)'
    advice = (
        f'{note} Else allow it with {flag}, a share of the published count: 1.0'
        ' takes any part of a data set.'
    )
    given = self.tolerance
    return usual if given is None else given, advice.lstrip()

  def paths(self, split: str) -> list[pathlib.Path]:
    if split not in (*SPLITS, CORPUS):
      raise self.no_split(split, self.splits() or (*SPLITS, CORPUS))
    paths = self.source().paths(split)
    mined = self._hard_negatives() if split == 'train' else None
    return [*paths, mined.path] if mined else paths

  def _hard_negatives(self) -> HardNegatives | None:
    if self.hard_negatives is None:
      return None
    given = pathlib.Path(self.hard_negatives).expanduser()
    folders = [self.source().folder, self._root()]
    if self.data_root is not None:
      folders.append(pathlib.Path(self.data_root).expanduser())
    below = (folder / given for folder in folders if folder)
    places = dict.fromkeys((given.absolute(), *below))
    path = next(filter(pathlib.Path.is_file, (given, *places)), None)
    if path is None:
      raise SourceUnavailable(
          f'{self.name()}: there is no file of hard negatives {given}. Looked'
          f' for {", ".join(map(str, places))}. Give'
          f' --gin.{self.task_name.upper()}_HARD_NEGATIVES the right name,'
          ' below DATA_ROOT or whole.'
      )
    return HardNegatives(
        path, self.systems, self.max_negatives, self.strict, self.scores
    )

  def _root(self) -> pathlib.Path | None:
    return rows.folder_of(self.task_name, self.root, self.data_root)


def _passage_ids(
    judged: Sequence[Judgement], negatives: TextTable
) -> Iterator[str]:
  for judgement in judged:
    yield judgement.passage_id
  if len(negatives):
    for query_id in dict.fromkeys(judgement.query_id for judgement in judged):
      for negative in of_query(negatives, query_id).negatives:
        if negative.id:
          yield negative.id
