"""Vectors of a sample: the right rows, best hits, ranks, and bad vectors."""

import re

import numpy as np
import pytest
import toy_set

from dualenc_jax.analysis import sample as sample_lib, vectors as vectors_lib
from dualenc_jax.errors import UserError


@pytest.fixture
def embeddings():
  return (
      toy_set.unit_vectors(toy_set.QUERIES, seed=1),
      toy_set.unit_vectors(toy_set.PASSAGES, seed=2),
  )


def embed(sample, embeddings, **more):
  queries, passages = embeddings
  embedder = toy_set.ToyEmbedder(queries)
  encoded = passages[sample.searched]
  return vectors_lib.embed('a', embedder, None, sample, encoded, **more)


def best_and_rank(sample, embeddings, position):
  """Of a query, in plain loops: its best cosine, and the rank of its gold."""
  queries, passages = (x.astype(np.float64) for x in embeddings)
  query = sample.queries[position]
  own = sample.retrieval_set.self_hits
  searched = [
      p for p in sample.searched if own is None or p != own[query]
  ]
  cosines = {p: queries[query] @ passages[p] for p in searched}
  gold = [cosines[p] for p in sample.gold[position] if p in cosines]
  rank = sum(c > max(gold) for c in cosines.values()) + 1 if gold else 0
  return max(cosines.values()), rank


@pytest.mark.parametrize('max_passages', [None, 12])
@pytest.mark.parametrize('self_hits', [None, np.arange(toy_set.QUERIES) + 1])
def test_rows_best_hits_and_ranks(embeddings, max_passages, self_hits):
  sample = sample_lib.draw(
      toy_set.toy_set(self_hits=self_hits), 20, max_passages=max_passages
  )
  found = embed(sample, embeddings, ranked=15)
  queries, passages = embeddings
  np.testing.assert_allclose(found.queries, queries[sample.queries], atol=1e-6)
  np.testing.assert_allclose(
      found.passages, passages[sample.passages], atol=1e-6
  )
  np.testing.assert_allclose(
      found.positives, passages[sample.pair_passages], atol=1e-6
  )
  assert found.ranks.shape == (15,)
  for i in range(20):
    best, rank = best_and_rank(sample, embeddings, i)
    assert found.top_cosines[i] == pytest.approx(best, abs=1e-6)
    assert i >= 15 or found.ranks[i] == rank


def test_vectors_of_half_precision_become_unit_vectors(embeddings):
  sample = sample_lib.draw(toy_set.toy_set(), 20)
  queries, passages = embeddings
  found = embed(sample, (queries, passages.astype(np.float16)))
  assert found.passages.dtype == np.float32
  np.testing.assert_allclose(
      np.linalg.norm(found.passages, axis=1), 1, rtol=1e-6
  )
  np.testing.assert_allclose(
      found.passages, passages[sample.passages], atol=1e-3
  )


def test_best_hits_in_half_precision_have_cosines(embeddings):
  sample = sample_lib.draw(toy_set.toy_set(), 20)
  queries, passages = embeddings
  # Lengths of half precision's rounding, made large enough to see.
  stored = (passages * np.linspace(0.9, 1.1, len(passages))[:, None]).astype(
      np.float16
  )
  found = embed(sample, (queries, stored))
  halves = stored.astype(np.float64)
  for i, query in enumerate(queries[sample.queries].astype(np.float64)):
    best = halves[np.argmax(halves @ query)]
    cosine = best @ query / np.linalg.norm(best) / np.linalg.norm(query)
    assert found.top_cosines[i] == pytest.approx(cosine, abs=1e-6)


def test_vectors_that_are_no_directions_are_named(embeddings):
  sample = sample_lib.draw(toy_set.toy_set(), 1000)
  queries, passages = embeddings
  passages[[3, 8, 21, 33]] = np.nan
  with pytest.raises(UserError) as error:
    embed(sample, embeddings)
  assert 'Model a, passages: the vectors of ' in str(error.value)
  named = set(re.findall(r"'(p\d+)'", str(error.value)))
  assert named == {'p3', 'p8', 'p21', 'p33'}
  queries[5] = 0
  with pytest.raises(UserError, match="Model a, queries: .* 'q5' .* zero"):
    embed(sample, embeddings)
