"""MRQA's contexts with MultiReQA's candidates: which sentences they have."""

import collections
from collections.abc import Iterator
import logging
import pathlib

from dualenc_jax.errors import UserError
from dualenc_jax.readers import bad_rows, mrqa, rows
from dualenc_jax.readers.multireqa_candidates import Candidate, Candidates


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
      many, by reason. Within `bad_rows.collecting` they are collected.
  """
  mismatches = _Mismatches(candidates, path, strict)
  lines: dict[int, int] = {}
  for line, context in mrqa.contexts(path, strict):
    names = {question.id for question in context.questions}
    found = []
    for question in context.questions:
      number = candidates.context(question.id)
      if number is None:
        continue
      if number in lines:
        mismatches.add_context(
            number,
            'the context is there twice',
            f'question {question.id!r} is in lines {lines[number]} and {line}',
        )
        continue
      lines[number] = line
      missing = set(candidates.questions(number)) - names
      if missing:
        mismatches.add_context(
            number,
            'the context has other questions',
            f'line {line} has question {question.id!r} of it, not question'
            f' {min(missing)!r}',
        )
        continue
      found += _within(candidates.of(number), context, line, mismatches)
    yield line, context, found
  for number in range(candidates.contexts):
    if number not in lines:
      mismatches.add_context(
          number,
          'the context is not there',
          f'there is no question {candidates.questions(number)[0]!r}',
      )
  mismatches.log()


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


def _within(
    found: list[Candidate],
    context: mrqa.Context,
    line: int,
    mismatches: '_Mismatches',
) -> list[Candidate]:
  """The candidates that are within their context, each once."""
  good = {}
  for candidate in found:
    if candidate.end > len(context.text):
      mismatches.add(
          candidate,
          'beyond the end of the context',
          f'it ends at character {candidate.end}, its context in line {line}'
          f' at {len(context.text)}',
      )
    elif candidate.id in good:
      mismatches.add(
          candidate,
          'the candidate is there twice',
          f'its id is in line {good[candidate.id].line}, too',
      )
    else:
      good[candidate.id] = candidate
  return list(good.values())


class _Mismatches:
  """Candidates that belong to no context: an error, or counted."""

  def __init__(
      self, candidates: Candidates, path: pathlib.Path, strict: bool
  ):
    self._candidates = candidates
    self._path = path
    self._strict = strict
    self._collected = bad_rows.collected()
    self._counts = collections.Counter()

  def add_context(self, number: int, reason: str, detail: str) -> None:
    for candidate in self._candidates.of(number):
      self.add(candidate, reason, detail)

  def add(self, candidate: Candidate, reason: str, detail: str) -> None:
    place = f'{self._candidates.path}:{candidate.line}'
    self._counts[reason] += 1
    if self._collected is not None:
      self._collected.add(reason, place)
    elif self._strict:
      raise UserError(
          f'{place}: candidate {_short(candidate.id)!r} does not match'
          f' {self._path}: {detail}. Expected files of the same set and split,'
          " MRQA's of its release v2; or leave out such candidates with"
          f' {rows.LENIENT}.'
      )

  def log(self) -> None:
    if self._counts and self._collected is None:
      counts = self._counts.most_common()
      logging.getLogger(__name__).warning(
          '%s: skipped %d of %d candidates that do not match %s: %s',
          self._candidates.path,
          self._counts.total(),
          len(self._candidates),
          self._path,
          ', '.join(f'{count} {reason}' for reason, count in counts),
      )


def _short(name: str) -> str:
  """An id as it is told: those of contexts of 30 questions fill a screen."""
  return name if len(name) <= 120 else f'{name[:80]}...{name[-38:]}'
