"""Whether BM25 finds the passages of queries, on texts where it is plain."""

import pytest

from dualenc_jax.pipelines.generation.generator import Query
from dualenc_jax.pipelines.generation.quality import self_retrieval


def word(number):
  """A word of letters alone, another for each number."""
  return 'z' + ''.join(chr(97 + int(digit)) for digit in f'{number:05}')


PASSAGES = [f'{word(i)} {word(1000 + i // 2)}' for i in range(200)]


def queries(text_of, count=200):
  return [Query(i, 0, text_of(i), -1.0, True) for i in range(count)]


def test_queries_of_their_passages():
  for text_of in (word, lambda i: word(1000 + i // 2)):
    found = self_retrieval(PASSAGES, queries(text_of))
    assert found == (1.0, 200, 200)
    assert found.chance == 0.05
    assert found.warning is None


def test_queries_of_other_passages():
  other = queries(lambda i: word((i + 50) % 200))
  found = self_retrieval(PASSAGES, other)
  # Without a common word a passage is not found.
  assert found.share == 0.0
  assert 'BM25 finds the passage of 0.0% of the queries' in found.warning
  assert '(chance: 5.0%)' in found.warning
  # Of equal scores each order is as likely.
  every = [f'text {text}' for text in PASSAGES]
  found = self_retrieval(every, queries(lambda i: 'text'))
  assert found.share == pytest.approx(found.chance)


def test_some_are_drawn_of_many():
  many = [f'text {word(i // 2)}' for i in range(12_000)]
  found = self_retrieval(many, queries(lambda i: word(i // 2), 1500))
  assert found == (1.0, 1000, 10_000)


def test_few_passages_tell_nothing():
  few = queries(lambda i: 'odd', 20)
  assert self_retrieval(PASSAGES[:20], few).warning is None
  assert self_retrieval(['?'], queries(lambda i: '!', 1)) is None
