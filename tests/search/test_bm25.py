"""BM25 against its formula, written again in float64, and on SciFact."""

import json
import math

import numpy as np
import pytest

from dualenc_jax.evaluation import metrics, trec
from dualenc_jax.retrieval.search import bm25
from dualenc_jax.retrieval.search.bm25 import BM25
from dualenc_jax.utils.errors import UserError


@pytest.mark.parametrize('text, expected', [
    ('Parse the DATE.', ['parse', 'the', 'date']),
    ('read_csv(path)', ['read', 'csv', 'read_csv', 'path']),
    ('parseDate', ['parse', 'date', 'parsedate']),
    ('HTTPServer', ['http', 'server', 'httpserver']),
    ('ISO8601', ['iso', '8601', 'iso8601']),
    ('__init__ _x', ['init', 'x']),
    ('naïve café Straße', ['naïve', 'café', 'strasse']),
    ('__ -- ...', []),
    ('किताब क्\u200dषमा हिन्दी', ['किताब', 'क्षमा', 'हिन्दी']),
    ('cafe\u0301 ﬁn Intel™ O´Neil', ['café', 'fin', 'intel', 'o', 'neil']),
    ('co\xadop l’air п\u02bcять', ['coop', 'l', 'air', 'п', 'ять']),
    ('北京大学, 猫 HTML手机', ['北京', '京大', '大学', '猫', 'html', '手机']),
    ('ﾃﾞｰﾀの 葛\U000e0100飾', ['デー', 'ータ', 'タの', '葛飾']),
    ('ภาษา ดื่ม a\u200bb', ['ภา', 'าษ', 'ษา', 'ดื่ม', 'a', 'b']),
    ('ភាសា မြန်မာ 한국은', ['ភាសា', 'မြန်', 'န်မာ', '한국', '국은']),
    ('كِتَابٌ مـن שָׁלוֹם ٢٤', ['كتاب', 'من', 'שלום', '24']),
    ('می\u200cخواهم ΟΔΟΣ İz', ['میخواهم', 'οδοσ', 'iz']),
])
def test_words(text, expected):
  assert bm25.split_words(text) == expected


def test_stop_words_go_also_as_parts_and_words_are_cut():
  assert bm25.split_words('is_open the', 'english') == ['open', 'is_open']
  assert bm25.split_words('Running dates', 'english') == ['run', 'date']
  assert bm25.split_words('die Häuser', 'german') == ['haus']
  assert bm25.split_words('ISPARTA İz', 'turkish') == ['ıspar', 'iz']
  assert bm25.split_words('l’homme', 'french') == ['homm']
  # No list of stop words, but a stemmer.
  assert bm25.split_words('kutyák', 'hungarian') == ['kutya']


PASSAGES = ['cat sat mats', 'dog sat', 'cat cats Cat bird worm tree', 'the']


@pytest.mark.parametrize('k1, b', [(1.5, 0.75), (0.9, 0.4), (0.0, 0.0)])
def test_scores_follow_the_formula(k1, b):
  texts = [['cat', 'sat', 'mat'], ['dog', 'sat'], [*['cat'] * 3, *'xyz'], []]
  average = sum(map(len, texts)) / len(texts)

  def score(text):
    total = 0.0
    for word in ('cat', 'dog'):
      n = sum(word in other for other in texts)
      # Robertson's saturation with Lucene's idf.
      idf = math.log(1 + (len(texts) - n + 0.5) / (n + 0.5))
      tf = text.count(word)
      length = 1 - b + b * len(text) / average
      total += idf * tf / (tf + k1 * length) if tf else 0.0
    return total

  expected = [score(text) for text in texts]
  found = BM25(PASSAGES, k1, b).scores('the Cats, dogs unknown')
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_ties_and_queries_without_a_known_word():
  passages = ['red fox', 'blue fox', 'red fox', 'red fox', 'sea']
  ids = ['b', 'x', 'a', 'c', 'y']
  hits = BM25(passages).rank(['red', '', 'the', 'unknown'], ids, 2)
  # Equal passages by id, greatest first, also where k cuts the tie.
  assert hits.indices[0].tolist() == [3, 0]
  # What has no word of the query is not retrieved.
  assert hits.indices[1:].tolist() == [[-1, -1]] * 3
  assert hits.scores[1:].tolist() == [[-np.inf, -np.inf]] * 3


@pytest.mark.parametrize('passages, k, values, message', [
    (['p'], 0, {}, 'k is 0'),
    ([], 1, {}, 'no passage holds a word'),
    (['p'], 1, dict(k1=-1), 'k1 is -1'),
    (['p'], 1, dict(language='englisch'), "for 'englisch'.*'english'"),
])
def test_bad_input(passages, k, values, message):
  with pytest.raises(UserError, match=message):
    BM25(passages, **values).rank(['q'], ['a', 'b'], k)


def test_scifact(shared):
  folder = shared / 'data' / 'scifact'

  def rows(name):
    return list(map(json.loads, (folder / name).open(encoding='utf-8')))

  qrels = trec.read_qrels(folder / 'qrels' / 'test.tsv')
  corpus = rows('corpus.jsonl')
  queries = [row for row in rows('queries.jsonl') if row['_id'] in qrels]
  ids = [row['_id'] for row in corpus]
  passages = [f'{row["title"]} {row["text"]}' for row in corpus]
  hits = BM25(passages).rank([row['text'] for row in queries], ids, 100)
  row_of = {passage_id: row for row, passage_id in enumerate(ids)}
  judgements = [
      {row_of[p]: grade for p, grade in qrels[row['_id']].items()}
      for row in queries
  ]
  found = metrics.score(hits, judgements, len(ids)).means()
  # BEIR's own BM25, of title and text as two fields, has 0.665 here.
  assert found['nDCG@10'] == pytest.approx(0.6963, abs=5e-5)
