"""Contexts, questions and answer spans of MRQA's *.jsonl.gz files."""

from collections.abc import Iterator
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.readers import rows


@dataclasses.dataclass(frozen=True)
class Question:
  """A question about a context.

  Attributes:
    id: MRQA's qid.
    text: of the question.
    spans: [start, end) of its answers in the context, in characters.
  """

  id: str
  text: str
  spans: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Context:
  """A passage, perhaps of several paragraphs or documents, and its questions.

  Attributes:
    text: with MRQA's own marks [DOC], [TLE], [PAR] and [SEP] in it.
    questions: about it.
  """

  text: str
  questions: tuple[Question, ...]


def contexts(
    path: pathlib.Path, strict: bool = True
) -> Iterator[tuple[int, Context]]:
  """Yields (line number, context) of a file, one context at a time.

  Args:
    path: plain or .gz; a line with nothing but a header is passed over.
    strict: as of `rows.parsed`.
  """
  for line, context in rows.parsed(path, _parse, strict):
    if context is not None:
      yield line, context


def _parse(line: bytes) -> Context | None:
  row = rows.json_object(line)
  if 'header' in row and 'context' not in row:
    return None
  text = rows.text(row, 'context')
  return Context(
      text,
      tuple(_question(question, text) for question in _objects(row, 'qas')),
  )


def _question(row: dict[str, Any], context: str) -> Question:
  # What is called 'id' is the source's own where there is a 'qid', too.
  name = rows.identifier(row, 'qid') or rows.identifier(row, 'id')
  if not name:
    raise rows.BadRow("a question has no 'qid'")
  spans = {
      _span(span, context): None
      for answer in _objects(row, 'detected_answers')
      for span in _list(answer, 'char_spans')
  }
  return Question(name, rows.text(row, 'question'), tuple(spans))


def _span(span: Any, context: str) -> tuple[int, int]:
  """[start, end) of MRQA's span, whose end is that of the last character."""
  match span:
    case [int(start), int(end)] if 0 <= start <= end < len(context):
      return start, end + 1
  raise rows.BadRow(
      "an answer's 'char_spans' are not [first, last] characters of the context"
  )


def _objects(row: dict[str, Any], name: str) -> list[dict[str, Any]]:
  values = _list(row, name)
  if not all(isinstance(value, dict) for value in values):
    raise rows.BadRow(f'{name!r} is not a list of objects')
  return values


def _list(row: dict[str, Any], name: str) -> list[Any]:
  if not isinstance(row.get(name), list):
    raise rows.BadRow(f'{name!r} is missing or not a list')
  return row[name]
