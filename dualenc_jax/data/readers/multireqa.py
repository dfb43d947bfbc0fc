"""Question -> sentence that answers it, from MRQA and MultiReQA."""

import array
import collections
from collections.abc import Iterator, Mapping
import dataclasses
import pathlib
import re
import sys
from typing import Any, NamedTuple

from dualenc_jax.data.dataset import Dataset, example
from dualenc_jax.data.readers import files, rows
from dualenc_jax.data.readers.files import FilesDataset
from dualenc_jax.data.readers.rows import BadRow
from dualenc_jax.utils import untrusted
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
    joined = join(mrqa_path, candidates, self.strict)
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
        # An answer that reaches from one sentence into the next is in neither.
        positives = [
            c for c in found
            if any(c.start <= start and end <= c.end
                   for start, end in question.spans)
        ]
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

  Its id is '<set>_<question id>/<question id>/..._<number>'; `line` is of the
  file of candidates.
  """

  id: str
  start: int
  end: int
  line: int


class Candidates:
  """Candidates by context; about 25 bytes a sentence and 500 a context.

  A context is known by the first question that the ids of its candidates name.
  """

  def __init__(self, path: pathlib.Path, name: str, strict: bool = True):
    """Reads a file of the set `name`; `strict` is as of `rows.parse_lines`."""
    self.path = path
    self._name = name
    self._pattern = re.compile(
        rf'{re.escape(name)}_([^/]+(?:/[^/]+)*)/(_[0-9]+(?:_[0-9]+)*)'
    )
    # All questions by the first one, then labels, and (start, end, line) one
    # after the other.
    self._contexts: dict[str, tuple[str, list[str], array.array]] = {}
    self._count = 0
    for line, ((_, labels, offsets), label, start, end) in rows.parse_lines(
        path, self._parse, strict
    ):
      labels.append(sys.intern(label))
      offsets.extend((start, end, line))
      self._count += 1

  def __len__(self) -> int:
    return self._count

  def __iter__(self) -> Iterator[str]:
    """The first questions of the contexts."""
    return iter(self._contexts)

  def __contains__(self, question: str) -> bool:
    return question in self._contexts

  def questions(self, first: str) -> list[str]:
    """Ids of all questions of a context, in the order of its ids."""
    return self._contexts[first][0].split('/')

  def in_context(self, first: str) -> list[Candidate]:
    """The candidates of a context, in the order of the file."""
    questions, labels, offsets = self._contexts[first]
    prefix = f'{self._name}_{questions}/'
    places = zip(labels, *[iter(offsets)] * 3)
    return [Candidate(prefix + label, s, e, n) for label, s, e, n in places]

  def _parse(self, line: bytes) -> tuple[Any, str, int, int]:
    """Sentences of the context so far: label, start and end."""
    row = rows.json_object(line)
    match = self._pattern.fullmatch(rows.text(row, 'candidate_id'))
    if match is None:
      form = f"'{self._name}_<question id>/<question id>/..._<number>'"
      raise BadRow(f"'candidate_id' is not of the form {form}")
    start, end = row.get('response_start'), row.get('response_end')
    if not (type(start) is type(end) is int and 0 <= start < end < 2**31):
      raise BadRow("'response_start' and '..._end' are no sentence's offsets")
    questions, label = match.groups()
    first = questions.partition('/')[0]
    context = self._contexts.get(first)
    if context is None:
      context = self._contexts[first] = questions, [], array.array('i')
    elif context[0] != questions:
      raise BadRow('the first question of the id is of another context')
    return context, label, start, end


def contexts(
    path: pathlib.Path, strict: bool = True
) -> Iterator[tuple[int, Context]]:
  """Yields (line number, context) of MRQA's file, not of its header."""
  for line, context in rows.parse_lines(path, _parse_context, strict):
    if context is not None:
      yield line, context


def join(
    path: pathlib.Path, candidates: Candidates, strict: bool = True
) -> Iterator[tuple[int, Context, list[Candidate]]]:
  """Yields (line, context, its candidates) of MRQA's file, read once.

  A context may have no candidates. A candidate belongs to the context that has
  all questions of its id, once in the file, and lies within it.

  Args:
    path: MRQA's file.
    candidates: of the same set and split.
    strict: whether the first bad line, and the first candidate that belongs
      to no context, is an error; else they are left out and the log says how
      many, by reason.
  """
  faults = rows.Faults(strict, 'candidates')

  def mismatch(reason: str, detail: str, *wrong: Candidate) -> None:
    for candidate in wrong:
      faults.add(
          reason, f'{candidates.path}:{candidate.line}',
          # The ids of contexts of 30 questions fill a screen.
          f'candidate {untrusted.quote(candidate.id)} does not match {path}:'
          f" {detail}. Expected files of the same set and split, MRQA's of its"
          ' release v2',
      )

  lines: dict[str, int] = {}
  for line, context in contexts(path, strict):
    names = {question.id for question in context.questions}
    found: dict[str, Candidate] = {}
    for first in [q.id for q in context.questions if q.id in candidates]:
      of_context = candidates.in_context(first)
      missing = set(candidates.questions(first)) - names
      if first in lines:
        where = f'question {first!r} is in lines {lines[first]} and {line}'
        mismatch('the context occurs twice', where, *of_context)
        continue
      lines[first] = line
      if missing:
        where = f'line {line} has {first!r}, but no question {min(missing)!r}'
        mismatch('the context has other questions', where, *of_context)
        continue
      for candidate in of_context:
        if candidate.end > len(context.text):
          where = f'it ends after the context in line {line}'
          mismatch('beyond the end of the context', where, candidate)
        elif before := found.get(candidate.id):
          where = f'its id is in line {before.line}, too'
          mismatch('the candidate occurs twice', where, candidate)
        else:
          found[candidate.id] = candidate
    yield line, context, list(found.values())
  for first in candidates:
    if first not in lines:
      where = f'there is no question {first!r}'
      mismatch('the context is missing', where, *candidates.in_context(first))
  faults.warn(candidates.path, len(candidates), f' that do not match {path}')


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
