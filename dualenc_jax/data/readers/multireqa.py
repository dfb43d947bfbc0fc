"""Question -> sentence that answers it, from MRQA and MultiReQA."""

import collections
from collections.abc import Iterator, Mapping
import dataclasses
import pathlib
from typing import Any, NamedTuple

from dualenc_jax.data.dataset import Dataset, example
from dualenc_jax.data.readers import files, multireqa_join, rows
from dualenc_jax.data.readers.files import FilesDataset
from dualenc_jax.data.readers.multireqa_join import Candidates
from dualenc_jax.utils.errors import did_you_mean, UserError

_ANSWERED = 'questions with a positive'
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


class QASet(NamedTuple):
  """A set of MultiReQA.

  Attributes:
    name: MultiReQA's, of its folder and in front of its candidate ids.
    mrqa_name: name of MRQA's file, without its ending.
    train: None for a set that is only tested on.
    evaluation: the development set of MRQA, MultiReQA's test set.
  """

  name: str
  mrqa_name: str
  train: Published | None
  evaluation: Published

  def published(self, split: str) -> Published:
    """Sizes of the files of 'train' or of any other split."""
    return self.train if split == 'train' and self.train else self.evaluation

  def files(self, split: str) -> list[tuple[list[str], str]]:
    """MRQA's file and MultiReQA's of a split: paths, and where to get it.

    Paths are below the task's folder, the preferred one first: MRQA's file is
    called as in its release, or as its download script calls it, MultiReQA's
    may be in a clone of it.
    """
    folder = 'train' if split == 'train' else 'dev'
    folders = [folder] if self.train else [folder, 'test']
    names = dict.fromkeys([self.mrqa_name, self.name])
    paths = [f'mrqa/{f}/{n}.jsonl.gz' for f in folders for n in names]
    url = f'{_MRQA}/{folder}/{self.mrqa_name}.jsonl.gz'
    path = f'{folders[-1]}/{self.name}/candidates.json.gz'
    return [
        (paths, f'Get it at {_URLS.get(self.name, url)}.'),
        ([f'multireqa/{path}', f'MultiReQA/data/{path}'],
         f'Get it at {_CANDIDATES}/{path}.'),
    ]


def _read_sets() -> dict[str, QASet]:
  """The sets of multireqa.tsv, which has a line a split.

  Questions are those of MRQA's README, but 5,901 of HotpotQA's development set,
  which its mended file has (5,904 before). Candidates are lines of the files;
  for TextbookQA MultiReQA's README has 3,701, but the file repeats the contexts
  that several questions share. Joined: Guo et al. 2021 (MultiReQA). In
  NaturalQuestions' evaluation alone a sentence that stands in several contexts
  is a candidate of one of them: of 12,836 contexts 7,157 have any.
  """
  text = pathlib.Path(__file__).with_suffix('.tsv').read_text('utf-8')
  sizes: dict[tuple[str, str], dict[str, Published]] = {}
  for line in text.splitlines()[1:]:
    name, split, mrqa, *cells = line.split('\t')
    numbers: list[Any] = [int(cell) if cell else None for cell in cells]
    sizes.setdefault((name, mrqa), {})[split] = Published(*numbers)
  return {
      name: QASet(name, mrqa, of.get('train'), of['evaluation'])
      for (name, mrqa), of in sizes.items()
  }


SETS: Mapping[str, QASet] = _read_sets()


