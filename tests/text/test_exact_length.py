"""Queries of an exact number of tokens, counted by SentencePiece itself."""

import dataclasses

import pytest
import sentencepiece

from dualenc_jax.errors import UserError
from dualenc_jax.text import exact_length
from dualenc_jax.text.tokenizer import SHIPPED, Tokenizer, Vocabulary


@pytest.fixture(scope='module')
def tokenizer() -> Tokenizer:
  vocabulary = Vocabulary('python_code_8k', extra_ids=64)
  return Tokenizer(vocabulary, 32, 64, query_prefix='find: ')


@pytest.mark.parametrize('tokens', [4, 8, 31, 32])
def test_they_have_as_many(tokenizer, tokens):
  texts = exact_length.queries(tokenizer, tokens, 50)
  own = sentencepiece.SentencePieceProcessor()
  own.load(str(SHIPPED / 'python_code_8k.model'))
  assert len(texts) == 50 and len({*texts}) > 40
  for text in texts:
    # And the end of the sequence.
    assert len(own.encode('find: ' + text)) + 1 == tokens


def test_equal_tokenizers_have_equal_ones(tokenizer):
  again = dataclasses.replace(tokenizer, query_length=16)
  texts = exact_length.queries(tokenizer, 8, 5)
  assert exact_length.queries(again, 8, 5) == texts


def test_what_there_is_not(tokenizer):
  with pytest.raises(UserError, match='33 tokens.*cuts queries to 32'):
    exact_length.queries(tokenizer, 33, 5)
  with pytest.raises(UserError, match='exactly 3 tokens.*and EOS take 3'):
    exact_length.queries(tokenizer, 3, 5)
