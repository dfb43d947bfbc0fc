"""A few queries with their best hits, to read."""

import json
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.io import files

QUERIES = 40
HITS = 5
# Characters of a text that are kept.
_LENGTH = 1000


def write(
    path: pathlib.Path, retrieval_set: RetrievalSet, result: Evaluation
) -> None:
  """Writes a fixed sample of the queries, one JSON object a line.

  Each has query_id, query, rank (of the best relevant passage, null where that
  is not known), relevant (this passage; any if it is not among the hits; null
  for none) and hits: rank, score, id, name, text and grade, null where it is
  not judged.

  Args:
    path: of the file.
    retrieval_set: what was ranked.
    result: of all its queries.

  Raises:
    UserError: the file cannot be written.
  """
  total = len(retrieval_set.query_ids)
  chosen = np.random.default_rng(0).permutation(total)[:QUERIES]
  lines = [
      json.dumps(_example(retrieval_set, result, query), ensure_ascii=False)
      for query in np.sort(chosen).tolist()
  ]
  files.write(path, '\n'.join(lines) + '\n')


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
          for i, hit in enumerate(hits[:HITS])
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
