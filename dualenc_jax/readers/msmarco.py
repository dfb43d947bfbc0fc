"""MS MARCO passage ranking."""

from collections.abc import Iterator, Mapping
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.data.dataset import example
from dualenc_jax.errors import UserError
from dualenc_jax.readers import beir_sets, msmarco_files, rows
from dualenc_jax.readers.beir_folder import BeirFolder
from dualenc_jax.readers.msmarco_files import MsMarcoFiles, TRIPLES
from dualenc_jax.readers.qrels_reader import QrelsReader, Source

_SET = 'msmarco'
_TRIPLE = ('query', 'positive', 'negative')


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
      return msmarco_files.PUBLISHED[split]
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
    return self._official().find(TRIPLES, msmarco_files.TRIPLES_HINT)

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
        self._official().comparable(TRIPLES, msmarco_files.PUBLISHED[TRIPLES]),
        self.allowed(),
        self.advice(),
    )
    faults.warn(path)


def _parse_triple(line: bytes) -> list[str]:
  cells = rows.tsv_cells(line, _TRIPLE)
  for name, text in zip(_TRIPLE, cells):
    rows.check_text(name, text)
  return cells
