"""MRR over dims, against float64 NumPy."""

from matplotlib.figure import Figure as Canvas
import numpy as np
import pytest
import toy_set

from dualenc_jax.analysis import (
  dims,
  numbers as numbers_lib,
  sample as sample_lib,
  vectors as vectors_lib,
)
from dualenc_jax.analysis.dims import FirstComponents
from dualenc_jax.analysis.sample import Setting

DIMS = (16, 9, 1)


def expected(sample, queries, passages, dim, self_hits=None):
  """The mean over queries with a relevant passage of 1 / rank, by loops."""

  def first(vectors):
    cut = vectors[:, :dim].astype(np.float64)
    return cut / np.linalg.norm(cut, axis=1, keepdims=True)

  values = []
  for place, query in enumerate(sample.queries.tolist()):
    gold = [i for i, row in enumerate(sample.searched)
            if row in sample.gold[place]]
    if not gold:
      continue
    scores = (first(queries)[query] @ first(passages).T).astype(np.float32)
    ranked = [
        i for i, row in enumerate(sample.searched)
        if self_hits is None or row != self_hits[query]
    ]
    # Equal scores: the greatest id comes first.
    ranked.sort(key=lambda i: (scores[i], f'p{sample.searched[i]}'))
    values.append(1 / (1 + min(ranked[::-1].index(i) for i in gold)))
  return np.mean(values)


@pytest.mark.parametrize('with_self_hits', [False, True])
def test_mrr_is_that_of_vectors_cut_by_hand(with_self_hits):
  # Query i is passage i + 5.
  self_hits = np.arange(30) + 5 if with_self_hits else None
  retrieval_set = toy_set.toy_set(self_hits=self_hits)
  if with_self_hits:
    for query, judged in enumerate(retrieval_set.judgements):
      judged.pop(query + 5, None)
  sample = sample_lib.draw(retrieval_set, 1000, seed=3)
  queries = toy_set.unit_vectors(toy_set.QUERIES, 0)
  passages = toy_set.unit_vectors(toy_set.PASSAGES, 1)
  vectors = vectors_lib.embed(
      'one', toy_set.ToyEmbedder(queries), None, sample, passages, dims=DIMS
  )
  assert tuple(vectors.mrr) == DIMS
  for dim, found in vectors.mrr.items():
    want = expected(sample, queries, passages, dim, self_hits)
    assert found == pytest.approx(want, rel=1e-12)
  numbers = numbers_lib.numbers(vectors, sample)
  assert {n for n in numbers if n.startswith('mrr')} == {
      f'mrr_dim_{dim}' for dim in DIMS
  }


def test_without_judgements_there_is_none():
  sample = sample_lib.draw(toy_set.toy_set(judged=False), 1000)
  vectors = vectors_lib.embed(
      'one',
      toy_set.ToyEmbedder(toy_set.unit_vectors(toy_set.QUERIES)),
      None,
      sample,
      toy_set.unit_vectors(toy_set.PASSAGES, 1),
      dims=DIMS,
  )
  assert vectors.mrr == {}


def test_a_store_is_cut_as_it_is_read():
  rows = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float16)
  rows[4, :3] = 0
  store = FirstComponents(rows, 3)
  assert (store.shape, len(store), store.dtype) == ((6, 3), 6, np.float32)
  cut = rows[:, :3].astype(np.float64)
  norms = np.linalg.norm(cut, axis=1, keepdims=True)
  want = np.divide(cut, norms, out=np.zeros_like(cut), where=norms > 0)
  for key in (slice(1, 5), np.array([5, 0, 4])):
    assert store[key].dtype == np.float32
    np.testing.assert_allclose(store[key], want[key], atol=1e-7)


def test_dims_by_default():
  assert dims.default_dims(768) == [768, 384, 192, 96, 48, 24]
  assert dims.default_dims(36, (36, 30)) == [36, 30, 18, 9]
  assert dims.default_dims(4) == [4]


def test_the_figure_tells_what_was_trained_for():
  sample = sample_lib.draw(toy_set.toy_set(), 1000, seed=3)
  setting = Setting('toy', 'test', sample, {'a': 1, 'b': 2}, 12)
  by_model = {'a': {16: 0.5, 8: 0.25}, 'b': {32: 0.75, 8: 0.5}}
  figure = dims.quality_figure(by_model, {'a': (16, 8), 'b': (32,)}, setting)
  assert figure.columns == {
      'model': ['a', 'a', 'b', 'b'],
      'dim': [16, 8, 32, 8],
      'trained': [1, 1, 1, 0],
      'mrr': [0.5, 0.25, 0.75, 0.5],
  }
  assert 'of 29 queries in the 40 passages' in figure.caption
  canvas = Canvas()
  figure.draw(canvas)
  (axis,) = canvas.axes
  curves = [line.get_xydata().tolist() for line in axis.lines]
  assert curves == [[[8, 0.25], [16, 0.5]], [[8, 0.5], [32, 0.75]]]
  marks = [points.get_facecolors() for points in axis.collections]
  # White where it was not trained for.
  assert [(m == 1).all(axis=1).tolist() for m in marks] == [
      [False, False], [True, False]
  ]
  assert [t.get_text() for t in axis.get_xticklabels()] == ['8', '16', '32']
