"""Every loss of the package beside its reference, and batches for both."""

import dataclasses
import functools

import jax
import numpy as np
import reference

from dualenc_jax.losses import (
  Embeddings,
  evaluate,
  InBatchSoftmax,
  PAIR,
  SamToNe,
  Similarity,
)

ALPHA = 0.3


def _pair(form='paper'):
  return functools.partial(PAIR, alpha=ALPHA, form=form)


def _pair_terms(positive, queries, passages=True):
  return functools.partial(
      reference.pair_terms, alpha=ALPHA, positive=positive, queries=queries,
      passages=passages,
  )


_FAMILIES = {
    'softmax': (InBatchSoftmax, reference.softmax_terms),
    'samtone': (SamToNe, reference.samtone_terms),
    'pair': (_pair(), _pair_terms(True, False)),
    'pair_without_positive': (
        _pair(form='without_positive'),
        _pair_terms(False, False),
    ),
    'pair_union': (
        _pair(form='union'),
        _pair_terms(True, True),
    ),
    'pair_released': (
        _pair(form='released'),
        _pair_terms(True, True, False),
    ),
}

# Name -> (constructor, function of (batch, mask) giving the reference's sides).
LOSSES = {
    f'{name}_{"two" if bidirectional else "one"}_way': (
        functools.partial(make, bidirectional=bidirectional),
        functools.partial(terms, bidirectional=bidirectional),
    )
    for name, (make, terms) in _FAMILIES.items()
    for bidirectional in (False, True)
}
LOSSES['samtone_both_towers'] = (
    functools.partial(SamToNe, both_towers=True),
    functools.partial(
        reference.samtone_terms, bidirectional=True, both_towers=True
    ),
)
_SHARED = {field.name for field in dataclasses.fields(Similarity)}


def make(name, **options):
  """A loss, and the similarity that it is given, of options of either."""
  own = {k: v for k, v in options.items() if k not in _SHARED}
  shared = {k: v for k, v in options.items() if k in _SHARED}
  return LOSSES[name][0](**own), Similarity(**shared)


_evaluate = jax.jit(evaluate, static_argnums=(0, 1))


def value_of(name, embeddings, **options):
  """Value and metrics of a loss that learns nothing."""
  return _evaluate(*make(name, **options), {}, embeddings)


