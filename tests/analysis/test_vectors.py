"""Vectors of a sample: the right rows, best hits, bad vectors."""

import re

import numpy as np
import pytest
import toy_set

from dualenc_jax.evaluation.analysis import embedding_space, vectors
from dualenc_jax.utils.errors import UserError


@pytest.fixture
def embeddings():
  return (
      toy_set.unit_vectors(toy_set.QUERIES, seed=1),
      toy_set.unit_vectors(toy_set.PASSAGES, seed=2),
  )


def best_cosine(sample, embeddings, position):
  """That of a query with any passage, in plain loops."""
  queries, passages = (x.astype(np.float64) for x in embeddings)
  query, own = sample.queries[position], sample.retrieval_set.self_hits
  return max(
      queries[query] @ passages[p]
      for p in range(toy_set.PASSAGES)
      if own is None or p != own[query]
  )


@pytest.mark.parametrize('self_hits', [np.arange(toy_set.QUERIES) + 5, None])
def test_rows_and_best_hits(embeddings, self_hits):
  retrieval_set = toy_set.toy_set(self_hits=self_hits)
  if self_hits is not None:
    for query, judged in enumerate(retrieval_set.judgements):
      judged.pop(query + 5, None)
  sample = vectors.draw(retrieval_set, 20)
  found = toy_set.embed(sample, *embeddings)
  queries, passages = embeddings
  for rows, expected in (
      (found.queries, queries[sample.queries]),
      (found.passages, passages[sample.passages]),
      (found.positives, passages[sample.pair_passages]),
  ):
    np.testing.assert_allclose(rows, expected, atol=1e-6)
  for i in range(20):
    expected = best_cosine(sample, embeddings, i)
    assert found.top_cosines[i] == pytest.approx(expected, abs=1e-6)


def test_vectors_in_half_precision_become_unit_vectors(embeddings):
  sample = vectors.draw(toy_set.toy_set(), 20)
  queries, passages = embeddings
  # Lengths of half precision's rounding, made large enough to see.
  stored = (passages * np.linspace(0.9, 1.1, len(passages))[:, None]).astype(
      np.float16
  )
  found = toy_set.embed(sample, queries, stored)
  assert found.passages.dtype == np.float32
  lengths = np.linalg.norm(found.passages, axis=1)
  np.testing.assert_allclose(lengths, 1, rtol=1e-6)
  np.testing.assert_allclose(
      found.passages, passages[sample.passages], atol=1e-3
  )
  halves = stored.astype(np.float64)
  for i, query in enumerate(queries[sample.queries].astype(np.float64)):
    best = halves[np.argmax(halves @ query)]
    cosine = best @ query / np.linalg.norm(best) / np.linalg.norm(query)
    assert found.top_cosines[i] == pytest.approx(cosine, abs=1e-6)


def test_positives_beside_what_is_retrieved_with_them(embeddings):
  """Figure 4 of PAIR, by plain loops."""
  retrieved = 7
  sample = vectors.draw(toy_set.toy_set(), 1000, seed=3)
  found = toy_set.embed(sample, *embeddings, retrieved=retrieved)
  queries, passages = (x.astype(np.float64) for x in embeddings)
  to_query, to_negatives = [], []
  for place, passage in zip(sample.pair_queries, sample.pair_passages):
    query = sample.queries[place]
    best = np.argsort(-passages @ queries[query])[:retrieved]
    negatives = [i for i in best if i not in (query, 30 + query % 10)]
    to_query.append(passages[passage] @ queries[query])
    to_negatives.append(np.mean(passages[negatives] @ passages[passage]))
  numbers = embedding_space.measure(found, sample)
  for name, expected in (('query', to_query), ('negative', to_negatives)):
    value = numbers[f'positive_{name}_cosine']
    assert value == pytest.approx(np.mean(expected), abs=1e-6)


def test_vectors_that_are_no_directions_are_named(embeddings):
  sample = vectors.draw(toy_set.toy_set(), 1000)
  queries, passages = embeddings
  passages[[3, 8, 21, 33]] = np.nan
  with pytest.raises(UserError, match='Model one, passages: ') as error:
    toy_set.embed(sample, *embeddings)
  named = {*re.findall(r"'(p\d+)'", str(error.value))}
  assert named == {'p3', 'p8', 'p21', 'p33'}
  queries[5] = 0
  with pytest.raises(UserError, match="Model one, queries: .* 'q5' .* zero"):
    toy_set.embed(sample, *embeddings)
