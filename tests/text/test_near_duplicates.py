"""Nearly equal texts, against all pairs compared one by one."""

import itertools

import numpy as np
import pytest

from dualenc_jax.data.text.near_duplicates import near_duplicates


def is_near(one, other, least):
  a, b = (
      {*itertools.pairwise(words)} or {*zip(words)}
      for words in (one.split(), other.split())
  )
  return len(a | b) > 0 and len(a & b) >= least * len(a | b)


@pytest.mark.parametrize('least', [0.3, 0.6, 1.0])
def test_equals_all_pairs_compared(least):
  rng = np.random.default_rng(0)
  words = [*'abcdefghij']
  others, texts = (
      [' '.join(rng.choice(words, rng.integers(1, 9))) for _ in range(count)]
      for count in (60, 99)
  )
  # Copies of which a word or two are changed.
  for other in others:
    copy = other.split()
    copy[rng.integers(len(copy))] = 'k'
    texts += [' '.join(copy), f'{other} l']
  expected = [any(is_near(t, o, least) for o in others) for t in texts]
  found = near_duplicates(texts, others, least)
  np.testing.assert_array_equal(found, expected)
  assert least == 1.0 or 20 < found.sum() < len(texts)


def test_texts_without_a_word_are_like_none():
  assert near_duplicates(['', '--', 'a'], ['', 'b']).tolist() == [False] * 3
  assert near_duplicates([], ['a']).tolist() == []
  assert near_duplicates(['a'], []).tolist() == [False]
