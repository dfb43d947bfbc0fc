"""The base class of readers of queries, passages and judgements."""

import abc
from collections.abc import Iterable, Iterator, Sequence
import contextlib
import dataclasses
import functools
import json
import logging
import math
import pathlib
import sqlite3
from typing import Any, ClassVar

import numpy as np

from dualenc_jax.data.columns import Column, TEACHER_SCORES
from dualenc_jax.data.dataset import Dataset, example
from dualenc_jax.data.readers import files, hard_negatives, rows, texts
from dualenc_jax.data.readers.files import FilesDataset
from dualenc_jax.data.readers.qrels import Judgement, Qrels, read
from dualenc_jax.data.readers.texts import Row, unique
from dualenc_jax.utils.errors import expect, UserError

SPLITS = ('train', 'validation', 'test')
CORPUS, QUERIES, QRELS = 'corpus', 'queries', 'qrels'


class TextTable:
  """Texts by id in a database of its own on disk; of an id the first counts.

  A context manager: the database goes with it.
  """

  def __init__(self, texts: Iterable[tuple[str, str]]):
    """Reads all (id, text)."""
    # TensorFlow reads one generator in several threads, one after the other.
    self._texts = sqlite3.connect('', check_same_thread=False)
    self._texts.execute('CREATE TABLE texts (id TEXT, text TEXT)')
    self._texts.executemany('INSERT INTO texts VALUES (?, ?)', texts)
    # Sorted once, not with each row.
    self._texts.execute('CREATE INDEX by_id ON texts (id)')

  def get(self, name: str) -> str | None:
    """The text of an id, None if there is no such id."""
    found = self._texts.execute(
        'SELECT text FROM texts WHERE id = ? ORDER BY rowid LIMIT 1', (name,)
    ).fetchone()
    return found and found[0]

  def __enter__(self) -> 'TextTable':
    return self

  def __exit__(self, *unused_error) -> None:
    self._texts.close()


class IdSet:
  """A set of ids, known by 64 bits of their hash: 8 bytes of RAM each."""

  def __init__(self, ids: Iterable[str]):
    self._keys = np.unique(np.fromiter(map(hash, ids), np.int64))

  def __contains__(self, name: str) -> bool:
    key = np.int64(hash(name))
    position = int(self._keys.searchsorted(key))
    return position < len(self._keys) and bool(self._keys[position] == key)


