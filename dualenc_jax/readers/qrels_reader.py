"""What the readers of judged collections have in common."""

import abc
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.data.dataset import Dataset
from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.readers import files, rows
from dualenc_jax.readers.hard_negatives import HardNegatives
from dualenc_jax.readers.qrels_pairs import JUDGED_IDS, JudgedPairs
from dualenc_jax.readers.qrels_source import CORPUS, Source, SPLITS


@dataclasses.dataclass(frozen=True)
class QrelsReader(Dataset):
  """Reads queries, passages and judgements of a benchmark.

  The splits are train, validation and test, those that have judgements, and
  corpus, over which their queries are ranked. Nothing is downloaded.

  Attributes:
    root: folder of the benchmark's files.
    data_root: folder of all benchmarks' folders, where `root` is None.
    files: paths of files in place of the usual ones, below the folder of these
      unless absolute.
    hard_negatives: file of hard negatives of train, of a form that
      `hard_negatives_forms.parse` knows; None if there is none.
    systems: whose hard negatives to take; None for all.
    max_negatives: most hard negatives that are kept of a query.
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
      'hard_negatives',
      'judged_ids',
      'max_negatives',
      'systems',
      'train_from',
  )

  root: str | None = None
  data_root: str | None = None
  files: Mapping[str, str] | None = None
  hard_negatives: str | None = None
  systems: Sequence[str] | None = None
  max_negatives: int = 30
  strict: bool = True
  judged_ids: str = 'passages'
  tolerance: float | None = None

  # Also the name of the folder below `data_root`.
  task_name = ''
  evaluated = 'test'

  def __post_init__(self):
    rows.check_strict(self.strict)
    rows.check_choice('judged_ids', self.judged_ids, JUDGED_IDS)
    if self.max_negatives < 1:
      raise UserError(
          f'max_negatives is {self.max_negatives}; expected at least 1, or no'
          ' hard_negatives.'
      )
    if isinstance(self.systems, str):
      raise UserError(
          f'systems is the string {self.systems!r}; expected a tuple of names,'
          " such as ('bm25',)."
      )
    if self.tolerance is not None and self.tolerance < 0:
      raise UserError(
          f'tolerance is {self.tolerance}; expected a share, 0.0 or more.'
      )

  @abc.abstractmethod
  def source(self) -> Source:
    """Where the data is found; raises SourceUnavailable."""

  @abc.abstractmethod
  def published(self, split: str) -> Mapping[str, int]:
    """Published counts by name of a split, as far as they are known."""

  def name(self) -> str:
    """What messages call the data set."""
    return self.task_name

  def note(self) -> str:
    """Why counts may differ from the published ones, or ''."""
    return ''

  def advice(self) -> str:
    """What to do about counts that differ."""
    return (
        f'{self.note()} Else allow it with'
        f' --gin.{self.task_name.upper()}_TOLERANCE (tolerance), a share of the'
        ' published count: 1.0 takes any part of a data set.'
    ).lstrip()

  def allowed(self) -> float:
    """The tolerance, with the benchmark's own for None."""
    return 0.0 if self.tolerance is None else self.tolerance

  def splits(self) -> tuple[str, ...]:
    try:
      return self.source().splits()
    except SourceUnavailable:
      return ()

  def check_split(self, split: str) -> None:
    self._paths(split)

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    """Yields pairs in the order of the judgements, or the corpus in its own.

    Raises:
      SourceUnavailable: a file is missing.
      UserError: bad rows, ids that are unknown or occur twice, other counts
        than the published ones, a positive among hard negatives, or a damaged
        file.
    """
    self.check_split(split)
    yield from self._pairs().examples(split)

  def judging_documents(self) -> Dataset:
    return dataclasses.replace(self, judged_ids='documents')

  def corpus_split(self, split: str) -> str | None:
    return None if split == CORPUS else CORPUS

  def fingerprint(self, split: str) -> str:
    """Hash of the content of all files of a split."""
    return files.fingerprint(self._paths(split))

  def _pairs(self) -> JudgedPairs:
    return JudgedPairs(
        source=self.source(),
        what=self.name(),
        published=self.published,
        tolerance=self.allowed(),
        advice=self.advice(),
        hard_negatives=self._hard_negatives(),
        strict=self.strict,
        judged_ids=self.judged_ids,
    )

  def _paths(self, split: str) -> list[pathlib.Path]:
    if split not in (*SPLITS, CORPUS):
      raise self.no_split(split, self.splits() or (*SPLITS, CORPUS))
    paths = self.source().paths(split)
    mined = self._hard_negatives() if split == 'train' else None
    return [*paths, mined.path] if mined else paths

  def _hard_negatives(self) -> HardNegatives | None:
    if self.hard_negatives is None:
      return None
    path = pathlib.Path(self.hard_negatives).expanduser()
    if not path.is_file():
      raise SourceUnavailable(
          f'{self.name()}: there is no file of hard negatives {path}.'
      )
    return HardNegatives(
        path, self.systems, self.max_negatives, self.strict
    )

  def _root(self) -> pathlib.Path | None:
    """The folder of the benchmark's files, None if none is given."""
    if self.root is not None:
      return pathlib.Path(self.root).expanduser()
    if self.data_root is not None:
      return pathlib.Path(self.data_root).expanduser() / self.task_name
    return None
