"""The sets of MultiReQA: their files, where to get them, published sizes."""

import dataclasses
import pathlib
from typing import Any, NamedTuple

_MRQA = 'https://s3.us-east-2.amazonaws.com/mrqa/release/v2'
_CANDIDATES = (
    'https://github.com/google-research-datasets/MultiReQA/raw/master/data'
)
_URLS = {'BioASQ': 'http://participants-area.bioasq.org/MRQA2019/'}


class Published(NamedTuple):
  """Sizes of the two files that a split is joined from, and of the join.

  `joined` counts questions with an answer in a candidate, of train their pairs
  with such candidates; None where no figure is known.
  """

  questions: int
  candidates: int
  joined: int | None
  mrqa_bytes: int
  candidate_bytes: int


@dataclasses.dataclass(frozen=True)
class QASet:
  """A set of MultiReQA.

  Attributes:
    name: MultiReQA's, of its folder and in front of its candidate ids.
    mrqa_name: name of MRQA's file, without its ending.
    train: None for a set that is only tested on.
    evaluation: the development set of MRQA, MultiReQA's test set.
    mrqa_url: URL of its evaluation file, where that is not with MRQA's others.
  """

  name: str
  mrqa_name: str
  train: Published | None
  evaluation: Published
  mrqa_url: str | None = None

  def published(self, split: str) -> Published:
    """Sizes of the files of 'train' or of any other split."""
    return self.train if split == 'train' and self.train else self.evaluation

  def files(self, split: str) -> list[tuple[list[str], str]]:
    """MRQA's file and MultiReQA's of a split: paths, and where to get it.

    Paths are below the task's folder, the preferred one first: MRQA's file is
    called as in its release, or as its download script calls it, MultiReQA's
    may be in a clone of it.
    """
    sizes = self.published(split)
    folder = 'train' if split == 'train' else 'dev'
    names = dict.fromkeys([self.mrqa_name, self.name])
    folders = [folder] if self.train else [folder, 'test']
    paths = [f'mrqa/{f}/{n}.jsonl.gz' for f in folders for n in names]
    url = self.mrqa_url or f'{_MRQA}/{folder}/{self.mrqa_name}.jsonl.gz'
    path = f'{folders[-1]}/{self.name}/candidates.json.gz'
    return [
        (paths, f'Get it at {url} ({sizes.mrqa_bytes:,} bytes,'
                f' {sizes.questions:,} questions).'),
        ([f'multireqa/{path}', f'MultiReQA/data/{path}'],
         f'Get it at {_CANDIDATES}/{path} ({sizes.candidate_bytes:,} bytes,'
         f' {sizes.candidates:,} sentences).'),
    ]


# Questions: MRQA's README, but 5,901 of HotpotQA's development set, which its
# mended file has (5,904 before). Candidates: lines of the files; for TextbookQA
# MultiReQA's README has 3,701, but the file repeats the contexts that several
# questions share. Joined: Guo et al. 2021 (MultiReQA).
# In NaturalQuestions' evaluation alone a sentence that stands in several
# contexts is a candidate of one of them: of 12,836 contexts 7,157 have any.
def _read() -> dict[str, QASet]:
  """The sets of multireqa_sets.tsv, which has a line a split."""
  text = pathlib.Path(__file__).with_suffix('.tsv').read_text('utf-8')
  sizes: dict[tuple[str, str], dict[str, Published]] = {}
  for line in text.splitlines()[1:]:
    name, split, mrqa, *cells = line.split('\t')
    numbers: list[Any] = [int(cell) if cell else None for cell in cells]
    sizes.setdefault((name, mrqa), {})[split] = Published(*numbers)
  return {
      name: QASet(
          name, mrqa, of.get('train'), of['evaluation'], _URLS.get(name)
      )
      for (name, mrqa), of in sizes.items()
  }


SETS = _read()