@dataclasses.dataclass(frozen=True)
class MultiReQA(FilesDataset):
  """A set of MultiReQA (Guo et al. 2021), joined from its files and MRQA's.

  A passage is a sentence of one of MRQA's contexts, as MultiReQA has cut it
  out. Positives of a question are the sentences of its own context, found by
  the ids, that have the whole of one of its detected answers; a question
  without one is left out. train and validation (MRQA's development set, the
  benchmark's test set) or, of sets that are only tested on, test are pairs of
  question and positive. Both of these are ranked over corpus, all sentences of
  their file.

  When a split has been read to its end its counts are logged beside the
  published ones.

  Attributes:
    dataset: NaturalQuestions, SQuAD, TriviaQA, SearchQA, HotpotQA; to test on,
      BioASQ, RelationExtraction, TextbookQA, DuoRC.
    root: folder of the files; None for `multireqa` in data_root.
    data_root: folder of the benchmarks' folders.
    tolerance: by what share of the published one a count may differ. How the
      published pairs were counted is not published, thus not 0 by default.
    strict: whether the first bad row, and the first candidate that does not
      match its context, is an error; else they are left out and the log says
      how many, by reason.
  """

  task_name = 'multireqa'

  dataset: str
  root: str | None = None
  data_root: str | None = None
  tolerance: float = 0.02
  strict: bool = True

  def __post_init__(self):
    if self.dataset not in SETS:
      raise UserError(
          f'MultiReQA has no set {self.dataset!r}.'
          f'{did_you_mean(str(self.dataset), SETS)} Sets: {", ".join(SETS)}.'
      )

  def select_datasets(self, name: str | None = None) -> list[Dataset]:
    names = SETS if name is None else (name,)
    return [dataclasses.replace(self, dataset=name) for name in names]

  @property
  def evaluated(self) -> str:
    return 'test' if self._set.train is None else 'validation'

  def splits(self) -> tuple[str, ...]:
    if self._set.train is None:
      return 'test', 'corpus'
    return 'train', 'validation', 'corpus'

  def corpus_split(self, split: str) -> str | None:
    return None if split in ('train', 'corpus') else 'corpus'

  def paths(self, split: str) -> tuple[pathlib.Path, pathlib.Path]:
    """MRQA's and MultiReQA's file of a split."""
    if split not in self.splits():
      raise self.missing_split(split, self.splits())
    root = files.task_folder('multireqa', self.root, self.data_root)
    mrqa, candidates = (
        files.find(root, names, 'multireqa', hint)
        for names, hint in self._set.files(split)
    )
    return mrqa, candidates

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    """Yields pairs, or the sentences of 'corpus', in the order of MRQA's file.

    Files that are bad, do not match or have other counts than the published
    ones are a UserError.
    """
    mrqa_path, candidate_path = self.paths(split)
    counts = collections.Counter({'pairs': 0, _ANSWERED: 0})
    candidates = Candidates(candidate_path, self.dataset, self.strict)
    joined = multireqa_join.join(mrqa_path, candidates, self.strict)
    for line, context, found in joined:
      counts['questions'] += len(context.questions)
      counts['candidates'] += len(found)
      location = f'{mrqa_path}:{line}'
      if split == 'corpus':
        for candidate in found:
          yield example(
              passage=context.text[candidate.start : candidate.end],
              passage_id=candidate.id, location=location,
          )
        continue
      for question in context.questions:
        positives = multireqa_join.positives(question, found)
        counts[_ANSWERED] += bool(positives)
        counts['pairs'] += len(positives)
        for candidate in positives:
          yield example(
              question.text,
              context.text[candidate.start : candidate.end],
              query_id=question.id, passage_id=candidate.id,
              location=location,
          )
    self._check_counts(split, counts)

  def _check_counts(self, split: str, counts: collections.Counter) -> None:
    sizes = self._set.published(split)
    published = {'questions': sizes.questions, 'candidates': sizes.candidates}
    found: dict[str, int] = counts
    if split == 'corpus':
      found = {name: counts[name] for name in published}
    elif sizes.joined is not None:
      published['pairs' if split == 'train' else _ANSWERED] = sizes.joined
    rows.compare_counts(
        f'multireqa, {self.dataset}, {split}', found, published, self.tolerance,
        '--gin.MULTIREQA_TOLERANCE=1.0 (tolerance)',
    )

  @property
  def _set(self) -> QASet:
    return SETS[self.dataset]
