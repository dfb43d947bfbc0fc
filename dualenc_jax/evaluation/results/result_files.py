"""Result folders of `dualenc evaluate`: their files, written and read.

per_query.tsv has the values of every query, whose means are the metrics: a
header `query_id<TAB>P@1<TAB>MRR...`, then a line a query. A cell is empty where
a metric does not apply to the query, which that mean then leaves out.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.evaluation import trec
from dualenc_jax.utils import files, json_file, untrusted
from dualenc_jax.utils.errors import UserError

METRICS, PER_QUERY, RUN = 'metrics.json', 'per_query.tsv', 'run.trec'
EXAMPLES = 'examples.jsonl'
# MODEL_DIR/validation has values of all queries before and after training, and
# those of the hits that a cross-encoder orders.
VALIDATION = 'validation'
BEFORE, AFTER, OF_BM25 = 'before.tsv', 'after.tsv', 'bm25.tsv'
# Folders, in a result folder, of systems that were evaluated with the model.
BASELINES = ('bm25', 'hybrid')
# The last is the model's hits re-ranked.
SYSTEMS = (*BASELINES, 'rerank')
# Sums in another order differ by less.
_TOLERANCE = 1e-9
# Ends of the labels of results that rank documents by their best passage, and
# of those that rank passages of one text as one.
DOCUMENTS, EQUAL_TEXTS = '-documents', '-equal-texts'
# Key: overlap of evaluation and training queries.
TRAIN_OVERLAP = 'seen_queries'
# Key: number of queries with a relevant passage that has an unjudged copy.
COPIES = 'unjudged_copies'
# Fields that are read again. Metrics are shares of 0 to 1.
_SHAPE = {
    'metrics': {str: int | float},
    **dict.fromkeys(('task', 'label', 'split'), str),
    **dict.fromkeys(('dataset?', 'model_dir?', 'run_id?'), str | None),
    **dict.fromkeys(('checkpoint_step?', 'queries?', 'passages?'), int | None),
}
# Fields of a checkpoint's meta that are read; a mixture has a list of tasks.
_META = {
    'run_id?': str,
    'data?': {'task?': str | list},
    'notes?': {
        'best?': {'step': int, 'metric': str, 'value': int | float},
        'ended?': str,
    },
}
# Folders from a result up to its model_dir: evaluation, those of dim and
# prompts, and that of the result's system.
_ABOVE = 6
_ID = 'query_id'
# Ends messages on a damaged result folder.
AGAIN = 'Run `dualenc evaluate` again.'


@dataclasses.dataclass(frozen=True, eq=False)
class PerQuery:
  """Values of Q queries: by metric float64 [Q], NaN where it does not apply."""

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
    path: pathlib.Path, query_ids: Sequence[str],
    values: Mapping[str, np.ndarray],
) -> None:
  """Writes a per_query.tsv that reads back bit for bit, whole or not at all.

  Values [Q] are NaN where a metric does not apply to the query.
  """
  columns = [
      ['' if math.isnan(cell) else repr(cell) for cell in column.tolist()]
      for column in values.values()
  ]
  # Cells stand in the file as they are: `trec.field` leaves no tab in an id.
  rows = zip(map(trec.field, query_ids), *columns, strict=True)
  lines = ['\t'.join(row) + '\n' for row in ([_ID, *values], *rows)]
  files.write(path, ''.join(lines))


def read_per_query(path: pathlib.Path) -> PerQuery:
  """Reads what `write_per_query` wrote; a UserError names file and line."""
  content = json_file.read_text(path, AGAIN).removesuffix('\n')
  header, *lines = [line.split('\t') for line in content.split('\n')]
  metrics = header[1:]
  if header[0] != _ID or not 0 < len(metrics) == len({*metrics}):
    raise UserError(
        f'{path}:1: the header is {header[:4]}; expected {_ID} and different'
        f' metrics. {AGAIN}'
    )
  rows: dict[str, list[float]] = {}
  for number, (query_id, *cells) in enumerate(lines, start=2):
    values = list(map(untrusted.parse_number, cells))
    if (
        not query_id
        or query_id in rows
        or len(cells) != len(metrics)
        or any(c and not math.isfinite(v) for c, v in zip(cells, values))
    ):
      raise UserError(
          f'{path}:{number}: {[query_id, *cells[:4]]}; expected each query once'
          f' with {len(metrics)} finite numbers. {AGAIN}'
      )
    rows[query_id] = values
  if not rows:
    raise UserError(f'{path} has no query. {AGAIN}')
  columns = np.array(list(rows.values()), np.float64).T
  return PerQuery(tuple(rows), dict(zip(metrics, columns)))


class Key(NamedTuple):
  """A task, such as 'beir', its data set, or None, a label and a split.

  The label is 'beir-scifact'; 'beir-scifact-documents' where documents were
  ranked by the best of their passages, and 'beir-scifact-equal-texts' where
  passages of one text were ranked as one.
  """

  task: str
  dataset: str | None
  label: str
  split: str

  def __str__(self) -> str:
    return f'{self.label} {self.split}'.strip()

  @property
  def as_in_papers(self) -> bool:
    """Whether passages were ranked, each on its own."""
    return not self.label.endswith((DOCUMENTS, EQUAL_TEXTS))


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
  """The metrics of a model on a split.

  Attributes:
    where: the folder or file that was read.
    key: the task and split.
    metrics: shares of 0 to 1 by name.
    provenance: all else that the numbers depend on.
    per_query: reads the values whose means the metrics are, and raises
      UserError if they are not.
  """

  where: str
  key: Key
  metrics: Mapping[str, float]
  provenance: Mapping[str, Any]
  per_query: Callable[[], PerQuery]


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A system: its name for tables, its path, and its results."""

  name: str
  where: str
  results: Mapping[Key, Result]