@dataclasses.dataclass(frozen=True)
class JudgedTexts(FilesDataset):
  """Reads queries, passages and judgements of a benchmark.

  The splits are those of train, validation and test that have judgements, and
  corpus, over which their queries are ranked. Nothing is downloaded.

  Attributes:
    root: folder of the benchmark's files.
    data_root: folder of all benchmarks' folders, where `root` is None.
    hard_negatives: file of hard negatives of train, of a form that
      `hard_negatives.parse` knows.
    max_negatives: most hard negatives that are kept of a query.
    scores: whether the file of hard negatives has a teacher's scores to learn
      from, `losses.Distill`: "ce-score" of objects, or GPL's margins.
    strict: whether a row that cannot be parsed, an id of two rows, a judgement
      or hard negative that names no query or passage, and a positive among
      the hard negatives of its query are errors; else they are skipped, of two
      rows the second, and the log says how many.
    judged_ids: what the judgements to evaluate on judge: 'passages', or
      'documents' of which the passages are parts, whose rows have no text.
  """

  FILES = ('folder', 'hard_negatives')
  NOT_OF_CORPUS = (
      'hard_negatives', 'judged_ids', 'max_negatives', 'scores',
  )

  root: str | None = None
  data_root: str | None = None
  hard_negatives: str | None = None
  max_negatives: int = 30
  scores: bool = False
  strict: bool = True
  judged_ids: str = 'passages'

  # Also the name of the folder below `data_root`.
  task_name = ''
  # The format of the texts in `tables.FORMATS`; None tells by their names.
  FORM: ClassVar[str | None] = None

  def __post_init__(self):
    expect(
        self.max_negatives >= 1, 'max_negatives', self.max_negatives,
        'at least 1, or no hard_negatives',
    )
    if self.scores and self.hard_negatives is None:
      flag = f'--gin.{self.task_name.upper()}_HARD_NEGATIVES'
      raise UserError(
          f'scores are those of hard negatives. Give a file, {flag}.'
      )

  @abc.abstractmethod
  def file_names(self, kind: str, split: str) -> list[str]:
    """Usual paths below the folder of corpus, queries or qrels of a split.

    The preferred one comes first; each may also end with .gz.
    """

  @abc.abstractmethod
  def folder_and_hint(self) -> tuple[pathlib.Path | None, str]:
    """The folder of the files, None if none is given, and where to get them."""

  def name(self) -> str:
    """The name of the data set in messages."""
    return self.task_name

  @property
  def evaluated(self) -> str:
    return 'test'

  @property
  def extra_columns(self) -> tuple[Column, ...]:
    return (TEACHER_SCORES,) if self.scores else ()

  def splits(self) -> tuple[str, ...]:
    """The existing ones of SPLITS, those with judgements, and of CORPUS."""
    folder, _ = self.folder_and_hint()
    return tuple(
        split for split in (*SPLITS, CORPUS)
        if folder and any(
            (folder / name).is_file()
            for name in self._names(CORPUS if split == CORPUS else QRELS, split)
        )
    )

  def paths(self, split: str) -> list[pathlib.Path]:
    if split not in (*SPLITS, CORPUS):
      raise self.missing_split(split, self.splits() or (*SPLITS, CORPUS))
    kinds = (CORPUS,) if split == CORPUS else (QRELS, QUERIES, CORPUS)
    paths = [self._find(kind, split) for kind in kinds]
    mined = self._hard_negatives_file() if split == 'train' else None
    return [*paths, mined] if mined else paths

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    """Yields pairs in the order of the judgements, or the corpus in its own.

    Raises UserError for bad rows, ids that are unknown or occur twice, and a
    positive among hard negatives.
    """
    self.check_split(split)
    if split == CORPUS:
      for row in self._texts(CORPUS, split):
        yield example(
            passage=row.text, passage_id=row.id, name=row.name,
            location=row.location,
        )
      return
    qrels = self._qrels(split)
    training = split == 'train'
    judged = tuple(j for j in qrels.judgements if not training or j.grade > 0)
    # The judgements come first, so that of the corpus only texts that they, or
    # hard negatives, name are kept, on disk; of another passage 8 bytes are.
    with contextlib.ExitStack() as tables:

      def table(found: Iterable[Row], needed: IdSet) -> TextTable:
        pairs = ((row.id, row.text) for row in found if row.id in needed)
        return tables.enter_context(TextTable(pairs))

      negatives = self._negatives(split, judged)
      if negatives is not None:
        tables.enter_context(negatives)
      query_ids = IdSet(judgement.query_id for judgement in judged)
      queries = table(self._texts(QUERIES, split), query_ids)
      passages = None
      if training or self.judged_ids != 'documents':
        passage_ids = IdSet(_passage_ids(judged, negatives))
        passages = table(self._texts(CORPUS, split), passage_ids)
      yield from self._pairs(
          qrels, judged, queries, passages, negatives, training
      )

  def _pairs(
      self,
      qrels: Qrels,
      judged: Sequence[Judgement],
      queries: TextTable,
      passages: TextTable | None,
      negatives: TextTable | None,
      training: bool,
  ) -> Iterator[dict[str, Any]]:
    """Yields a pair for each judgement whose query and passage exist.

    Without `passages`, documents are judged, whose text is ''. A hard negative
    with the text of the pair's passage is skipped; the log says how many. A
    blank passage is at fault in training.
    """
    faults = rows.Faults(self.strict, 'judgements')
    unknown = rows.Faults(self.strict, 'hard negatives')
    repeats = 0
    for judgement in judged:
      location = qrels.location(judgement)
      query = queries.get(judgement.query_id)
      passage: str | None = ''
      if passages is not None:
        passage = passages.get(judgement.passage_id)
      if query is None or passage is None or training and not passage:
        what, name = 'passage', judgement.passage_id
        if query is None:
          what, name = 'query', judgement.query_id
        wrong = 'is blank' if query and passage == '' else 'does not exist'
        error = f'{what} {name!r} {wrong}'
        faults.add(f'the {what} {wrong}', location, error)
        continue
      mined = _stored(negatives, judgement.query_id)
      hard: list[str] = []
      scores = [mined.scores.get(judgement.passage_id, math.nan)]
      for negative in mined.negatives:
        text = '' if passages is None else passages.get(negative.id)
        if text is None:
          reason = 'the passage does not exist'
          error = f'the hard negative {negative.id!r} is no passage'
          unknown.add(reason, location, error)
        elif text == passage:
          repeats += 1
        elif text:
          hard.append(text)
          scores.append(negative.score)
      extra = {TEACHER_SCORES.name: scores} if self.scores and training else {}
      yield example(
          query=query, passage=passage, negatives=hard,
          query_id=judgement.query_id, passage_id=judgement.passage_id,
          location=location, relevance=judgement.grade, **extra,
      )
    faults.warn(self.name())
    unknown.warn(self.name())
    if repeats:
      logging.getLogger(__name__).warning(
          '%s: skipped %d hard negatives with the text of their positive.',
          self.name(), repeats,
      )

  def judging_documents(self) -> Dataset:
    return dataclasses.replace(self, judged_ids='documents')

  def corpus_split(self, split: str) -> str | None:
    return None if split == CORPUS else CORPUS

  def _names(self, kind: str, split: str) -> list[str]:
    names = self.file_names(kind, split)
    return [f'{name}{end}' for name in names for end in ('', '.gz')]

  def _find(self, kind: str, split: str) -> pathlib.Path:
    """Path of a file; raises SourceUnavailable."""
    folder, hint = self.folder_and_hint()
    if splits := self.splits():
      hint = f'Its splits: {", ".join(splits)}. {hint}'
    return files.find(folder, self._names(kind, split), self.name(), hint)

  def _qrels(self, split: str) -> Qrels:
    return read(self._find(QRELS, split), self.strict)

  def _texts(self, kind: str, split: str) -> Iterator[Row]:
    """Yields the passages, or the queries of a split, each id once."""
    read = functools.partial(
        texts.read, self._find(kind, split), kind, self.strict, self.FORM,
        columns=('id', 'text'),
    )
    return unique(read, self.strict)

  def _negatives(
      self, split: str, judged: Iterable[Judgement]
  ) -> TextTable | None:
    """The mined negatives of each query, for `_stored`."""
    if split != 'train' or (path := self._hard_negatives_file()) is None:
      return None
    positives: dict[str, list[str]] = {}
    for judgement in judged:
      positives.setdefault(judgement.query_id, []).append(judgement.passage_id)
    found = hard_negatives.read(
        path, positives, self.max_negatives, self.strict, self.scores
    )
    return TextTable((query_id, json.dumps(each)) for query_id, each in found)

  def _hard_negatives_file(self) -> pathlib.Path | None:
    """The file of hard negatives, if there is to be one."""
    if self.hard_negatives is None:
      return None
    folder, _ = self.folder_and_hint()
    places = '', folder or '', self.data_root or ''
    given = pathlib.Path(self.hard_negatives).expanduser()
    names = [str(pathlib.Path(p).expanduser() / given) for p in places]
    flag = f'--gin.{self.task_name.upper()}_HARD_NEGATIVES'
    names = list(dict.fromkeys(names))
    return files.find('', names, self.name(), f'Correct {flag}.')

  def _root(self) -> pathlib.Path | None:
    return files.task_folder(self.task_name, self.root, self.data_root)


def _passage_ids(
    judged: Sequence[Judgement], negatives: TextTable | None
) -> Iterator[str]:
  for judgement in judged:
    yield judgement.passage_id
  for query_id in dict.fromkeys(judgement.query_id for judgement in judged):
    for negative in _stored(negatives, query_id).negatives:
      yield negative.id


def _stored(
    table: TextTable | None, query_id: str
) -> hard_negatives.QueryNegatives:
  """The entry of a query in a table of JSON, empty if it has none."""
  if table is None or not (text := table.get(query_id)):
    return hard_negatives.QueryNegatives([], {})
  negatives, scores = json.loads(text)
  found = [hard_negatives.Negative(*entry) for entry in negatives]
  return hard_negatives.QueryNegatives(found, scores)
