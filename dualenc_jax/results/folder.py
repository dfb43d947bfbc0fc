"""Result folders of `dualenc evaluate`: metrics.json and per_query.tsv."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import math
import pathlib
from typing import Any, NamedTuple

from dualenc_jax.errors import UserError
from dualenc_jax.io import json_file, shapes
from dualenc_jax.results.per_query import AGAIN, PerQuery, read_per_query

METRICS = 'metrics.json'
PER_QUERY = 'per_query.tsv'
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
    'queries?': int | None,
    'passages?': int | None,
    'k?': int | None,
    'depth?': int | None,
}


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


def read_model(path: pathlib.Path, name: str | None = None) -> Model:
  """The results in a folder.

  Args:
    path: a model_dir, its folder `evaluation`, or one result folder.
    name: of the model; by default the model_dir's.

  Raises:
    UserError: no results, two of the same split, or one that cannot be read.
  """
  for pattern in (METRICS, f'evaluation/*/{METRICS}', f'*/{METRICS}'):
    files = sorted(path.glob(pattern))
    if files:
      break
  else:
    raise UserError(
        f'{path} has no results, neither {METRICS} nor'
        f' evaluation/*/{METRICS}. Run `dualenc evaluate` first, or give a'
        ' model_dir or a result folder.'
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
  return Model(name or own or path.resolve().name, str(path), results)


def read_result(folder: pathlib.Path) -> Result:
  """Reads one result folder; its per-query values only when asked for.

  Raises:
    UserError: metrics.json is missing, is no JSON, lacks a field, or has one of
      another type.
  """
  path = folder / METRICS
  content = json_file.read(path, AGAIN)
  shapes.check(content, _SHAPE, path, AGAIN)
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
