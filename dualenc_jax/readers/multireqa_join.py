"""MRQA's contexts with MultiReQA's candidates: which sentences they have."""

import array
from collections.abc import Iterator
import pathlib
import re
import sys
from typing import NamedTuple

import numpy as np

from dualenc_jax.readers import mrqa, rows


class Candidate(NamedTuple):
  """A sentence of a context.

  Attributes:
    id: '<set>_<question id>/<question id>/..._<number>'.
    start: first character in the context.
    end: one past the last.
    line: in the file of candidates.
  """

  id: str
  start: int
  end: int
  line: int


class Candidates:
  """Candidates by context; about 25 bytes a sentence and 300 a context.

  A context is known by its questions. It has a number, from 0 on.
  """

  def __init__(self, path: pathlib.Path, name: str, strict: bool = True):
    """Reads a file.

    Args:
      path: plain or .gz.
      name: of the set, as the ids of its candidates begin.
      strict: as of `rows.parsed`.
    """
    self.path = path
    self._name = name
    self._pattern = re.compile(
        rf'{re.escape(name)}_([^/]+(?:/[^/]+)*)/(_\d+(?:_\d+)*)'
    )
    self._questions: list[str] = []
    self._numbers: dict[str, int] = {}
    self._labels: list[str] = []
    # Not lists, which take several times the memory.
    contexts, lines = array.array('i'), array.array('i')
    starts, ends = array.array('i'), array.array('i')
    for line, (number, label, start, end) in rows.parsed(
        path, self._parse, strict
    ):
      contexts.append(number)
      lines.append(line)
      starts.append(start)
      ends.append(end)
      self._labels.append(sys.intern(label))
    contexts = np.asarray(contexts, np.int32)
    self._order = np.argsort(contexts, kind='stable').astype(np.int32)
    self._bounds = np.searchsorted(
        contexts[self._order], np.arange(len(self._questions) + 1)
    )
    self._lines, self._starts, self._ends = lines, starts, ends

  def __len__(self) -> int:
    return len(self._labels)

  @property
  def contexts(self) -> int:
    """Number of contexts."""
    return len(self._questions)

  def context(self, question: str) -> int | None:
    """Number of the context whose ids name this question first, or None."""
    return self._numbers.get(question)

  def questions(self, context: int) -> list[str]:
    """Ids of all questions of a context, in the order of its ids."""
    return self._questions[context].split('/')

  def of(self, context: int) -> list[Candidate]:
    """The candidates of a context, in the order of the file."""
    questions = self._questions[context]
    found = self._order[self._bounds[context] : self._bounds[context + 1]]
    return [
        Candidate(
            f'{self._name}_{questions}/{self._labels[row]}',
            self._starts[row],
            self._ends[row],
            self._lines[row],
        )
        for row in found.tolist()
    ]

  def _parse(self, line: bytes) -> tuple[int, str, int, int]:
    """Number of the context, label, start and end of a line."""
    row = rows.json_object(line)
    match = self._pattern.fullmatch(rows.text(row, 'candidate_id'))
    if match is None:
      raise rows.BadRow(
          "'candidate_id' is not of the form"
          f" '{self._name}_<question id>/<question id>/..._<number>'"
      )
    start, end = row.get('response_start'), row.get('response_end')
    if not (type(start) is type(end) is int and 0 <= start < end < 2**31):
      raise rows.BadRow(
          "'response_start' and 'response_end' are not offsets of a sentence"
      )
    questions, label = match.groups()
    first = questions.partition('/')[0]
    number = self._numbers.setdefault(first, len(self._questions))
    if number == len(self._questions):
      self._questions.append(questions)
    elif self._questions[number] != questions:
      raise rows.BadRow('the first question of the id is of another context')
    return number, label, start, end


def join(
    path: pathlib.Path, candidates: Candidates, strict: bool = True
) -> Iterator[tuple[int, mrqa.Context, list[Candidate]]]:
  """Yields (line, context, its candidates) of MRQA's file, read once.

  A context may have no candidates. A candidate belongs to the context that has
  all questions of its id, once in the file, and lies within it.

  Args:
    path: MRQA's file.
    candidates: of the same set and split.
    strict: whether the first bad line, and the first candidate that belongs
      to no context, is an error; else they are left out and the log says how
      many, by reason. Within `rows.collecting` they are collected.
  """
  faults = rows.Faults(strict, 'candidates')

  def mismatch(wrong: list[Candidate], reason: str, detail: str) -> None:
    for candidate in wrong:
      faults.add(
          reason,
          f'{candidates.path}:{candidate.line}',
          f'candidate {_short(candidate.id)!r} does not match {path}: {detail}.'
          " Expected files of the same set and split, MRQA's of its release v2",
      )

  lines: dict[int, int] = {}
  for line, context in mrqa.contexts(path, strict):
    names = {question.id for question in context.questions}
    end = len(context.text)
    found: dict[str, Candidate] = {}
    for question in context.questions:
      number = candidates.context(question.id)
      if number is None:
        continue
      of_context = candidates.of(number)
      if number in lines:
        mismatch(
            of_context,
            'the context is there twice',
            f'question {question.id!r} is in lines {lines[number]} and {line}',
        )
        continue
      lines[number] = line
      missing = set(candidates.questions(number)) - names
      if missing:
        mismatch(
            of_context,
            'the context has other questions',
            f'line {line} has question {question.id!r} of it, not question'
            f' {min(missing)!r}',
        )
        continue
      for candidate in of_context:
        if candidate.end > end:
          mismatch(
              [candidate],
              'beyond the end of the context',
              f'it ends at character {candidate.end}, its context in line'
              f' {line} at {end}',
          )
        elif candidate.id in found:
          mismatch(
              [candidate],
              'the candidate is there twice',
              f'its id is in line {found[candidate.id].line}, too',
          )
        else:
          found[candidate.id] = candidate
    yield line, context, list(found.values())
  for number in range(candidates.contexts):
    if number not in lines:
      mismatch(
          candidates.of(number),
          'the context is not there',
          f'there is no question {candidates.questions(number)[0]!r}',
      )
  faults.warn(candidates.path, len(candidates), f' that do not match {path}')


def positives(
    question: mrqa.Question, candidates: list[Candidate]
) -> list[Candidate]:
  """The candidates that have the whole of one of the question's answers.

  An answer that reaches from one sentence into the next is in neither.
  """
  return [
      candidate
      for candidate in candidates
      if any(
          candidate.start <= start and end <= candidate.end
          for start, end in question.spans
      )
  ]


def _short(name: str) -> str:
  """An id as it is told: those of contexts of 30 questions fill a screen."""
  return name if len(name) <= 120 else f'{name[:80]}...{name[-38:]}'
