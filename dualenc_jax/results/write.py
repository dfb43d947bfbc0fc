"""Writes what an evaluation found to a result folder."""

import pathlib
from typing import Any

import numpy as np

from dualenc_jax.evaluation import trec
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.io import files
from dualenc_jax.results import examples
from dualenc_jax.results.per_query import write_per_query
from dualenc_jax.search.ranking import Ranking


def write_result(
    folder: pathlib.Path,
    retrieval_set: RetrievalSet,
    result: Evaluation,
    k: int,
    described: dict[str, Any],
) -> None:
  """Writes run.trec, per_query.tsv, examples.jsonl, and last metrics.json.

  Args:
    folder: where they go; it is there.
    retrieval_set: what was ranked.
    result: of it.
    k: hits a query in run.trec.
    described: what the numbers depend on, as JSON.

  Raises:
    UserError: a file cannot be written.
  """
  trec.write_run(
      folder / 'run.trec',
      Ranking(*(part[:, :k] for part in result.ranking)),
      retrieval_set.query_ids,
      retrieval_set.ranked_ids,
  )
  query_ids, values = per_query(retrieval_set, result)
  write_per_query(folder / 'per_query.tsv', query_ids, values)
  examples.write(folder / 'examples.jsonl', retrieval_set, result)
  metrics = {
      'metrics': result.metrics,
      'queries_counted': len(query_ids),
      **described,
  }
  files.write_json(folder / 'metrics.json', metrics)


def per_query(
    retrieval_set: RetrievalSet, result: Evaluation
) -> tuple[list[str], dict[str, np.ndarray]]:
  """Ids of the queries that count, and by metric a value each, or NaN."""
  groups = [(result.answered, result.matches)]
  if result.scores is not None:
    groups.insert(0, (result.scores.queries, result.scores.values))
  counted = np.unique(np.concatenate([queries for queries, _ in groups]))
  values = {}
  for queries, by_metric in groups:
    for metric, own in by_metric.items():
      values[metric] = np.full(len(counted), np.nan)
      values[metric][np.searchsorted(counted, queries)] = own
  return [retrieval_set.query_ids[q] for q in counted], values