def read_model(
    path: pathlib.Path, name: str | None = None, baseline: str = ''
) -> Model:
  """Reads the results in a model_dir, its folder `evaluation`, or one result.

  Args:
    path: the folder.
    name: the system's name; None for the model_dir's.
    baseline: one of `SYSTEMS`, to read its results in place of the model's.

  Raises:
    UserError: no results, two of the same split, or one that cannot be read.
  """
  files = find_results(path, baseline)
  if not files:
    file = f'{baseline}/{METRICS}' if baseline else METRICS
    raise UserError(
        f'{path} has no results: {file} is missing. Run `dualenc evaluate`'
        ' first, or give a model_dir or a result folder.'
    )
  results: dict[Key, Result] = {}
  for result in (read_result(file.parent) for file in files):
    other = results.setdefault(result.key, result)
    if other is not result:
      raise UserError(
          f'{other.where} and {result.where} are both results on {result.key}.'
          ' Give one of the two folders.'
      )
  known = {result.provenance.get('model_dir') for result in results.values()}
  own = (known.pop() if len(known) == 1 else None) or path.resolve().name
  names = {
      'bm25': 'BM25', 'hybrid': f'{own} + BM25', 'rerank': f'{own}, re-ranked'
  }
  return Model(name or names.get(baseline, own), str(path), results)


def find_results(path: pathlib.Path, baseline: str = '') -> list[pathlib.Path]:
  """Finds the metrics.json of all results that `read_model` reads."""
  file = f'{baseline}/{METRICS}' if baseline else METRICS
  for pattern in (file, f'evaluation/*/{file}', f'*/{file}'):
    if files := sorted(path.glob(pattern)):
      return files
  return []


def read_all(path: pathlib.Path, name: str | None = None) -> list[Model]:
  """Reads the model of a folder, and the systems evaluated with it."""
  systems = [system for system in SYSTEMS if find_results(path, system)]
  return [
      read_model(path, name), *(read_model(path, baseline=s) for s in systems)
  ]


