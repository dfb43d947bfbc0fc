"""Question -> sentence that answers it, from MRQA and MultiReQA."""

import collections
from collections.abc import Iterator
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.data.dataset import Dataset, example
from dualenc_jax.data.readers import files, multireqa_join, rows
from dualenc_jax.data.readers.files import FilesDataset
from dualenc_jax.data.readers.multireqa_join import (
  Candidate,
  Candidates,
  Context,
)
from dualenc_jax.data.readers.multireqa_sets import QASet, SETS
from dualenc_jax.utils.errors import did_you_mean, expect, UserError

_ANSWERED = 'questions with a positive'


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
    context_separator: None makes the sentence alone a passage; a string joins
      the sentence, this string and the whole context.
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
  context_separator: str | None = None
  tolerance: float = 0.02
  strict: bool = True

  def __post_init__(self):
    if self.dataset not in SETS:
      raise UserError(
          f'MultiReQA has no set {self.dataset!r}.'
          f'{did_you_mean(str(self.dataset), SETS)} Sets: {", ".join(SETS)}.'
      )
    expect(
        self.tolerance >= 0, 'MultiReQA.tolerance', self.tolerance,
        '0 or more, as 0.02 for two percent',
    )
    super().__post_init__()

  def of_datasets(self, name: str | None = None) -> list[Dataset]:
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
      raise self.no_split(split, self.splits())
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
          passage = self._passage(context, candidate)
          yield example(
              passage=passage, passage_id=candidate.id, location=location
          )
        continue
      for question in context.questions:
        positives = multireqa_join.positives(question, found)
        counts[_ANSWERED] += bool(positives)
        counts['pairs'] += len(positives)
        for candidate in positives:
          yield example(
              question.text,
              self._passage(context, candidate),
              query_id=question.id, passage_id=candidate.id,
              location=location,
          )
    self._check_counts(split, counts)

  def _passage(self, context: Context, candidate: Candidate) -> str:
    sentence = context.text[candidate.start : candidate.end]
    if self.context_separator is None:
      return sentence
    return f'{sentence}{self.context_separator}{context.text}'

  def _check_counts(self, split: str, counts: collections.Counter) -> None:
    sizes = self._set.published(split)
    published = {'questions': sizes.questions, 'candidates': sizes.candidates}
    found: dict[str, int] = counts
    if split == 'corpus':
      found = {name: counts[name] for name in published}
    elif sizes.joined is not None:
      published['pairs' if split == 'train' else _ANSWERED] = sizes.joined
    mrqa_path, candidate_path = self.paths(split)
    rows.compare_counts(
        f'multireqa, {self.dataset}, {split}',
        found,
        published,
        self.tolerance,
        f'Compare {mrqa_path} and {candidate_path} with the published files, or'
        ' allow more with --gin.MULTIREQA_TOLERANCE=... (tolerance).',
    )

  @property
  def _set(self) -> QASet:
    return SETS[self.dataset]
