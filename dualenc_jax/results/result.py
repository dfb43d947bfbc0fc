"""Writes the folder of one result: metrics, values by query, run, examples."""

from collections.abc import Mapping
import json
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.evaluation import trec
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.io import files
from dualenc_jax.results.folder import METRICS, PER_QUERY, write_per_query
from dualenc_jax.search.ranking import Ranking

_RUN, _EXAMPLES = 'run.trec', 'examples.jsonl'
# Queries of the sample, and hits of each.
_QUERIES, _HITS = 40, 5
# Characters of a text that are kept.
_LENGTH = 1000


def write(
    folder: pathlib.Path,
    ranked: RetrievalSet,
    result: Evaluation,
    k: int,
    facts: Mapping[str, Any],
) -> None:
  """Writes run.trec, per_query.tsv, examples.jsonl and metrics.json.

  Args:
    folder: made if there is none.
    ranked: what was ranked.
    result: of all its queries.
    k: hits a query in the run.
    facts: what the numbers depend on, for metrics.json.

  Raises:
    UserError: an id that no run file can hold, or a disk that is full.
  """
  files.make_folder(folder, 'another --output_dir')
  trec.write_run(
      folder / _RUN,
      Ranking(*(part[:, :k] for part in result.ranking)),
      ranked.query_ids,
      ranked.ranked_ids,
  )
  query_ids, values = per_query(ranked, result)
  write_per_query(folder / PER_QUERY, query_ids, values)
  _write_examples(folder / _EXAMPLES, ranked, result)
  # Last: with it the result is complete.
  files.write_json(
      folder / METRICS,
      {
          'metrics': result.metrics,
          'queries_counted': len(query_ids),
          **facts,
      },
  )


def remove(folder: pathlib.Path) -> None:
  """Removes a result, if there is one; a teacher's scores in it stay."""
  for name in (METRICS, _RUN, PER_QUERY, _EXAMPLES):
    (folder / name).unlink(missing_ok=True)


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


def _write_examples(
    path: pathlib.Path, retrieval_set: RetrievalSet, result: Evaluation
) -> None:
  """Writes a fixed sample of the queries, one JSON object a line.

  Each has query_id, query, rank (of the best relevant passage, null where that
  is not known), relevant (this passage; any if it is not among the hits; null
  for none) and hits: rank, score, id, name, text and grade, null where it is
  not judged.
  """
  total = len(retrieval_set.query_ids)
  chosen = np.random.default_rng(0).permutation(total)[:_QUERIES].tolist()
  examples = (_example(retrieval_set, result, q) for q in sorted(chosen))
  lines = [json.dumps(e, ensure_ascii=False) + '\n' for e in examples]
  files.write(path, ''.join(lines))


def _example(
    retrieval_set: RetrievalSet, result: Evaluation, query: int
) -> dict[str, Any]:
  judged = retrieval_set.judgements[query]
  hits = result.ranking.indices[query].tolist()
  scores = result.ranking.scores[query].tolist()
  gold = {item for item, grade in judged.items() if grade >= 1}
  rank = next((i for i, hit in enumerate(hits, 1) if hit in gold), None)
  relevant = min(gold, default=None) if rank is None else hits[rank - 1]
  return {
      'query_id': retrieval_set.query_ids[query],
      'query': _cut(retrieval_set.query_texts[query]),
      'rank': result.ranks.get(query) if rank is None else rank,
      'relevant': None if relevant is None else _item(retrieval_set, relevant),
      'hits': [
          {
              'rank': i + 1,
              'score': scores[i],
              **_item(retrieval_set, hit),
              'grade': judged.get(hit),
          }
          for i, hit in enumerate(hits[:_HITS])
      ],
  }


def _item(retrieval_set: RetrievalSet, item: int) -> dict[str, str]:
  """Of a document it is its first passage that is shown."""
  passage, documents = item, retrieval_set.documents
  if documents is not None:
    passage = int(np.argmax(documents.of_passage == item))
  return {
      'id': str(retrieval_set.ranked_ids[item]),
      'name': retrieval_set.corpus.name(passage),
      'text': _cut(retrieval_set.corpus.texts[passage]),
  }


def _cut(text: str) -> str:
  return text if len(text) <= _LENGTH else text[:_LENGTH] + '...'
