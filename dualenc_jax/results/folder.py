"""Result folders of `dualenc evaluate`: metrics.json and per_query.tsv.

per_query.tsv has the values of every query, of which metrics are the means: a
header `query_id<TAB>P@1<TAB>MRR...`, then a line a query. A cell is empty where
a metric does not apply to the query, which is not in that mean then.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.evaluation import trec
from dualenc_jax.io import files, json_file
from dualenc_jax.results import seen

METRICS = 'metrics.json'
PER_QUERY = 'per_query.tsv'
# Folders, in a result folder, of what was evaluated beside the model.
BASELINES = ('bm25', 'hybrid')
# What `compare` takes after a colon; the last is the model's hits re-ranked.
SYSTEMS = (*BASELINES, 'rerank')
# Of means that were summed in another order.
_TOLERANCE = 1e-9
# Ends the label of results that rank documents by their best passage.
DOCUMENTS = '-documents'
# What is read again of a result; metrics are shares of 0 to 1.
_SHAPE = {
    'metrics': {str: int | float},
    'task': str,
    'label': str,
    'split': str,
    'dataset?': str | None,
    'model_dir?': str | None,
    'run_id?': str | None,
    'embedding_dtype?': str | None,
    'command?': str | None,
    'document_separator?': str | None,
    'checkpoint_step?': int | None,
    f'{seen.FACT}?': seen.SHAPE,
    'queries?': int | None,
    'passages?': int | None,
    'k?': int | None,
    'depth?': int | None,
}
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
    path: pathlib.Path,
    query_ids: Sequence[str],
    values: Mapping[str, np.ndarray],
) -> None:
  """Writes a per_query.tsv that reads back bit for bit, whole or not at all.

  Args:
    path: of the file.
    query_ids: Q different strings, which `trec.write_run` has checked.
    values: by metric, finite floats [Q] in the order of the ids; NaN where it
      does not apply.

  Raises:
    UserError: the file cannot be written.
  """
  columns = [
      ['' if math.isnan(cell) else repr(cell) for cell in column.tolist()]
      for column in values.values()
  ]
  # An id may hold a tab or an end of a line.
  ids = map(trec.field, query_ids)
  rows = [(_ID, *values), *zip(ids, *columns, strict=True)]
  files.write(path, ''.join('\t'.join(row) + '\n' for row in rows))


def read_per_query(path: pathlib.Path) -> PerQuery:
  """Reads what `write_per_query` wrote.

  Raises:
    UserError: names file and line; no header, another number of cells, a value
      that is not a finite number, or a repeated query id.
  """
  text = json_file.read_text(path, AGAIN)
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


class Key(NamedTuple):
  """What was evaluated.

  Attributes:
    task: its name, such as 'beir'.
    dataset: of a task that has several, such as 'scifact'.
    label: both in one, 'beir-scifact'; 'beir-scifact-documents' where documents
      were ranked by the best of their passages.
    split: such as 'test'.
  """

  task: str
  dataset: str | None
  label: str
  split: str

  def __str__(self) -> str:
    return f'{self.label} {self.split}'.strip()

  @property
  def of_documents(self) -> bool:
    """Whether documents were ranked, which the papers do not."""
    return self.label.endswith(DOCUMENTS)


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
  """What a model scored on a split.

  Attributes:
    where: the folder or file that it was read from, for messages.
    key: what was evaluated.
    metrics: shares of 0 to 1 by name.
    provenance: what else the numbers depend on, such as 'source'.
    per_query: reads the values that the metrics are means of; raises UserError
      if they are not.
  """

  where: str
  key: Key
  metrics: Mapping[str, float]
  provenance: Mapping[str, Any]
  per_query: Callable[[], PerQuery]


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A model, or any other system, and its results.

  Attributes:
    name: for tables and figures.
    where: the folder or file that was given for it.
    results: by what was evaluated.
  """

  name: str
  where: str
  results: Mapping[Key, Result]


def read_model(
    path: pathlib.Path, name: str | None = None, baseline: str = ''
) -> Model:
  """The results in a folder.

  Args:
    path: a model_dir, its folder `evaluation`, or one result folder.
    name: of the model; by default the model_dir's, or what `baseline` is.
    baseline: one of `SYSTEMS` for the results of that beside the model's.

  Raises:
    UserError: no results, two of the same split, or one that cannot be read.
  """
  files = found(path, baseline)
  if not files:
    file = f'{baseline}/{METRICS}' if baseline else METRICS
    raise UserError(
        f'{path} has no results, neither {file} nor evaluation/*/{file}. Run'
        ' `dualenc evaluate` first, or give a model_dir or a result folder.'
    )
  results = {}
  for result in map(read_result, (file.parent for file in files)):
    other = results.setdefault(result.key, result)
    if other is not result:
      raise UserError(
          f'{other.where} and {result.where} are both results on {result.key}.'
          ' Give one of the two folders instead of the one around them.'
      )
  known = {result.provenance.get('model_dir') for result in results.values()}
  (own,) = known if len(known) == 1 else (None,)
  own = own or path.resolve().name
  if baseline:
    own = {
        'bm25': 'BM25', 'hybrid': f'{own} + BM25', 'rerank': f'{own}, re-ranked'
    }[baseline]
  return Model(name or own, str(path), results)


def found(path: pathlib.Path, baseline: str = '') -> list[pathlib.Path]:
  """The metrics.json of all results that `read_model` would read."""
  file = f'{baseline}/{METRICS}' if baseline else METRICS
  for pattern in (file, f'evaluation/*/{file}', f'*/{file}'):
    if files := sorted(path.glob(pattern)):
      return files
  return []


def read_all(path: pathlib.Path, name: str | None = None) -> list[Model]:
  """The model of a folder, and the systems that were evaluated with it."""
  beside = [read_model(path, baseline=s) for s in SYSTEMS if found(path, s)]
  return [read_model(path, name), *beside]


def read_result(folder: pathlib.Path) -> Result:
  """Reads one result folder; its per-query values only when asked for.

  Raises:
    UserError: metrics.json is missing, is no JSON, lacks a field, or has one of
      another type.
  """
  path = folder / METRICS
  content = json_file.read(path, AGAIN)
  json_file.check(content, _SHAPE, path, AGAIN)
  metrics = content.pop('metrics')
  if not metrics:
    raise UserError(f'{path}: "metrics" has no values. {AGAIN}')
  for name, value in metrics.items():
    if not 0 <= value <= 1:
      raise UserError(
          f'{path}: metric {name} is {value!r}; expected a share of 0 to 1.'
          f' {AGAIN}'
      )
  key = Key(
      content['task'],
      content.get('dataset'),
      content['label'],
      content['split'],
  )
  return Result(
      where=str(folder),
      key=key,
      metrics=metrics,
      provenance={k: v for k, v in content.items() if k not in Key._fields},
      per_query=functools.cache(lambda: _read_checked(folder, metrics)),
  )


def _read_checked(
    folder: pathlib.Path, metrics: Mapping[str, float]
) -> PerQuery:
  path = folder / PER_QUERY
  values = read_per_query(path)
  for name, value in metrics.items():
    if name not in values.values:
      continue
    mean = values.mean(name)
    if not math.isclose(mean, value, rel_tol=0, abs_tol=_TOLERANCE):
      raise UserError(
          f'{path}: the mean of {name} is {mean!r}, but {METRICS} beside it'
          f' has {value!r}: a file is damaged, or they are of two evaluations.'
          f' {AGAIN}'
      )
  return values
