"""Question -> sentence that answers it, from MRQA and MultiReQA."""

import array
from collections.abc import Iterator, Mapping
import dataclasses
import logging
import pathlib
import re
import sys
from typing import Any, NamedTuple

from dualenc_jax.data.dataset import Dataset, example
from dualenc_jax.data.readers import files, rows
from dualenc_jax.data.readers.files import FilesDataset
from dualenc_jax.data.readers.rows import BadRow
from dualenc_jax.utils.errors import did_you_mean, UserError

_MRQA = 'https://s3.us-east-2.amazonaws.com/mrqa/release/v2'
_CANDIDATES = (
    'https://github.com/google-research-datasets/MultiReQA/raw/master/data'
)
_URLS = {'BioASQ': 'http://participants-area.bioasq.org/MRQA2019/'}


class QASet(NamedTuple):
  """A set of MultiReQA.

  Attributes:
    name: MultiReQA's, of its folder and in front of its candidate ids.
    mrqa_name: name of MRQA's file, without its ending.
    train_pairs: pairs of train by Guo et al. 2021; 0 for a set that is only
      tested on.
  """

  name: str
  mrqa_name: str
  train_pairs: int = 0

  def files(self, split: str) -> list[tuple[list[str], str]]:
    """MRQA's file and MultiReQA's of a split: paths, and where to get it.

    MRQA's is called as in its release, or as its download script calls it.
    """
    folder = 'train' if split == 'train' else 'dev'
    names = dict.fromkeys([self.mrqa_name, self.name])
    url = f'{_MRQA}/{folder}/{self.mrqa_name}.jsonl.gz'
    own = folder if self.train_pairs else 'test'
    path = f'{own}/{self.name}/candidates.json.gz'
    return [
        ([f'mrqa/{folder}/{name}.jsonl.gz' for name in names],
         f'Get it at {_URLS.get(self.name, url)}.'),
        ([f'multireqa/{path}'], f'Get it at {_CANDIDATES}/{path}.'),
    ]


SETS: Mapping[str, QASet] = {
    qa_set.name: qa_set
    for qa_set in (
        QASet('NaturalQuestions', 'NaturalQuestionsShort', 106_521),
        QASet('SQuAD', 'SQuAD', 87_133),
        QASet('TriviaQA', 'TriviaQA-web', 335_659),
        QASet('SearchQA', 'SearchQA', 629_160),
        QASet('HotpotQA', 'HotpotQA', 104_973),
        QASet('BioASQ', 'BioASQ'),
        QASet('RelationExtraction', 'RelationExtraction'),
        QASet('TextbookQA', 'TextbookQA'),
        QASet('DuoRC', 'DuoRC.ParaphraseRC'),
    )
}


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

  Attributes:
    dataset: NaturalQuestions, SQuAD, TriviaQA, SearchQA, HotpotQA; to test on,
      BioASQ, RelationExtraction, TextbookQA, DuoRC.
    root: folder of the files; None for `multireqa` in data_root.
    data_root: folder of the benchmarks' folders.
    strict: whether the first bad row, and the first candidate that does not
      match its context, is an error; else they are left out and the log says
      how many, by reason.
  """

  task_name = 'multireqa'

  dataset: str
  root: str | None = None
  data_root: str | None = None
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
    return 'validation' if SETS[self.dataset].train_pairs else 'test'

  def splits(self) -> tuple[str, ...]:
    if SETS[self.dataset].train_pairs:
      return 'train', 'validation', 'corpus'
    return 'test', 'corpus'

  def corpus_split(self, split: str) -> str | None:
    return None if split in ('train', 'corpus') else 'corpus'

  def paths(self, split: str) -> tuple[pathlib.Path, pathlib.Path]:
    """MRQA's and MultiReQA's file of a split."""
    if split not in self.splits():
      raise self.missing_split(split, self.splits())
    root = files.task_folder('multireqa', self.root, self.data_root)
    mrqa, candidates = (
        files.find(root, names, 'multireqa', hint)
        for names, hint in SETS[self.dataset].files(split)
    )
    return mrqa, candidates

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    """Yields pairs, or the sentences of 'corpus', in the order of MRQA's file.

    Files that are bad or do not match are a UserError.
    """
    path, candidates = self.paths(split)
    questions = answered = 0
    for line, context, found in join(
        path, candidates, self.dataset, self.strict
    ):
      location = f'{path}:{line}'
      if split == 'corpus':
        for candidate in found:
          yield example(
              passage=context.text[candidate.start : candidate.end],
              passage_id=candidate.id, location=location,
          )
        continue
      for question in context.questions:
        # An answer that reaches from one sentence into the next is in neither.
        positives = [
            c for c in found
            if any(c.start <= start and end <= c.end
                   for start, end in question.spans)
        ]
        questions += 1
        answered += bool(positives)
        for candidate in positives:
          yield example(
              question.text,
              context.text[candidate.start : candidate.end],
              query_id=question.id, passage_id=candidate.id,
              location=location,
          )
    if questions:
      logging.getLogger(__name__).info(
          '%s: %d of %d questions have a positive.', path, answered, questions
      )


class Question(NamedTuple):
  """A question of MRQA; spans are [start, end) of its answers, in characters
  of the context."""

  id: str
  text: str
  spans: tuple[tuple[int, int], ...]


class Context(NamedTuple):
  """A passage with MRQA's own marks [DOC], [TLE], [PAR] and [SEP] in it."""

  text: str
  questions: tuple[Question, ...]


