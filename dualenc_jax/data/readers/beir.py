"""The sets of the BEIR benchmark, or folders like them.

Names are those of the README of github.com/beir-cellar/beir.
"""

from collections.abc import Mapping
import dataclasses
import pathlib

from dualenc_jax.data.dataset import Dataset
from dualenc_jax.data.readers.judged_texts import (
  CORPUS,
  JudgedTexts,
  QRELS,
  QUERIES,
)
from dualenc_jax.utils.errors import did_you_mean, UserError

_URL = 'https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets'
# Each data set has a corpus of its own, and figures of cqadupstack are means.
CQADUPSTACK_PARTS = tuple(f'cqadupstack/{part}' for part in (
    'android', 'english', 'gaming', 'gis', 'mathematica', 'physics',
    'programmers', 'stats', 'tex', 'unix', 'webmasters', 'wordpress',
))
# Megabytes of the zip file of each set; 0 if it may not be passed on.
SETS: Mapping[str, int] = {
    'msmarco': 1082, 'trec-covid': 74, 'nfcorpus': 2, 'bioasq': 0, 'nq': 498,
    'hotpotqa': 654, 'fiqa': 18, 'signal1m': 0, 'trec-news': 0, 'robust04': 0,
    'arguana': 4, 'webis-touche2020': 227, 'quora': 16, 'dbpedia-entity': 639,
    'scidocs': 142, 'fever': 1237, 'climate-fever': 1229, 'scifact': 3,
    **dict.fromkeys(CQADUPSTACK_PARTS, 5344),
}
NAMES = tuple(sorted({*SETS, 'cqadupstack'} - {*CQADUPSTACK_PARTS}))
# 50 queries each, and a part of the corpus: zeta-alpha-ai/NanoArguAna and so on
# of the Hugging Face hub.
NANO_SETS = tuple(f'Nano{name}' for name in (
    'ArguAna', 'ClimateFEVER', 'DBPedia', 'FEVER', 'FiQA2018', 'HotpotQA',
    'MSMARCO', 'NFCorpus', 'NQ', 'QuoraRetrieval', 'SCIDOCS', 'SciFact',
    'Touche2020',
))
# Sets whose queries are passages, too, under the same ids.
_SELF_HITS = ('arguana', 'quora')


def parts(name: str) -> tuple[str, ...]:
  """The sets whose mean a set's figures are; raises UserError."""
  if name == 'cqadupstack':
    return CQADUPSTACK_PARTS
  if name == 'nanobeir':
    return NANO_SETS
  if name in SETS or name in NANO_SETS:
    return (name,)
  known = (*SETS, *NAMES, 'nanobeir', *NANO_SETS)
  raise UserError(
      f'BEIR has no data set {name!r}.{did_you_mean(name, known)} Data sets:'
      f' {", ".join(NAMES)}; nanobeir, {", ".join(NANO_SETS)}.'
  )


@dataclasses.dataclass(frozen=True)
class Beir(JudgedTexts):
  """A data set of the BEIR benchmark, or one's own in its layout.

  corpus.jsonl has objects {_id, title, text}, the title optional, and
  queries.jsonl objects {_id, text}; qrels/train.tsv, qrels/dev.tsv (the split
  validation) and qrels/test.tsv are those that exist, of any form that
  `qrels.read` knows. All files may be .gz. A passage is (title + ' ' +
  text).strip(), as in BEIR's own models.

  A set of the benchmark is in <root>/<dataset>/. Sets of NanoBEIR are Parquet,
  as on the hub, and have the splits test and corpus.

  Attributes:
    dataset: a key of `SETS`, or one of `NANO_SETS`.
    folder: a folder in BEIR's layout in place of a set of the benchmark.
    prefix: 'qgen' reads qgen-queries.jsonl and qgen-qrels/, as made by BEIR's
      query generation and by GPL.
  """

  dataset: str | None = None
  folder: str | None = None
  prefix: str = ''

  task_name = 'beir'

  def __post_init__(self):
    super().__post_init__()
    if self.dataset is not None and len(names := parts(self.dataset)) > 1:
      raise UserError(
          f'{self.dataset} is {len(names)} data sets, of which its figures are'
          f' the means. Read one at a time: {", ".join(names)}.'
      )

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
          self, folder=None, prefix='', hard_negatives=None, scores=False
      )
    # The paper's average leaves msmarco out: on it models are trained.
    names = [n for n in NAMES if n != 'msmarco'] if name is None else [name]
    return [
        dataclasses.replace(of_set, dataset=part)
        for one in names
        for part in parts(one)
    ]

  @property
  def label(self) -> str:
    if self.folder is None:
      return super().label
    path = pathlib.Path(self.folder).expanduser().resolve()
    return f'beir-folder-{path.name}'

  @property
  def self_hits(self) -> bool:
    return self.dataset in _SELF_HITS

  @property
  def evaluated(self) -> str:
    return 'validation' if self.dataset == 'msmarco' else 'test'

  def name(self) -> str:
    return self.folder or f'beir/{self.dataset}'

  def file_names(self, kind: str, split: str) -> list[str]:
    if self.dataset in NANO_SETS:
      # The hub calls the one split of each part train.
      is_there = kind != QRELS or split == 'test'
      name = 'train-00000-of-00001' if is_there else split
      return [f'{kind}/{name}.parquet']
    if kind == CORPUS:
      return ['corpus.jsonl']
    prefix = f'{self.prefix}-' if self.prefix else ''
    if kind == QUERIES:
      return [f'{prefix}queries.jsonl']
    return [f'{prefix}qrels/{"dev" if split == "validation" else split}.tsv']

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
    hint = (
        'Its texts may not be passed on:'
        ' github.com/beir-cellar/beir/tree/main/examples/dataset says where to'
        ' ask for them.'
    )
    if self.dataset in NANO_SETS:
      hint = (
          f'Get it by: hf download zeta-alpha-ai/{self.dataset} --repo-type'
          ' dataset --local-dir ...'
      )
    elif size := SETS[self.dataset]:
      file = f'{_URL}/{self.dataset.split("/")[0]}.zip'
      hint = f'Unpack {file} ({size:,} MB) there.'
    root = self._root()
    return root and root / self.dataset, hint
