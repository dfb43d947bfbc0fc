"""Data sets in BEIR's layout, small enough for tests."""

from collections.abc import Mapping
import json
import pathlib
import random
from typing import NamedTuple

import tiny_run


class TinySet(NamedTuple):
  """Texts by id, and grades by query id and passage id."""

  corpus: Mapping[str, str]
  queries: Mapping[str, str]
  qrels: Mapping[str, Mapping[str, int]]

  def write(self, folder: pathlib.Path, split: str = 'test') -> 'TinySet':
    """Writes corpus.jsonl, queries.jsonl and qrels/<split>.tsv."""
    (folder / 'qrels').mkdir(parents=True)
    for name in ('corpus', 'queries'):
      rows = getattr(self, name).items()
      (folder / f'{name}.jsonl').write_text(
          ''.join(json.dumps({'_id': i, 'text': t}) + '\n' for i, t in rows)
      )
    lines = ['query-id\tcorpus-id\tscore']
    lines += [
        f'{query}\t{passage}\t{grade}'
        for query, grades in self.qrels.items()
        for passage, grade in grades.items()
    ]
    (folder / 'qrels' / f'{split}.tsv').write_text('\n'.join(lines) + '\n')
    return self


def make(seed: int, passages: int = 12, queries: int = 4) -> TinySet:
  """Random words; grades of -1 to 2; each query has a relevant passage.

  Some passages have one text, so that their scores tie.
  """
  rng = random.Random(seed)
  texts = [' '.join(rng.sample(tiny_run.WORDS, 6)) for _ in range(passages)]
  copies = passages // 4
  texts[-copies:] = texts[:copies]
  corpus = {f'd{i}': text for i, text in enumerate(texts)}
  asked = {
      f'q{i}': ' '.join(rng.sample(tiny_run.WORDS, 3)) for i in range(queries)
  }
  qrels = {}
  for query in asked:
    judged = rng.sample(sorted(corpus), 4)
    qrels[query] = dict(zip(judged, (rng.choice([1, 2]), 0, -1, 1)))
  return TinySet(corpus, asked, qrels)


def make_large() -> TinySet:
  """More than the 100 hits that metrics need; query 'none' counts for none."""
  tiny = make(0, passages=130, queries=45)
  tiny.queries['none'] = 'xml'
  tiny.qrels['none'] = {'d3': 0}
  return tiny
