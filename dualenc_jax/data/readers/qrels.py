"""Qrels: grades of judged passages of queries, read from a file."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import itertools
import math
import pathlib
import re
from typing import NamedTuple

from dualenc_jax.data.readers import files, rows, tables
from dualenc_jax.data.readers.rows import BadRow
from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import UserError

# Names of the columns in a header, in small letters alone.
_COLUMNS = (
    ('queryid', 'query', 'qid', 'questionid', 'topic', 'topicid'),
    ('corpusid', 'passageid', 'passage', 'pid', 'documentid', 'document',
     'docid', 'docno', 'doc', 'did'),
    ('score', 'relevance', 'rel', 'label', 'grade', 'rating', 'judgment',
     'judgement'),
)
# trec_eval counts passages by grade, up to the highest: memory and time.
LARGEST_GRADE = 10**6
_OF_RUNS = 'Expected judgements: query id, passage id and grade.'
# As csv writes a cell that has quotes in it.
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


class Judgement(NamedTuple):
  """A passage's grade for a query, above 0 where the passage is relevant."""

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
    """'file:line'."""
    return f'{self.path}:{judgement.line}'


def read(path: pathlib.Path, strict: bool = True) -> Qrels:
  """Reads a qrels file, plain or .gz, of a form that its content tells.

  - BEIR: query id, passage id and grade, separated by tabs, cells in quotes or
    not.
  - NanoBEIR: Parquet with query-id, corpus-id and perhaps score, else 1.
  - TREC and MS MARCO: query id, an unused column, passage id and grade,
    separated by tabs or what else trec_eval takes for white space.

  A header line, which has the name of a column and no grade, says which
  columns these are, of any number in any order.

  `strict` is as of `rows.parse_rows`; it also decides whether two grades for
  the same query and passage are an error, or the first counts. No rows, a
  header that lacks one of the three columns or has it twice, and a run are a
  UserError.
  """
  numbered = _lines(path)
  first = list(itertools.islice(numbered, 1))
  columns: tuple[int, ...] = ()
  for number, names in first:
    where, fields = f'{path}:{number}', names.split()
    columns = header(where, names.decode('utf-8', 'replace'))
    tabs = names.count(b'\t')
    if len(fields) == 6 and fields[3].isdigit() and tabs in (0, 5):
      raise UserError(f'{where}: a line of a TREC run. {_OF_RUNS}')
  numbered = numbered if columns else itertools.chain(first, numbered)
  is_trec = functools.cache(lambda: _is_trec(path))
  parse = functools.partial(_parse, columns, is_trec)
  judgements: dict[tuple[str, str], Judgement] = {}
  count, faults = 0, rows.Faults(strict, 'judgements')
  for line, (query_id, passage_id, grade) in rows.parse_rows(
      path, numbered, parse, strict
  ):
    count += 1
    before = judgements.setdefault(
        (query_id, passage_id), Judgement(query_id, passage_id, grade, line)
    )
    if before.grade == grade:
      continue
    faults.add(
        'another grade than in an earlier row', f'{path}:{line}',
        f'grade {grade} for query {query_id!r} and passage {passage_id!r},'
        f' which line {before.line} gives {before.grade}',
    )
  faults.warn(path)
  if not count:
    raise UserError(f'{path} has no judgements.')
  query_id = next(iter(judgements))[0]
  grades = [j.grade for j in judgements.values() if j.query_id == query_id]
  if len(grades) >= 10 and grades == [*range(1, len(grades) + 1)]:
    raise UserError(
        f'{path}: the grades of query {query_id!r} are 1 to {len(grades)} in'
        f" this order, the ranks of a run in MS MARCO's form. {_OF_RUNS}"
    )
  return Qrels(path, tuple(judgements.values()), count)


def cell(name: str) -> str:
  """An id as `read` has it back, and csv, by which BEIR and GPL read."""
  return '"' + name.replace('"', '""') + '"' if '"' in name else name


