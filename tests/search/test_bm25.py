"""BM25 against its formula, and against its known strength on SciFact."""

import json
import math

import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.evaluation import metrics
from dualenc_jax.search import bm25


@pytest.mark.parametrize(
    'text, expected',
    [
        ('Parse the DATE.', ['parse', 'the', 'date']),
        ('read_csv(path)', ['read', 'csv', 'read_csv', 'path']),
        ('parseDate', ['parse', 'date', 'parsedate']),
        ('HTTPServer', ['http', 'server', 'httpserver']),
        ('ISO8601', ['iso', '8601', 'iso8601']),
        ('__init__ _x', ['init', 'x']),
        ('naïve café Straße', ['naïve', 'café', 'straße']),
        ('__ -- ...', []),
    ],
)
def test_words(text, expected):
  assert bm25.words(text) == expected


def test_stop_words_go_also_as_parts():
  assert bm25.words('is_open the', frozenset({'is', 'the'})) == [
      'open',
      'is_open',
  ]


def test_scores_follow_the_formula():
  passages = ['cat sat mat', 'dog sat', 'cat cat cat bird worm tree']
  lengths, average = [3, 2, 6], 11 / 3

  def score(counts, containing):
    # Robertson's saturation with Lucene's idf.
    idf = math.log(1 + (3 - containing + 0.5) / (containing + 0.5))
    return [
        idf * n / (n + 1.5 * (0.25 + 0.75 * length / average))
        for n, length in zip(counts, lengths)
    ]

  cat, dog = score([1, 0, 3], 2), score([0, 1, 0], 1)
  totals = [c + d for c, d in zip(cat, dog)]
  hits = bm25.bm25_rank(['the Cat, dog unknown'], passages, ['x', 'y', 'z'], 9)
  order = sorted(range(3), key=lambda i: -totals[i])
  assert hits.indices.tolist() == [order]
  assert hits.scores[0] == pytest.approx(sorted(totals)[::-1], rel=1e-6)


def test_ties_and_queries_without_a_known_word():
  passages = ['red fox', 'blue fox', 'red fox', 'red fox', 'sea']
  ids = ['b', 'x', 'a', 'c', 'y']
  hits = bm25.bm25_rank(['red', '', 'the', 'unknown'], passages, ids, 2)
  # Equal passages by id, greatest first, also where k cuts the tie.
  assert hits.indices[0].tolist() == [3, 0]
  assert hits.indices[1:].tolist() == [[4, 1]] * 3
  assert hits.scores[1:].tolist() == [[0.0, 0.0]] * 3


def test_nothing_is_printed(capfd):
  bm25.bm25_rank(['fox'], ['red fox', 'sea'], ['a', 'b'], 1)
  assert capfd.readouterr() == ('', '')


@pytest.mark.parametrize(
    'queries, passages, ids, k, message',
    [
        (['q'], ['p'], ['a'], 0, 'k is 0'),
        ([], ['p'], ['a'], 1, 'no queries'),
        (['q'], [], [], 1, 'corpus is empty'),
        (['q'], ['the', '...'], ['a', 'b'], 1, 'no passage holds a word'),
    ],
)
def test_bad_input(queries, passages, ids, k, message):
  with pytest.raises(UserError, match=message):
    bm25.bm25_rank(queries, passages, ids, k)


def test_scifact(shared):
  folder = shared / 'data' / 'scifact'

  def rows(name):
    with open(folder / name, encoding='utf-8') as f:
      return [json.loads(line) for line in f]

  qrels = {}
  with open(folder / 'qrels' / 'test.tsv', encoding='utf-8') as f:
    next(f)
    for line in f:
      query_id, passage_id, grade = line.split()
      qrels.setdefault(query_id, {})[passage_id] = int(grade)
  corpus = rows('corpus.jsonl')
  queries = [row for row in rows('queries.jsonl') if row['_id'] in qrels]
  ids = [row['_id'] for row in corpus]
  hits = bm25.bm25_rank(
      [row['text'] for row in queries],
      [f'{row["title"]} {row["text"]}' for row in corpus],
      ids,
      len(corpus),
  )
  row_of = {passage_id: row for row, passage_id in enumerate(ids)}
  judgements = [
      {row_of[p]: grade for p, grade in qrels[row['_id']].items()}
      for row in queries
  ]
  found = metrics.score(hits, judgements, len(ids)).means()
  # BEIR's own BM25 has 0.665 here.
  assert 0.65 < found['nDCG@10'] < 0.70
