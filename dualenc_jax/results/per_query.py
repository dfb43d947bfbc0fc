"""per_query.tsv: the values of every query, of which metrics are the means.

A header `query_id<TAB>P@1<TAB>MRR...`, then a line a query. A cell is empty
where a metric does not apply to the query, which is not in that mean then.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import math
import os
import pathlib

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.io import files
from dualenc_jax.results.again import again

_ID = 'query_id'


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
  advice = again(path.parent)
  try:
    with open(path, encoding='utf-8') as f:
      lines = (line.rstrip('\n') for line in f)
      metrics = _header(next(lines, ''), path, advice)
      rows = dict(_rows(lines, metrics, path, advice))
  except OSError as e:
    raise UserError(
        f'{path} cannot be read: {e.strerror or e}. {advice}'
    ) from e
  except UnicodeDecodeError as e:
    raise UserError(
        f'{path} is no text in UTF-8: {e.reason}. {advice}'
    ) from e
  if not rows:
    raise UserError(
        f'{path} has no query; expected a line for each. {advice}'
    )
  columns = np.array(list(rows.values()), np.float64).T
  return PerQuery(tuple(rows), dict(zip(metrics, columns)))


def _header(line: str, path: pathlib.Path, advice: str) -> list[str]:
  first, *metrics = line.split('\t')
  if first != _ID or not metrics or len({*metrics}) < len(metrics):
    raise UserError(
        f'{path}:1: the header is {line[:80]!r}; expected {_ID} and different'
        f' metrics, separated by tabs. {advice}'
    )
  return metrics


def _rows(
    lines: Iterator[str],
    metrics: Sequence[str],
    path: pathlib.Path,
    advice: str,
) -> Iterator[tuple[str, list[float]]]:
  seen = set()
  for number, line in enumerate(lines, start=2):
    query_id, *cells = line.split('\t')
    if len(cells) != len(metrics):
      raise UserError(
          f'{path}:{number}: {len(cells) + 1} cells; expected'
          f' {len(metrics) + 1}, as in the header. {advice}'
      )
    if not query_id or query_id in seen:
      raise UserError(
          f'{path}:{number}: query id {query_id!r} is'
          f' {"repeated" if query_id else "empty"}; expected each query'
          f' once. {advice}'
      )
    seen.add(query_id)
    try:
      values = [float(cell) if cell else math.nan for cell in cells]
      finite = all(math.isfinite(v) for v, c in zip(values, cells) if c)
    except ValueError:
      finite = False
    if not finite:
      raise UserError(
          f'{path}:{number}: {line[:80]!r} has a value that is not a finite'
          f' number. {advice}'
      )
    yield query_id, values


def _check_field(name: str, value: str, path: pathlib.Path) -> None:
  if not value or any(c in value for c in '\t\r\n'):
    raise UserError(
        f'{path}: {name} {value!r} cannot stand in the file: expected at least'
        ' one character, and neither tab nor line break.'
    )
