"""Result folders of chosen numbers, as `dualenc evaluate` leaves them."""

from collections.abc import Mapping, Sequence
import json
import pathlib
from typing import Any


def write(
    model_dir: pathlib.Path, metrics: Mapping[str, float], /,
    task: str = 'pairs', dataset: str | None = None, split: str = 'test',
    per_query: Mapping[str, Sequence[float]] | None = None, **fields: Any,
) -> pathlib.Path:
  """Writes one result folder of a model_dir.

  Args:
    model_dir: created if need be.
    metrics: the means.
    task: of the result, and its label without a data set.
    dataset: of the task.
    split: of the task.
    per_query: query id -> the values of `metrics`, in their order; None for no
      file.
    **fields: of metrics.json, in place of the usual ones.
  """
  label = task if dataset is None else f'{task}-{dataset}'
  label = fields.get('label') or label
  folder = model_dir / 'evaluation' / f'{label}-{split}'.replace('/', '-')
  folder.mkdir(parents=True)
  content = {
      'metrics': dict(metrics), 'task': task, 'dataset': dataset,
      'label': label, 'split': split, 'queries': 4, 'passages': 9,
      'source': 'of the queries',
      'corpus': {'split': 'corpus', 'source': 'of the passages'},
      'model_dir': model_dir.name, 'checkpoint_step': 20_000,
  }
  (folder / 'metrics.json').write_text(json.dumps(content | fields))
  if per_query is not None:
    lines = ['\t'.join(['query_id', *metrics])]
    lines += ['\t'.join([q, *map(str, v)]) for q, v in per_query.items()]
    (folder / 'per_query.tsv').write_text('\n'.join(lines) + '\n')
  return folder


def of_column(
    model_dir: pathlib.Path, metric: str, values: Sequence[float], /,
    **fields: Any,
) -> pathlib.Path:
  """A result by one metric, of queries q0, q1, ... with these values."""
  return write(
      model_dir,
      {metric: sum(values) / len(values)},
      per_query={f'q{i}': [value] for i, value in enumerate(values)},
      **fields,
  )
