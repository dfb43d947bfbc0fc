"""The sets of the BEIR benchmark, or folders like them."""

from collections.abc import Mapping
import dataclasses
import pathlib

from dualenc_jax.data.dataset import Dataset
from dualenc_jax.data.readers import beir_sets
from dualenc_jax.data.readers.judged_texts import CORPUS, JudgedTexts, Layout
from dualenc_jax.utils.errors import UserError


@dataclasses.dataclass(frozen=True)
class Beir(JudgedTexts):
  """A data set of the BEIR benchmark, or one's own in its layout.

  corpus.jsonl has objects {_id, title, text}, the title optional, and
  queries.jsonl objects {_id, text}; qrels/train.tsv, qrels/dev.tsv (the split
  validation) and qrels/test.tsv are those that exist, of any form that
  `qrels.read` knows. All files may be .gz. A passage is (title + ' ' +
  text).strip(), as in BEIR's own models.

  A set of the benchmark is in <root>/<dataset>/; its counts are compared with
  the published ones.

  Attributes:
    dataset: a key of `beir_sets.SETS`.
    folder: a folder in BEIR's layout in place of a set of the benchmark; no
      counts are compared.
    prefix: 'qgen' reads qgen-queries.jsonl and qgen-qrels/, as made by BEIR's
      query generation and by GPL.
  """

  dataset: str | None = None
  folder: str | None = None
  prefix: str = ''

  task_name = 'beir'

  def __post_init__(self):
    super().__post_init__()
    if self.dataset is not None:
      beir_sets.one(self.dataset)

  def select_datasets(self, name: str | None = None) -> list[Dataset]:
    """The parts of the 18 sets of the paper's average, or of one set.

    A folder of the user's own in their place is itself.
    """
    if name is None and self.folder is not None:
      return [self]
    of_set = self
    if self.folder is not None:
      # These options may be those of a model's saved config.
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
        raise self.missing_split(split, published)
    super().check_split(split)

  def name(self) -> str:
    return self.folder or f'beir/{self.dataset}'

  def allowance(self) -> tuple[float, str]:
    return self._set.tolerance, self._set.note

  def published(self, split: str) -> Mapping[str, int]:
    counts = self._set.published(split)
    if self.prefix:  # Queries and judgements are the user's own.
      counts = {k: n for k, n in counts.items() if k == 'passages'}
    return counts

  @property
  def titles(self) -> bool:
    return self._set.titles

  @property
  def layout(self) -> Layout:
    prefix = f'{self.prefix}-' if self.prefix else ''
    names = {
        CORPUS: 'corpus.jsonl',
        'queries': f'{prefix}queries.jsonl',
        'train': f'{prefix}qrels/train.tsv',
        'validation': f'{prefix}qrels/dev.tsv',
        'test': f'{prefix}qrels/test.tsv',
    }
    paths = {key: (name, f'{name}.gz') for key, name in names.items()}
    return Layout(paths, CORPUS, 'queries', '{}')

  def folder_and_hint(self) -> tuple[pathlib.Path | None, str]:
    if (self.dataset is None) == (self.folder is None):
      raise UserError(
          'beir reads a set of the benchmark, --gin.BEIR_SET=scifact (dataset),'
          ' or a folder in its layout, --gin.BEIR_FOLDER=... (folder). Expected'
          f' one of the two, found {self.dataset!r} and {self.folder!r}.'
      )
    if self.dataset is None:
      return pathlib.Path(self.folder or '').expanduser(), (
          'Give a folder with corpus.jsonl, queries.jsonl and qrels/*.tsv.'
      )
    root = self._root()
    return root and root / self.dataset, beir_sets.hint(self.dataset)

  @property
  def _set(self) -> beir_sets.BeirSet:
    if self.dataset is None:
      return beir_sets.OWN_FOLDER
    return beir_sets.one(self.dataset)