class Candidate(NamedTuple):
  """The sentence [start, end) of a context.

  Its id is '<set>_<question id>/<question id>/..._<number>'.
  """

  id: str
  start: int
  end: int


def contexts(
    path: pathlib.Path, strict: bool = True
) -> Iterator[tuple[int, Context]]:
  """Yields (line number, context) of MRQA's file, not of its header."""
  for line, context in rows.parse_lines(path, _parse_context, strict):
    if context is not None:
      yield line, context


def join(
    path: pathlib.Path, candidates: pathlib.Path, name: str, strict: bool = True
) -> Iterator[tuple[int, Context, list[Candidate]]]:
  """Yields (line, context, its candidates) of MRQA's file, read once.

  A context may have no candidates. A candidate belongs to the context that has
  all questions of its id, and lies within it.

  Args:
    path: MRQA's file.
    candidates: MultiReQA's file of the same set and split.
    name: the set.
    strict: whether the first bad line, and the first candidate that belongs
      to no context, is an error; else they are left out and the log says how
      many, by reason.
  """
  faults = rows.Faults(strict, 'candidates')

  def mismatch(reason: str, line: int, detail: str, count: int) -> None:
    faults.add(
        reason, f'{candidates}:{line}',
        f'the candidate does not match {path}: {detail}. Expected files of the'
        " same set and split, MRQA's of its release v2", count,
    )

  sentences = _read_candidates(candidates, name, strict)
  for line, context in contexts(path, strict):
    names = {question.id for question in context.questions}
    found: list[Candidate] = []
    for first in [q.id for q in context.questions if q.id in sentences]:
      ids, labels, offsets = sentences[first]
      if not names.issuperset(ids.split('/')):
        continue
      del sentences[first]
      for label, start, end, at in zip(labels, *[iter(offsets)] * 3):
        if end > len(context.text):
          where = f'it ends after the context in line {line}'
          mismatch('beyond the end of the context', at, where, 1)
        else:
          found.append(Candidate(f'{name}_{ids}/{label}', start, end))
    yield line, context, found
  for first, (_, labels, offsets) in sentences.items():
    where = f'no context has {first!r} and the other questions of its id'
    mismatch('the context is missing', offsets[2], where, len(labels))
  faults.warn(candidates)


# Ids of the questions of a context, then of each candidate of it the label and,
# one after the other, start, end and line.
_Sentences = tuple[str, list[str], array.array]


def _read_candidates(
    path: pathlib.Path, name: str, strict: bool
) -> dict[str, _Sentences]:
  """Candidates by the first question of their context: 25 bytes each."""
  pattern = re.compile(
      rf'{re.escape(name)}_([^/]+(?:/[^/]+)*)/(_[0-9]+(?:_[0-9]+)*)'
  )
  found: dict[str, _Sentences] = {}

  def parse(line: bytes) -> tuple[_Sentences, str, int, int]:
    row = rows.json_object(line)
    match = pattern.fullmatch(rows.text(row, 'candidate_id'))
    if match is None:
      form = f"'{name}_<question id>/<question id>/..._<number>'"
      raise BadRow(f"'candidate_id' is not of the form {form}")
    start, end = row.get('response_start'), row.get('response_end')
    if not (type(start) is type(end) is int and 0 <= start < end < 2**31):
      raise BadRow("'response_start' and '..._end' are no sentence's offsets")
    ids, label = match.groups()
    first = ids.partition('/')[0]
    context = found.setdefault(first, (ids, [], array.array('i')))
    if context[0] != ids:
      raise BadRow('the first question of the id is of another context')
    return context, label, start, end

  for line, (context, label, start, end) in rows.parse_lines(
      path, parse, strict
  ):
    context[1].append(sys.intern(label))
    context[2].extend((start, end, line))
  return found


def _parse_context(line: bytes) -> Context | None:
  row = rows.json_object(line)
  if 'header' in row and 'context' not in row:
    return None
  text = rows.text(row, 'context')
  questions = (_question(each, len(text)) for each in _objects(row, 'qas'))
  return Context(text, tuple(questions))


def _question(row: dict[str, Any], length: int) -> Question:
  # An 'id' is the source's own where there is a 'qid', too.
  name = rows.identifier(row, 'qid') or rows.identifier(row, 'id')
  if not name:
    raise BadRow("a question has no 'qid'")
  spans = {
      _span(span, length): None
      for answer in _objects(row, 'detected_answers')
      for span in _list(answer, 'char_spans')
  }
  return Question(name, rows.text(row, 'question'), tuple(spans))


def _span(span: Any, length: int) -> tuple[int, int]:
  """[start, end) of MRQA's span, whose end is that of the last character."""
  match span:
    case [int(start), int(end)] if 0 <= start <= end < length:
      return start, end + 1
  raise BadRow(
      "an answer's 'char_spans' are not [first, last] characters of the context"
  )


def _objects(row: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
  values = _list(row, name)
  if not all(isinstance(value, dict) for value in values):
    raise BadRow(f'{name!r} is not a list of objects')
  return values


def _list(row: Mapping[str, Any], name: str) -> list[Any]:
  if not isinstance(row.get(name), list):
    raise BadRow(f'{name!r} is missing or not a list')
  return row[name]