def header(where: str, line: str) -> tuple[int, ...]:
  """How many columns a header has, and where query id, passage id and grade or
  score are; nothing for a line that is no header.

  Raises:
    UserError, naming `where`: one of the three is missing, or there twice.
  """
  cells = line.rstrip('\r\n').split('\t' if '\t' in line else None)
  cells = list(map(_unquoted, cells)) or ['']
  names = [re.sub('[^a-z]', '', cell.lower()) for cell in cells]
  found = [[i for i, n in enumerate(names) if n in known] for known in _COLUMNS]
  graded = not math.isnan(untrusted.parse_number(cells[-1]))
  if graded or line.startswith('#') or not any(found):
    return ()
  if any(len(places) != 1 for places in found):
    raise UserError(
        f'{where}: the columns are {", ".join(map(repr, cells))};'
        ' expected query-id, corpus-id and score, each once. Rename them.'
    )
  return len(cells), *itertools.chain(*found)


def _lines(path: pathlib.Path) -> Iterator[tuple[int, bytes]]:
  """The numbered lines of a file, those of a TSV for Parquet."""
  if path.suffix != '.parquet':
    yield from files.lines(path)
    return
  yield 0, b'query-id\tcorpus-id\tscore'
  names = 'query-id', 'corpus-id', 'score'
  for number, row in tables.parquet(path, None, names.__contains__).numbered:
    cells = row.get('query-id'), row.get('corpus-id'), row.get('score', 1)
    texts = ('' if cell is None else str(cell) for cell in cells)
    yield number, '\t'.join(texts).encode()


def _parse(
    columns: tuple[int, ...], is_trec: Callable[[], bool], line: bytes
) -> tuple[str, str, int]:
  """A line's judgement, by a header's columns if there are any."""
  width, *places = columns or (0, 0, -2, -1)
  tabs = line.count(b'\t') + 1 == width if width else _by_tabs(line, is_trec)
  # With tabs, #topic may be an id.
  if line.startswith(b'# ' if tabs else b'#') and not (width and tabs):
    raise BadRow('a comment, expected judgements alone')
  if tabs:
    cells = rows.decode(line).split('\t')
    # TREC has no quotes: of its four columns all, or none.
    if b'"' in line and (width or len(cells) != 4 or cells[1].startswith('"')):
      cells = list(map(_unquoted, cells))
  else:
    # As by `isspace` of C; `str` would split at a no-break space, too.
    cells = rows.decode(b'\t'.join(line.split())).split('\t')
  if width and len(cells) != width:
    raise BadRow(f'{len(cells)} columns, expected {width} as in the header')
  if not width and len(cells) not in (3, 4):
    raise BadRow(
        f'{len(cells)} columns, expected query id, passage id and grade,'
        ' separated by tabs or white space'
    )
  query_id, passage_id, grade = (cells[place] for place in places)
  if not query_id or not passage_id:
    raise BadRow('the query id or the passage id is empty')
  return query_id, passage_id, _grade(grade)


def _by_tabs(line: bytes, is_trec: Callable[[], bool]) -> bool:
  """Whether only tabs separate; else trec_eval's white space, mixed or not."""
  cells, fields = line.split(b'\t'), line.split()
  if len(cells) == 3:
    return not (_may_be_trec(fields) and is_trec())
  return len(cells) > 1 and (cells == fields or len(fields) != 4)


def _may_be_trec(fields: Sequence[bytes]) -> bool:
  return len(fields) == 4 and fields[1] in (b'0', b'Q0')


def _is_trec(path: pathlib.Path) -> bool:
  """Whether 'q 0<tab>d<tab>1' is a line of four fields, no id being 'q 0'.

  It is where no line of three cells is sure to be BEIR's.
  """
  return all(
      line.count(b'\t') != 2 or _may_be_trec(line.split())
      for _, line in files.lines(path)
  )


def _unquoted(cell: str) -> str:
  quoted = _QUOTED.fullmatch(cell)
  return quoted[1].replace('""', '"') if quoted else cell


def _grade(value: str) -> int:
  grade = untrusted.parse_number(value)
  if not grade.is_integer():
    raise BadRow(f'grade {value!r} is not an integer')
  if abs(grade) > LARGEST_GRADE:
    raise BadRow(f'grade {value!r} is not one of ±{LARGEST_GRADE:,}')
  return int(grade)
