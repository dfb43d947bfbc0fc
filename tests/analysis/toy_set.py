"""A retrieval set in memory, whose vectors are given: 30 queries, 40 passages.

Query i has the relevant passages i and 30 + i % 10; query 29 has none.
"""

import types

import numpy as np

from dualenc_jax.data import Vocabulary
from dualenc_jax.data.corpus import Corpus
from dualenc_jax.data.text.ragged import fingerprints, Ragged
from dualenc_jax.evaluation.analysis import vectors as vectors_lib
from dualenc_jax.evaluation.analysis.embedding_space import Analysis
from dualenc_jax.evaluation.retrieval_set import RetrievalSet

QUERIES, PASSAGES, DIM = 30, 40, 16


class ToyEmbedder:
  """Gives the query of row i the vector i."""

  def __init__(self, vectors):
    self._vectors = vectors

  def queries(self, params, tokens, rows):
    del params, tokens
    return self._vectors[rows]


def unit_vectors(count, seed=0, dim=DIM):
  """Random directions: float32 [count, dim]."""
  vectors = np.random.default_rng(seed).normal(size=(count, dim))
  return (vectors / np.linalg.norm(vectors, axis=1)[:, None]).astype('float32')


def toy_set(queries=QUERIES, passages=PASSAGES, judged=True, self_hits=None):
  """The set, with ids q0, q1, ... and p0, p1, ..."""
  vocabulary = Vocabulary('python_code_8k')
  texts = {
      'query': [f'find the row {i} of it' for i in range(queries)],
      'passage': ['row ' * (i + 1) for i in range(passages)],
  }
  columns = {}
  for side, rows in texts.items():
    tokens = vocabulary.encode(rows, 16, 1)
    ids = [f'{side[0]}{i}' for i in range(len(rows))]
    columns[f'{side}_ids'] = Ragged.from_texts(ids)
    columns[f'{side}_texts'] = Ragged.from_texts(rows)
    columns[f'{side}_tokens'] = tokens
    columns[f'{side}_fingerprints'] = fingerprints(tokens)
  cache = types.SimpleNamespace(
      header={'task': 'toy', 'split': 'test', 'source': '0'}, **columns
  )
  judgements = [
      {5: 0, i: 1, 30 + i % 10: 2} if judged and i < 29 else {}
      for i in range(queries)
  ]
  return RetrievalSet(
      cache,
      np.arange(queries),
      [f'q{i}' for i in range(queries)],
      Corpus(cache, np.arange(passages)),
      judgements,
      [[] for _ in range(queries)],
      self_hits=self_hits,
  )


def analysed(name, step, sample, seed=0):
  """The analysis of a model whose vectors are random."""
  vectors = embed(
      sample, unit_vectors(QUERIES, seed), unit_vectors(PASSAGES, seed + 1)
  )
  return of_vectors(name, step, sample, vectors)


def embed(sample, queries, passages, **more):
  return vectors_lib.embed(
      'one', ToyEmbedder(queries), None, sample, passages, **more
  )


def of_vectors(name, step, sample, vectors):
  """An analysis without numbers."""
  data = {'label': 'toy', 'split': 'test'}
  facts = {
      'name': name, 'data': data, 'provenance': {'checkpoint_step': step},
      'sample': sample, 'vectors': vectors, 'numbers': {},
  }
  return Analysis(**facts)
