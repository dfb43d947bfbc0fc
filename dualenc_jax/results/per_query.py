"""per_query.tsv: the values of every query, of which metrics are the means.

A header `query_id<TAB>P@1<TAB>MRR...`, then a line a query. A cell is empty
where a metric does not apply to the query, which is not in that mean then.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import os
import pathlib

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.io import files

_ID = 'query_id'
# Ends messages on a damaged result folder.
AGAIN = 'Run `dualenc evaluate` again.'


@dataclasses.dataclass(frozen=True, eq=False)
class PerQuery:
  """Values of Q queries.

  Attributes:
    query_ids: Q different strings.
    values: by metric, float64 [Q]; NaN where it does not apply.
  """

  query_ids: Sequence[str]
  values: Mapping[str, np.ndarray]

  def column(self, metric: str) -> dict[str, float]:
    """The values of a metric by query, of those that it applies to."""
    pairs = zip(self.query_ids, self.values[metric].tolist())
    return {query: value for query, value in pairs if not math.isnan(value)}

  def mean(self, metric: str) -> float:
    """The mean over the queries that a metric applies to; NaN if to none."""
    values = self.column(metric).values()
    return math.fsum(values) / len(values) if values else math.nan


def write_per_query(
    path: str | os.PathLike[str],
    query_ids: Sequence[str],
    values: Mapping[str, np.ndarray],
) -> None:
  """Writes a per_query.tsv that reads back bit for bit, whole or not at all.

  Args:
    path: of the file.
    query_ids: Q different strings.
    values: by metric, floats [Q] in the order of the ids; NaN where it does
      not apply.

  Raises:
    UserError: ids that are empty, repeated or hold a tab or line break, sizes
      that disagree, infinite values, or a path that cannot be written.
  """
  path = pathlib.Path(path)
  columns = []
  for metric, column in values.items():
    _check_field('metric', metric, path)
    if np.shape(column) != (len(query_ids),):
      raise UserError(
          f'{path}: {metric} has shape {np.shape(column)}; expected one value'
          f' for each of the {len(query_ids)} queries.'
      )
    if np.isinf(column).any():
      raise UserError(f'{path}: {metric} has an infinite value.')
    cells = np.asarray(column, np.float64).tolist()
    columns.append(['' if math.isnan(cell) else repr(cell) for cell in cells])
  seen = set()
  for query_id in query_ids:
    _check_field('query id', query_id, path)
    if query_id in seen:
      raise UserError(f'{path}: query id {query_id!r} is repeated.')
    seen.add(query_id)
  rows = [(_ID, *values), *zip(query_ids, *columns)]
  files.write(path, ''.join('\t'.join(row) + '\n' for row in rows))


def read_per_query(path: str | os.PathLike[str]) -> PerQuery:
  """Reads what `write_per_query` wrote.

  Raises:
    UserError: names file and line; no header, another number of cells, a value
      that is not a finite number, or a repeated query id.
  """
  path = pathlib.Path(path)
  try:
    text = path.read_text('utf-8')
  except (OSError, UnicodeDecodeError) as e:
    reason = getattr(e, 'strerror', None) or f'it is no text in UTF-8: {e}'
    raise UserError(f'{path} cannot be read: {reason}. {AGAIN}') from e
  lines = text.removesuffix('\n').split('\n')
  first, *metrics = lines[0].split('\t')

  def check(condition: bool, number: int, problem: str) -> None:
    if not condition:
      raise UserError(f'{path}:{number}: {problem} {AGAIN}')

  check(
      first == _ID and 0 < len(metrics) == len({*metrics}),
      1,
      f'the header is {lines[0][:80]!r}; expected {_ID} and different metrics,'
      ' separated by tabs.',
  )
  check(len(lines) > 1, 2, 'no query; expected a line for each.')
  rows = {}
  for number, line in enumerate(lines[1:], start=2):
    query_id, *cells = line.split('\t')
    check(
        len(cells) == len(metrics),
        number,
        f'{len(cells) + 1} cells; expected {len(metrics) + 1}, as in the'
        ' header.',
    )
    check(
        bool(query_id) and query_id not in rows,
        number,
        f'query id {query_id!r} is {"repeated" if query_id else "empty"};'
        ' expected each query once.',
    )
    rows[query_id] = [_number(cell) for cell in cells]
    check(
        not any(map(math.isinf, rows[query_id])),
        number,
        f'{line[:80]!r} has a value that is not a finite number.',
    )
  columns = np.array(list(rows.values()), np.float64).T
  return PerQuery(tuple(rows), dict(zip(metrics, columns)))


def _number(cell: str) -> float:
  """The number in a cell: NaN if it is empty, infinite if there is none."""
  try:
    value = float(cell or 'nan')
  except ValueError:
    return math.inf
  return value if math.isfinite(value) or not cell else math.inf


def _check_field(name: str, value: str, path: pathlib.Path) -> None:
  if not value or any(c in value for c in '\t\r\n'):
    raise UserError(
        f'{path}: {name} {value!r} cannot stand in the file: expected at least'
        ' one character, and neither tab nor line break.'
    )
