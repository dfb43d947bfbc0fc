"""The sets of the BEIR benchmark, or folders like them."""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.data.dataset import Dataset
from dualenc_jax.data.readers import beir_sets, pairs_formats, rows
from dualenc_jax.data.readers.qrels_reader import CORPUS, QrelsReader, Source
from dualenc_jax.data.readers.rows import BadRow
from dualenc_jax.utils.errors import SourceUnavailable, UserError


@dataclasses.dataclass(frozen=True)
class BeirFolder(Source):
  """A data set in BEIR's layout, all files plain or .gz.

  corpus.jsonl has objects {_id, title, text}, the title optional, and
  queries.jsonl objects {_id, text}; qrels/train.tsv, qrels/dev.tsv and
  qrels/test.tsv are those that exist, of any form that `qrels.read` knows.
  A passage is (title + ' ' + text).strip(), as in BEIR's own models.

  Attributes:
    titles: whether titles go in front of texts.
    prefix: 'qgen' reads qgen-queries.jsonl and qgen-qrels/, as made by BEIR's
      query generation and by GPL.
  """

  QUERIES_KEY = 'queries'
  QRELS_KEY = '{}'

  titles: bool = True
  prefix: str = ''

  def names(self) -> Mapping[str, Sequence[str]]:
    prefix = f'{self.prefix}-' if self.prefix else ''
    names = {
        CORPUS: 'corpus.jsonl',
        'queries': f'{prefix}queries.jsonl',
        'train': f'{prefix}qrels/train.tsv',
        'validation': f'{prefix}qrels/dev.tsv',
        'test': f'{prefix}qrels/test.tsv',
    }
    return {key: (name, f'{name}.gz') for key, name in names.items()}

  def open(self, path: pathlib.Path, key: str) -> pairs_formats.Table:
    del key
    return pairs_formats.FORMATS['jsonl'](path)

  def parse_passage(self, row: Mapping[str, Any]) -> tuple[str, str, str]:
    title = rows.title(row)
    # Some corpora have passages of a title only, or of nothing at all.
    text = rows.text(row, 'text', empty=True)
    title = title if self.titles else ''
    return _identifier(row), rows.titled(title, text), title

  def parse_query(self, row: Mapping[str, Any]) -> tuple[str, str]:
    return _identifier(row), rows.text(row, 'text')

  def comparable(
      self, split: str, published: Mapping[str, int]
  ) -> Mapping[str, int]:
    if self.prefix:
      published = {k: v for k, v in published.items() if k == 'passages'}
    return super().comparable(split, published)


@dataclasses.dataclass(frozen=True)
class Beir(QrelsReader):
  """A data set of the BEIR benchmark, or one's own in its layout.

  A set of the benchmark is read from <root>/<dataset>/, see `BeirFolder`. Its
  counts are compared with the published ones. Dev qrels are the split
  validation.

  Attributes:
    dataset: a key of `beir_sets.SETS`.
    folder: a folder in BEIR's layout in place of a set of the benchmark; no
      counts are compared.
    prefix: 'qgen' reads generated queries, see `BeirFolder`.
  """

  dataset: str | None = None
  folder: str | None = None
  prefix: str = ''

  task_name = 'beir'

  def __post_init__(self):
    super().__post_init__()
    if self.dataset is not None:
      beir_sets.one(self.dataset)

  def of_datasets(self, name: str | None = None) -> list[Dataset]:
    """The parts of the 18 sets of the paper's average, or of one set.

    A folder of the user's own in their place is itself.
    """
    if name is None and self.folder is not None:
      return [self]
    of_set = self
    if self.folder is not None:
      # By the saved config of a model, say, that was trained on a folder: so
      # are the names of files and what was mined.
      of_set = dataclasses.replace(
          self, folder=None, prefix='', files=None,
          hard_negatives=None, scores=False,
      )
    return [
        dataclasses.replace(of_set, dataset=part)
        for one in (beir_sets.ZERO_SHOT if name is None else (name,))
        for part in beir_sets.parts(one)
    ]

  @property
  def label(self) -> str:
    if self.folder is None:
      return super().label
    path = pathlib.Path(self.folder).expanduser().resolve()
    return f'beir-folder-{path.name}'

  @property
  def self_hits(self) -> bool:
    return self._set.self_hits

  @property
  def evaluated(self) -> str:
    return self._set.evaluated

  def check_split(self, split: str) -> None:
    if self.dataset is not None and not self.prefix and not self.files:
      published = (*self._set.splits, CORPUS)
      # A file of one's own may make another split of a set.
      if split not in published and split not in self.splits():
        raise self.no_split(split, published)
    super().check_split(split)

  def name(self) -> str:
    return self.folder or f'beir/{self.dataset}'

  def allowance(self) -> tuple[float, str]:
    return self._set.tolerance, self._set.note

  def published(self, split: str) -> Mapping[str, int]:
    return self._set.published(split)

  def source(self) -> Source:
    if (self.dataset is None) == (self.folder is None):
      raise UserError(
          'beir reads a set of the benchmark, --gin.BEIR_SET=scifact (dataset),'
          ' or a folder in its layout, --gin.BEIR_FOLDER=... (folder). Expected'
          f' one of the two, found {self.dataset!r} and {self.folder!r}. Data'
          f' sets: {", ".join(beir_sets.NAMES)}.'
      )
    if self.dataset is None:
      folder = pathlib.Path(self.folder or '').expanduser()
      hint = (
          'BEIR_FOLDER (folder) names it: give a folder with corpus.jsonl,'
          ' queries.jsonl and qrels/*.tsv.'
      )
    else:
      hint = beir_sets.hint(self.dataset)
      root = self._root()
      if root is None:
        raise SourceUnavailable(
            f'{self.name()}: no folder is given: set --gin.DATA_ROOT, below'
            f' which beir has a folder of its own. {hint}'
        )
      folder = root / self.dataset
      if not folder.is_dir():
        raise SourceUnavailable(
            f'{self.name()}: there is no folder {folder}. {hint}'
        )
    return BeirFolder(
        folder, self.name(), hint, self.files or {}, self.strict,
        self._set.titles, self.prefix,
    )

  @property
  def _set(self) -> beir_sets.BeirSet:
    if self.dataset is None:
      return beir_sets.OWN_FOLDER
    return beir_sets.one(self.dataset)


def _identifier(row: Mapping[str, object]) -> str:
  name = rows.identifier(row, '_id')
  if not name:
    reason = "'_id' is missing or empty"
    raise BadRow(reason, f'{reason}; {rows.it_has(row)}')
  return name