def read_result(folder: pathlib.Path) -> Result:
  """Reads one result folder; its per-query values only when asked for.

  Raises:
    UserError: metrics.json is missing or damaged.
  """
  path = folder / METRICS
  content = json_file.read(path, AGAIN)
  json_file.check(content, _SHAPE, path, AGAIN)
  metrics = content.pop('metrics')
  if not metrics or not all(0 <= v <= 1 for v in metrics.values()):
    raise UserError(
        f'{path}: the metrics are {metrics}; expected shares of 0 to 1. {AGAIN}'
    )
  key = Key(*(content.pop(name, None) for name in Key._fields))
  per_query = functools.cache(lambda: _read_checked(folder, metrics))
  return Result(str(folder), key, metrics, content, per_query)


def _read_checked(
    folder: pathlib.Path, metrics: Mapping[str, float]
) -> PerQuery:
  path = folder / PER_QUERY
  values = read_per_query(path)
  for name in values.values.keys() & metrics.keys():
    mean = values.mean(name)
    if not math.isclose(mean, metrics[name], rel_tol=0, abs_tol=_TOLERANCE):
      raise UserError(
          f'{path}: the mean of {name} is {mean!r}, but {METRICS} has'
          f' {metrics[name]!r}. {AGAIN}'
      )
  return values


def describe_copies(facts: Mapping[str, Any]) -> str:
  """A sentence on the key `COPIES`, '' without it."""
  if not (copies := facts.get(COPIES)):
    return ''
  return (
      f'For {copies:,} of {facts.get("queries") or 0:,} queries a relevant'
      ' passage has a copy in the corpus that is not judged relevant, and ids'
      ' decide which ranks first. --equal_texts=one ranks them as one.'
  )


def describe_overlap(counts: Mapping[str, int]) -> str:
  """A sentence on the key `TRAIN_OVERLAP`."""
  sides = []
  for side, other in (('queries', 'learnt'), ('learnt', 'queries')):
    same, near = (
        f'{counts[f"{side}_{how}"]:,}'
        f' ({counts[f"{side}_{how}"] / max(counts[side], 1):.2%})'
        for how in ('same', 'near')
    )
    names = {'queries': 'evaluation', 'learnt': 'training'}
    sides.append(
        f'{same} of {counts[side]:,} {names[side]} queries occur word for word'
        f' in the {names[other]} queries, {near} nearly'
    )
  return f'{"; ".join(sides)}.'


def read_meta(path: pathlib.Path) -> dict[str, Any]:
  """Reads the meta beside a checkpoint's tensors, without the config."""
  meta = json_file.read(path, '')
  json_file.check(meta, _META, path)
  return {name: meta[name] for name in meta if name != 'config'}


def newest_step(model_dir: pathlib.Path) -> int | None:
  """The step of the newest checkpoint; None before the first."""
  # Orbax gives a checkpoint its name, the step, when it is complete.
  names = [path.name for path in model_dir.glob('checkpoints/*')]
  return max(map(int, filter(untrusted.is_digits, names)), default=None)


def compare_checkpoint(
    result: Result, step: int, meta: Mapping[str, Any]
) -> str:
  """'of step 10, the newest checkpoint of step 30', or ''.

  It is '' for a result of the checkpoint that commands read, the best one that
  the meta of the newest step names, or else the newest. It is '', too, for a
  result without a step.
  """
  best = meta.get('notes', {}).get('best')
  which, step = ('best', best['step']) if best else ('newest', step)
  measured = result.provenance.get('checkpoint_step')
  if measured not in (None, step):
    return f'of step {measured:,}, the {which} checkpoint of step {step:,}'
  runs = result.provenance.get('run_id'), meta.get('run_id')
  if None not in runs and runs[0] != runs[1]:
    return f'of another training run than the {which} checkpoint'
  return ''


def describe_outdated(result: Result) -> str:
  """Compares a result with the model_dir that it lies in, if any.

  See `compare_checkpoint`.
  """
  if 'checkpoint_step' not in result.provenance:
    return ''
  for folder in pathlib.Path(result.where).resolve().parents[:_ABOVE]:
    step = newest_step(folder)
    if step is not None and (folder / 'config.gin').exists():
      try:
        meta = read_meta(folder / f'checkpoints/{step}/meta/metadata')
      except UserError:
        return ''
      return compare_checkpoint(result, step, meta)
  return ''