def make_batch(
    size, num_negatives, duplicates=False, dim=16, dtype=np.float32, lean=0.2
):
  """Random embeddings for the package, and the same as a reference.Batch.

  Positives lean towards their anchors by `lean`. With `duplicates`, half of the
  pairs repeat the query or the passage of another pair and one hard negative is
  a positive. With more than one hard negative, some rows have fewer.
  """
  rng = np.random.default_rng(1000 * size + 10 * num_negatives + duplicates)
  query = rng.normal(size=(size, dim))
  passage = lean * query + rng.normal(size=(size, dim))
  negatives = 0.3 * query[:, None] + rng.normal(size=(size, num_negatives, dim))
  query_ids, passage_ids, *negative_ids = _distinct_ids(
      rng, (2 + num_negatives) * size
  ).reshape(-1, size)
  negative_ids = np.array(negative_ids, int).reshape(-1, size).T.copy()
  if duplicates:
    for i in range(size // 2, size):
      if i % 2:
        query[i], query_ids[i] = query[i - size // 2], query_ids[i - size // 2]
      else:
        passage[i] = passage[i - size // 2]
        passage_ids[i] = passage_ids[i - size // 2]
    if num_negatives:
      negatives[0, 0], negative_ids[0, 0] = passage[1], passage_ids[1]
  valid = np.ones((size, num_negatives), bool)
  if num_negatives > 1:
    valid[1::3, -1] = False
    valid[1::6, -2:] = False
    negative_ids[~valid] = 0

  several = None
  if duplicates and size > 4:
    # A query's other passages: of pairs further on, a hard negative, and its
    # own in place of those that are missing.
    own = passage_ids[:, None]
    several = np.concatenate([np.roll(own, -2), own, own], axis=1)
    several[::2, 0] = own[::2, 0]
    if num_negatives:
      several[1::2, 1] = np.roll(negative_ids, 1, axis=0)[1::2, 0]

  def unit(x):
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.asarray(x / norm).astype(dtype)

  query, passage, negatives = unit(query), unit(passage), unit(negatives)
  embeddings = Embeddings(
      query, passage, query_ids=_words(query_ids),
      passage_ids=_words(passage_ids),
  )
  if num_negatives:
    embeddings = embeddings._replace(
        negatives=negatives, negative_ids=_words(negative_ids),
        negative_valid=valid,
    )
  if several is not None:
    embeddings = embeddings._replace(positive_ids=_words(several))
  batch = reference.Batch(
      {
          'query': query.astype(np.float64),
          'passage': passage.astype(np.float64),
          'negatives': negatives.reshape(-1, dim).astype(np.float64),
      },
      {
          'query': query_ids,
          'passage': passage_ids,
          'negatives': negative_ids.reshape(-1),
      },
      valid.reshape(-1),
      None if several is None else [{*row} for row in several.tolist()],
  )
  return embeddings, batch


def _distinct_ids(rng, number):
  """64-bit ids, of which many have one of their two words in common."""
  side = int(np.ceil(np.sqrt(number)))
  high, low = np.divmod(rng.permutation(side**2)[:number], side)
  return (high + 1 << 32) + low + 1


def _words(ids):
  """64-bit ids as two uint32, the low word first."""
  return np.stack([ids & 0xFFFFFFFF, ids >> 32], axis=-1).astype(np.uint32)


def values_and_gradients(losses):
  """Function of (params, embeddings) -> {name: ((value, metrics), gradients)}.

  Gradients are of the parameters and of the vectors. One program for many
  losses, {name: (loss, similarity)}, compiles much faster than one each.
  """
  def one(loss, similarity, params, embeddings):
    def value(params, vectors):
      batch = embeddings._replace(**vectors)
      return evaluate(loss, similarity, params, batch)

    return jax.value_and_grad(value, argnums=(0, 1), has_aux=True)(
        params, embeddings.vectors()
    )

  return lambda params, embeddings: {
      name: one(*pair, params, embeddings) for name, pair in losses.items()
  }


def check(got, name, batch, weights=None, rounding=1e-6, tolerance=1e-5, **of):
  """Compares what `values_and_gradients` gives of a loss with its reference.

  Rounding is that of the value, relative; `of` are `reference.Options`. Returns
  the reference's Result.
  """
  (value, metrics), (params, vectors) = got
  options = reference.Options(**of)
  sides = LOSSES[name][1](batch, options.mask_duplicates)
  want = reference.evaluate(batch, sides, options, weights)
  assert abs(value - want.value) <= rounding * abs(want.value), name
  assert metrics['loss'] == value
  assert_gradients_close(params | vectors, want.gradients, tolerance)
  return want


def all_duplicates(embeddings):
  """The same vectors, but every text has the same fingerprint."""
  names = 'query_ids', 'passage_ids', 'negative_ids'
  return embeddings._replace(**{
      name: np.ones_like(ids)
      for name in names if (ids := getattr(embeddings, name)) is not None
  })


def assert_nothing_is_learnt(got):
  """From a batch of `all_duplicates`, by any loss."""
  for (value, metrics), gradients in got.values():
    assert value == 0
    assert metrics['masked_fraction'] == 1
    for gradient in jax.tree.leaves(gradients):
      np.testing.assert_array_equal(gradient, 0)


def assert_gradients_close(got, want, tolerance=1e-5):
  """Compares arrays, relative to the largest entry of the wanted one."""
  for name in got:
    wanted = np.asarray(want[name]).reshape(np.shape(got[name]))
    scale = np.max(np.abs(wanted))
    assert scale > 0, f'{name}: the reference gradient is zero'
    error = np.max(np.abs(got[name] - wanted)) / scale
    assert error < tolerance, f'{name}: {error:.2e}'
