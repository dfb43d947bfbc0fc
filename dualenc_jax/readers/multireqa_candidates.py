"""MultiReQA's candidates.json.gz: where sentences are in MRQA's contexts."""

import array
import pathlib
import re
import sys
from typing import NamedTuple

import numpy as np

from dualenc_jax.readers import rows


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

  def __init__(
      self, path: pathlib.Path, name: str, strict: bool = True
  ):
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
