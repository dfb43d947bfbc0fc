"""A training set, a run over it and a teacher's scores, to mine and label."""

import json
import pathlib
from typing import NamedTuple

import numpy as np
import tiny_beir

QUERIES, PASSAGES = 8, 24


class MiningSet(NamedTuple):
  """The last six passages repeat texts of the first; the run has ties."""

  folder: pathlib.Path
  made: tiny_beir.TinySet
  run: dict[str, dict[str, float]]
  scores: dict[str, dict[str, float]]

  def gold(self, query):
    grades = self.made.qrels[query]
    return [p for p in self.made.corpus if grades.get(p, 0) > 0]

  def pool(self, query, gold, run=None):
    """Candidates by rank, without the texts of `gold`, each text once."""
    hits = (run or self.run)[query]
    texts, found = {self.made.corpus[p] for p in gold}, {}
    # Ties as trec_eval has them.
    order = sorted(hits, key=lambda p: (np.float32(hits[p]), p), reverse=True)
    for rank, passage in enumerate(order, start=1):
      if self.made.corpus[passage] not in texts:
        texts.add(self.made.corpus[passage])
        found[rank] = passage
    return found

  def flags(self, output, *more):
    return [
        '--tasks=beir', f'--gin.BEIR_FOLDER={self.folder / "beir"}',
        f'--output_dir={output}', *more,
    ]


def make(folder):
  made = tiny_beir.make(5, passages=PASSAGES, queries=QUERIES)
  made.write(folder / 'beir', 'train')
  rng = np.random.default_rng(0)
  run, scores = {}, {}
  for query in made.queries:
    names = rng.permutation(sorted(made.corpus))[: rng.integers(9, PASSAGES)]
    own = np.round(rng.normal(size=len(names)), 1)
    run[query] = dict(zip(names.tolist(), own.tolist()))
    scores[query] = {p: round(3 * rng.normal(), 3) for p in made.corpus}
  write_run(folder / 'run.trec', run)
  write_scores(folder / 'scores.tsv', scores)
  return MiningSet(folder, made, run, scores)


def write_run(path, run):
  path.write_text(''.join(
      f'{query} Q0 {name} 0 {score} x\n'
      for query, hits in run.items()
      for name, score in hits.items()
  ))


def write_scores(path, scores):
  path.write_text(''.join(
      f'{q}\t{p}\t{float(score)!r}\n'
      for q, own in scores.items()
      for p, score in own.items()
  ))
  return path


def read(path, key='query_id'):
  rows = map(json.loads, path.read_text().splitlines())
  return {row[key]: row for row in rows}
