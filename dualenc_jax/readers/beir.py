"""The sets of the BEIR benchmark, or folders like them."""

from collections.abc import Mapping
import dataclasses
import pathlib

from dualenc_jax.data.dataset import Dataset
from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.readers import beir_sets
from dualenc_jax.readers.beir_folder import BeirFolder
from dualenc_jax.readers.qrels_reader import CORPUS, QrelsReader, Source


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
    names = beir_sets.ZERO_SHOT if name is None else (name,)
    return [
        # The saved config of a model may name a folder, in place of a set.
        dataclasses.replace(self, dataset=part, folder=None)
        for name in names
        for part in beir_sets.parts(name)
    ]

  @property
  def label(self) -> str:
    if self.folder is None:
      return super().label
    name = pathlib.Path(self.folder).expanduser().resolve().name
    return f'{self.task_name}-folder-{name}'

  @property
  def self_hits(self) -> bool:
    return self.dataset is not None and self._set().self_hits

  @property
  def evaluated(self) -> str:
    return 'test' if self.dataset is None else self._set().evaluated

  def check_split(self, split: str) -> None:
    if self.dataset is not None and not self.prefix and not self.files:
      published = (*self._set().splits, CORPUS)
      # A file of one's own may make another split of a set.
      if split not in published and split not in self.splits():
        raise self.no_split(split, published)
    super().check_split(split)

  def name(self) -> str:
    return self.folder or f'beir/{self.dataset}'

  def note(self) -> str:
    if self.dataset is None:
      return ''
    return self._set().note

  def allowed(self) -> float:
    if self.tolerance is None and self.dataset is not None:
      return self._set().tolerance
    return super().allowed()

  def published(self, split: str) -> Mapping[str, int]:
    return {} if self.dataset is None else self._set().published(split)

  def source(self) -> Source:
    if (self.dataset is None) == (self.folder is None):
      raise UserError(
          'beir reads a set of the benchmark, --gin.BEIR_SET=scifact (dataset),'
          ' or a folder in its layout, --gin.BEIR_FOLDER=... (folder). Expected'
          f' one of the two, found {self.dataset!r} and {self.folder!r}. Data'
          f' sets: {", ".join(beir_sets.NAMES)}.'
      )
    if self.folder is not None:
      folder = pathlib.Path(self.folder).expanduser()
      return self._folder(
          folder,
          'BEIR_FOLDER (folder) names it: give a folder with corpus.jsonl,'
          ' queries.jsonl and qrels/*.tsv.',
      )
    hint = beir_sets.hint(self.dataset)
    root = self._root()
    if root is not None and (root / self.dataset).is_dir():
      return self._folder(root / self.dataset, hint)
    where = (
        f'there is no folder {root / self.dataset}'
        if root
        else 'no folder is given: set --gin.DATA_ROOT, below which beir has a'
        ' folder of its own'
    )
    raise SourceUnavailable(f'{self.name()}: {where}. {hint}')

  def _set(self) -> beir_sets.BeirSet:
    return beir_sets.one(self.dataset)

  def _folder(self, folder: pathlib.Path, hint: str) -> BeirFolder:
    return BeirFolder(
        folder=folder,
        task=self.name(),
        hint=hint,
        titles=self.dataset is None or self._set().titles,
        prefix=self.prefix,
        files=self.files or {},
        strict=self.strict,
    )
