"""Qrels: grades of judged passages of queries, read from a file."""

from collections.abc import Iterator
import dataclasses
import itertools
import math
import pathlib
import re
from typing import NamedTuple

from dualenc_jax.errors import UserError
from dualenc_jax.readers import rows
from dualenc_jax.readers.rows import BadRow

# What the last column of a header line is called.
_GRADE_COLUMNS = (b'score', b'relevance', b'rel', b'label', b'grade')
# trec_eval counts passages by grade, up to the highest: memory and time.
LARGEST_GRADE = 10**6
# Bytes of judgements that are one value.
_LARGEST_JSON = 2**28
# As csv writes a cell that has quotes in it.
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


class Judgement(NamedTuple):
  """A passage's grade for a query, above 0 where the passage is relevant.

  `line` is 0 where the file has no lines of its own.
  """

  query_id: str
  passage_id: str
  grade: int
  line: int


@dataclasses.dataclass(frozen=True, eq=False)
class Qrels:
  """The judgements of a split, in the file's order, each once.

  `rows` counts the rows of the file, with exact repeats.
  """

  path: pathlib.Path
  judgements: tuple[Judgement, ...]
  rows: int

  def location(self, judgement: Judgement) -> str:
    """'file:line', or just the file."""
    return f'{self.path}:{judgement.line}' if judgement.line else str(self.path)


def read(
    path: pathlib.Path, strict: bool = True, flag: str = rows.LENIENT
) -> Qrels:
  """Reads a qrels file, plain or .gz, of a form that its content tells.

  - BEIR: query id, passage id and grade, separated by tabs, with a header line
    or without.
  - TREC and MS MARCO: query id, an unused column, passage id and grade,
    separated by tabs or spaces.
  - JSON: {query id: {passage id: grade}}.

  `strict` and `flag` are as of `rows.checked`. No rows, and two grades for the
  same query and passage, are a UserError, too.
  """
  numbered = rows.lines(path)
  first = list(itertools.islice(numbered, 1))
  if first and first[0][1].lstrip().startswith(b'{'):
    found = _json_rows(path)
  else:
    if first and first[0][1].split()[-1].lower() not in _GRADE_COLUMNS:
      numbered = itertools.chain(first, numbered)
    found = rows.checked(path, numbered, _parse, strict, flag)
  judgements: dict[tuple[str, str], Judgement] = {}
  count = 0
  for line, (query_id, passage_id, grade) in found:
    count += 1
    before = judgements.setdefault(
        (query_id, passage_id), Judgement(query_id, passage_id, grade, line)
    )
    if before.grade == grade:
      continue
    if (bad := rows.collected()) is None:
      raise UserError(
          f'{path}:{line}: grade {grade} for query {query_id!r} and passage'
          f' {passage_id!r}, which line {before.line} gives {before.grade}.'
          ' Expected one grade per pair.'
      )
    bad.add('another grade than in an earlier row', f'{path}:{line}')
  if not count:
    raise UserError(f'{path} has no judgements.')
  return Qrels(path, tuple(judgements.values()), count)


def cell(name: str) -> str:
  """An id as `read` has it back, and csv, by which BEIR and GPL read."""
  return '"' + name.replace('"', '""') + '"' if '"' in name else name


def _parse(line: bytes) -> tuple[str, str, int]:
  text = rows.decode(line)
  cells = text.split('\t') if '\t' in text else text.split()
  if len(cells) == 4:
    del cells[1]
  if len(cells) != 3:
    run = ' as a run file has' if len(cells) == 6 else ''
    raise BadRow(
        f'{len(cells)} columns{run}, expected query id, passage id and grade,'
        ' or four with an unused one after the query id'
    )
  query_id, passage_id = map(_unquoted, cells[:2])
  if not query_id or not passage_id:
    raise BadRow('the query id or the passage id is empty')
  return query_id, passage_id, _grade(cells[2])


def _unquoted(cell: str) -> str:
  quoted = _QUOTED.fullmatch(cell)
  return quoted[1].replace('""', '"') if quoted else cell


def _grade(value: str | int | float) -> int:
  try:
    grade = float(value)
  except (TypeError, ValueError, OverflowError):
    grade = math.nan
  if not grade.is_integer():
    raise BadRow(f'grade {value!r} is not an integer')
  if abs(grade) > LARGEST_GRADE:
    raise BadRow(
        f'grade {value!r} is not one of -{LARGEST_GRADE:,} to'
        f' {LARGEST_GRADE:,}'
    )
  return int(grade)


def _json_rows(
    path: pathlib.Path,
) -> Iterator[tuple[int, tuple[str, str, int]]]:
  read, size = [], 0
  for _, line in rows.lines(path):
    read.append(line)
    size += len(line)
    if size > _LARGEST_JSON:
      raise UserError(
          f'{path} has more than {_LARGEST_JSON >> 20} MiB of JSON. For a file'
          ' so large, expected one judgement per line, as in TREC or BEIR.'
      )
  try:
    for query_id, passages in rows.json_object(b'\n'.join(read)).items():
      if not isinstance(passages, dict):
        raise BadRow(f'query {query_id!r} has no object of passage ids')
      for passage_id, grade in passages.items():
        yield 0, (query_id, passage_id, _grade(grade))
  except BadRow as reason:
    raise UserError(
        f'{path}: {reason}. Expected {{query id: {{passage id: grade}}}}.'
    ) from None
