"""MRQA's contexts with MultiReQA's candidates: which sentences they have."""

import array
from collections.abc import Iterator, Mapping
import pathlib
import re
import sys
from typing import Any, NamedTuple

from dualenc_jax.data.readers import rows
from dualenc_jax.data.readers.rows import BadRow
from dualenc_jax.utils import untrusted


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
    """Reads a plain or .gz file of the set `name`; strict as of rows.parsed."""
    self.path = path
    self._name = name
    self._pattern = re.compile(
        rf'{re.escape(name)}_([^/]+(?:/[^/]+)*)/(_[0-9]+(?:_[0-9]+)*)'
    )
    # All questions by the first one, then labels, and (start, end, line) one
    # after the other.
    self._contexts: dict[str, tuple[str, list[str], array.array]] = {}
    self._count = 0
    for line, ((_, labels, offsets), label, start, end) in rows.parsed(
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

  def of(self, first: str) -> list[Candidate]:
    """The candidates of a context, in the order of the file."""
    questions, labels, offsets = self._contexts[first]
    prefix = f'{self._name}_{questions}/'
    places = zip(labels, *[iter(offsets)] * 3)
    return [Candidate(prefix + label, s, e, n) for label, s, e, n in places]

  def _parse(self, line: bytes) -> tuple[Any, str, int, int]:
    """What the context has so far, label, start and end."""
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
  """Yields (line number, context) of MRQA's file, one context at a time.

  A line with nothing but a header is passed over; strict as of `rows.parsed`.
  """
  for line, context in rows.parsed(path, _parse_context, strict):
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
      of_context = candidates.of(first)
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
      mismatch('the context is missing', where, *candidates.of(first))
  faults.warn(candidates.path, len(candidates), f' that do not match {path}')


def positives(
    question: Question, candidates: list[Candidate]
) -> list[Candidate]:
  """The candidates that have the whole of one of the question's answers.

  An answer that reaches from one sentence into the next is in neither.
  """
  return [
      c for c in candidates
      if any(c.start <= start and end <= c.end for start, end in question.spans)
  ]


def _parse_context(line: bytes) -> Context | None:
  row = rows.json_object(line)
  if 'header' in row and 'context' not in row:
    return None
  text = rows.text(row, 'context')
  questions = (_question(each, len(text)) for each in _objects(row, 'qas'))
  return Context(text, tuple(questions))


def _question(row: dict[str, Any], length: int) -> Question:
  # What is called 'id' is the source's own where there is a 'qid', too.
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
