"""Times metrics from arrays to means, beside pytrec_eval given dictionaries.

The two take turns in one process, on made-up hits: about 1.07 relevant
passages a query, of which 30% are not found. Run files of the same hits are
written and read once. See benchmarks/README.md.
"""

import argparse
import json
import pathlib
import statistics
import tempfile
from typing import Any

import harness
import numpy as np
import pytrec_eval

from dualenc_jax.evaluation import metrics, trec
from dualenc_jax.retrieval.search.ranking import Ranking

# Our names, and pytrec_eval's of measures and of their results.
_NAMES = {
    'P@1': ('P.1', 'P_1'),
    'MRR': ('recip_rank', 'recip_rank'),
    'nDCG@10': ('ndcg_cut.10', 'ndcg_cut_10'),
    'MAP': ('map', 'map'),
    **{
        f'Recall@{k}': (f'recall.{k}', f'recall_{k}')
        for k in (1, 10, 100, 1000)
    },
}


class Work:
  """Hits, and grades of passages by query and row; negative rows for none."""

  def __init__(self, args: argparse.Namespace):
    rng = np.random.default_rng(0)
    shape = args.queries, args.hits
    self.corpus = args.passages
    # Rows of a query do not repeat: they ascend by steps, modulo N.
    steps = rng.integers(1, args.passages // args.hits, shape)
    rows = rng.integers(0, args.passages, (args.queries, 1))
    rows = (rows + np.cumsum(steps, axis=1)) % args.passages
    rows = rng.permuted(rows, axis=1)
    scores = -np.sort(-rng.random(shape, np.float32), axis=1)
    self.ranking = Ranking(scores, rows)
    self.judgements, ranks = [], []
    for row in rows:
      found = rng.random(1 + (rng.random() < 0.07)) < 0.7
      places = (args.hits ** rng.random(len(found))).astype(int)
      self.judgements.append({
          int(row[place - 1]) if hit else -1 - i: 1
          for i, (place, hit) in enumerate(zip(places, found))
      })
      ranks.append(min(places[found], default=0))
    self.ranks = np.array(ranks)

  def ours(self) -> dict[str, float]:
    """Means by name."""
    return metrics.score(
        self.ranking, self.judgements, self.corpus, self.ranks
    ).means()

  def run(self) -> dict[str, dict[str, float]]:
    """The hits as pytrec_eval wants them."""
    ids = self.ranking.indices.astype(str)
    return {
        str(q): dict(zip(ids[q].tolist(), scores.tolist()))
        for q, scores in enumerate(self.ranking.scores)
    }

  def qrels(self) -> dict[str, dict[str, int]]:
    return {
        str(q): {str(row): grade for row, grade in judged.items()}
        for q, judged in enumerate(self.judgements)
    }

  def theirs(self) -> dict[str, float]:
    """Means by name; MRR@10 needs a second pass over runs of ten hits."""
    run, qrels = self.run(), self.qrels()
    measures = {measure for measure, _ in _NAMES.values()}
    rows = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)
    ten = {q: dict(list(hits.items())[:10]) for q, hits in run.items()}
    first = pytrec_eval.RelevanceEvaluator(qrels, {'recip_rank'}).evaluate(ten)
    means = {ours: _mean(rows, name) for ours, (_, name) in _NAMES.items()}
    return means | {'MRR@10': _mean(first, 'recip_rank')}


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--queries', type=int, default=7000)
  parser.add_argument('--hits', type=int, default=1000, help='of a query')
  parser.add_argument('--passages', type=int, default=1_000_000)
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--work_dir', help='for run files; a temporary one else')
  args = parser.parse_args()
  work = Work(args)
  means, theirs = work.ours(), work.theirs()
  for name, value in means.items():
    print(f'{name:<12} {value:.6f}')
    np.testing.assert_allclose(value, theirs[name], rtol=1e-12)
  times = {'dualenc_jax': [], 'pytrec_eval': []}
  for _ in range(args.rounds):
    times['dualenc_jax'].append(harness.seconds(work.ours))
    times['pytrec_eval'].append(harness.seconds(work.theirs))
  times |= _files(work, args.work_dir)
  for name, seconds in times.items():
    print(
        f'{name:24} {statistics.median(seconds):6.2f} s'
        f' ({min(seconds):.2f} to {max(seconds):.2f})'
    )
  print(json.dumps({'flags': vars(args), 'seconds': times, 'means': means}))


def _files(work: Work, work_dir: str | None) -> dict[str, list[float]]:
  """Seconds of writing, reading and evaluating a run file."""
  with tempfile.TemporaryDirectory(dir=work_dir) as folder:
    path = pathlib.Path(folder) / 'run.trec'
    query_ids = [str(q) for q in range(len(work.judgements))]
    passage_ids = [str(row) for row in range(work.corpus)]
    run: dict[str, Any] = {}
    return {
        'run file written': [
            harness.seconds(
                lambda: trec.write_run(
                    path, work.ranking, query_ids, passage_ids
                )
            )
        ],
        'run file read': [
            harness.seconds(lambda: run.update(trec.read_run(path)))
        ],
        'run file evaluated': [
            harness.seconds(lambda: metrics.evaluate_run(run, work.qrels()))
        ],
    }


def _mean(rows: dict[str, dict[str, float]], name: str) -> float:
  return sum(row[name] for row in rows.values()) / len(rows)


if __name__ == '__main__':
  main()
