"""A TREC run re-ranked by a teacher's scores, measured before and after."""

from collections.abc import Mapping
import dataclasses
import hashlib
import logging
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.evaluation import metrics, teacher_scores, trec
from dualenc_jax.evaluation.metrics import Scores
from dualenc_jax.evaluation.results import evaluate
from dualenc_jax.evaluation.results.result_files import (
  METRICS,
  PER_QUERY,
  RUN,
  write_per_query,
)
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval.search.ranking import sort_hits
from dualenc_jax.utils import files, json_file

# The folder in the result folder with the original run.
BEFORE = 'before'
# Facts that identify a result.
_OWN = 'label', 'split', 'source', 'corpus', 'run_sha256', 'teacher'
_LOG = logging.getLogger(__name__)


def rerank_run(
    experiment: Any, split: str, path: pathlib.Path, folder: pathlib.Path,
    command: str, options: evaluate.Options, host: Host = Host(),
    overwrite: bool = False,
) -> tuple[Scores, Scores]:
  """Re-ranks a run and writes the result folder, and that of the run itself.

  `experiment` needs only a task and caches; the run is of their split. Returns
  the metrics before and after.

  Raises:
    WorkRemaining: see `teacher_scores.open_scores`.
    UserError: the run has unknown queries or passages, scores are missing or
      not finite, or the folder has the results of another run, task or teacher
      and `overwrite` is not given.
  """
  ranked = dataclasses.replace(
      RetrievalSet.of_split(experiment, split),
      relevance_level=options.relevance_level,
  )
  run = trec.read_run(path)
  queries, passages = trec.numbers(
      run, ranked.query_ids, ranked.ranked_ids, path
  )
  order = {query: sort_hits(hits) for query, hits in run.items()}
  depth = options.rerank_depth
  if short := sum(len(hits) < depth for hits in order.values()):
    _LOG.warning(
        '%s: %s of its %s queries have fewer than %d hits: all they have are'
        ' re-ranked.',
        path, f'{short:,}', f'{len(order):,}', depth,
    )
  files.make_folder(folder, 'another --output_dir')
  facts = evaluate.facts_of(experiment, split, ranked, options)
  # Runs of many systems are called run.trec.
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  facts |= {'command': command, 'run': path.name, 'run_sha256': digest}
  of_teacher = evaluate.rerank_facts(options)
  if not overwrite:
    now = {name: (facts | of_teacher)[name] for name in _OWN}
    json_file.check_own(folder, METRICS, [RUN], now, dict)
  score = teacher_scores.open_scores(options.teacher, ranked, folder, host)
  assert score is not None
  pairs = [
      (queries[query], passages[hit])
      for query, hits in order.items()
      for hit in hits[:depth]
  ]
  scores = iter(score(np.array(pairs, np.int64).reshape(-1, 2)).tolist())
  new = {}
  for query, hits in order.items():
    best = {hit: next(scores) for hit in hits[:depth]}
    lowest = min(best.values())
    below = {hit: lowest - i for i, hit in enumerate(hits[depth:], start=1)}
    new[query] = best | below
  before = _write(folder / BEFORE, run, ranked, options.k, facts)
  facts |= of_teacher
  return before, _write(folder, new, ranked, options.k, facts)


def _write(
    folder: pathlib.Path, run: trec.Run, ranked: RetrievalSet, k: int,
    facts: Mapping[str, Any],
) -> Scores:
  """Writes run.trec, per_query.tsv and metrics.json."""
  ids = ranked.ranked_ids
  qrels = {
      # Judged passages that are not in the corpus count as not found.
      trec.field(query): {
          trec.field(str(ids[p])) if p >= 0 else f'absent {p}': grade
          for p, grade in judged.items()
      }
      for query, judged in zip(ranked.query_ids, ranked.judgements)
  }
  cut = {
      query: {hit: hits[hit] for hit in sort_hits(hits)[:k]}
      for query, hits in run.items()
  }
  scores = metrics.evaluate_run(
      cut, qrels, str(folder), ranked.relevance_level
  )
  files.make_folder(folder, 'another --output_dir')
  lines = [
      f'{query} Q0 {hit} {rank} {np.float32(score):.9g} dualenc\n'
      for query, hits in cut.items()
      for rank, (hit, score) in enumerate(hits.items(), start=1)
  ]
  files.write(folder / RUN, ''.join(lines))
  write_per_query(folder / PER_QUERY, list(scores.queries), scores.values)
  value = {
      'metrics': scores.means(),
      'queries_counted': len(scores.queries),
      **facts,
      'depth': scores.depth,
  }
  files.write_json(folder / METRICS, value)
  return scores
