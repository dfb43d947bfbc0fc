"""Writes the results of an evaluation into a folder."""

from collections.abc import Mapping
import contextlib
import json
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.evaluation import trec
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.results.result_files import (
  EQUAL_TEXTS,
  EXAMPLES,
  METRICS,
  PER_QUERY,
  RUN,
  write_per_query,
)
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.search.ranking import Ranking
from dualenc_jax.utils import files

# Numbers of sampled queries, of their hits, and of a text's characters.
_QUERIES, _HITS, _LENGTH = 40, 5, 1000


def write_result(
    folder: pathlib.Path, ranked: RetrievalSet, result: Evaluation, k: int,
    facts: Mapping[str, Any],
) -> None:
  """Writes run.trec with k hits a query, and all other files of a result.

  Raises:
    UserError: an id that no run file can hold, or a disk that is full.
  """
  files.make_folder(folder, 'another --output_dir')
  trec.write_run(
      folder / RUN,
      Ranking(*(part[:, :k] for part in result.ranking)),
      ranked.query_ids,
      ranked.ranked_ids,
      'dualenc' + EQUAL_TEXTS * ('equal_texts' in facts),
  )
  query_ids, values = values_by_query(ranked, result)
  write_per_query(folder / PER_QUERY, query_ids, values)
  total = len(ranked.query_ids)
  chosen = np.random.default_rng(0).permutation(total)[:_QUERIES].tolist()
  examples = (_example(ranked, result, query) for query in sorted(chosen))
  lines = [json.dumps(e, ensure_ascii=False) + '\n' for e in examples]
  files.write(folder / EXAMPLES, ''.join(lines))
  # This file comes last, as it makes the result complete.
  own = {'metrics': result.metrics, 'queries_counted': len(query_ids)}
  files.write_json(folder / METRICS, {**own, **facts})


def remove_result(folder: pathlib.Path) -> None:
  """Removes a result, if there is one; a teacher's scores in it remain."""
  for name in (METRICS, RUN, PER_QUERY, EXAMPLES):
    (folder / name).unlink(missing_ok=True)
  with contextlib.suppress(OSError):
    folder.rmdir()


def values_by_query(
    ranked: RetrievalSet, result: Evaluation
) -> tuple[list[str], dict[str, np.ndarray]]:
  """Ids of the queries that count, and by metric a value each, or NaN."""
  groups: list[Any] = [(result.answered, result.matches)]
  if result.scores is not None:
    groups.insert(0, (result.scores.queries, result.scores.values))
  counted = np.unique(np.concatenate([queries for queries, _ in groups]))
  values = {}
  for queries, by_metric in groups:
    for metric, own in by_metric.items():
      values[metric] = np.full(len(counted), np.nan)
      values[metric][np.searchsorted(counted, queries)] = own
  return [ranked.query_ids[q] for q in counted], values


def _example(
    ranked: RetrievalSet, result: Evaluation, query: int
) -> dict[str, Any]:
  """A query and its best hits, as JSON.

  `rank` is that of the best relevant passage, null where it is not known, and
  `relevant` that passage, or any relevant one that is not among the hits.
  `grade` is null where a hit is not judged.
  """
  judged = ranked.judgements[query]
  hits = result.ranking.indices[query]
  hits = hits[hits >= 0].tolist()
  scores = result.ranking.scores[query].tolist()
  least = ranked.relevance_level
  gold = {item for item, grade in judged.items() if grade >= least}
  rank = next((i for i, hit in enumerate(hits, 1) if hit in gold), None)
  relevant = min(gold, default=None) if rank is None else hits[rank - 1]
  return {
      'query_id': ranked.query_ids[query],
      'query': _cut(ranked.query_texts[query]),
      'rank': result.ranks.get(query) if rank is None else rank,
      'relevant': None if relevant is None else _item(ranked, relevant),
      'hits': [
          {
              'rank': i,
              'score': score,
              **_item(ranked, hit),
              'grade': judged.get(hit),
          }
          for i, (hit, score) in enumerate(zip(hits[:_HITS], scores), 1)
      ],
  }


def _item(ranked: RetrievalSet, item: int) -> dict[str, str]:
  """A passage, or the first passage of a document."""
  passage, documents = item, ranked.documents
  if documents is not None:
    passage = int(np.argmax(documents.of_passage == item))
  return {
      'id': str(ranked.ranked_ids[item]),
      'name': ranked.corpus.name(passage),
      'text': _cut(ranked.corpus.texts[passage]),
  }


def _cut(text: str) -> str:
  return text if len(text) <= _LENGTH else text[:_LENGTH] + '...'
