"""Prompts by name in a tokenizer, against SentencePiece used directly."""

import pytest
import sentencepiece

from dualenc_jax.data import Tokenizer, Vocabulary
from dualenc_jax.errors import UserError

VOCABULARY = Vocabulary('python_code_8k')
PROMPTS = {'nli': 'classify: ', 'Retrieval-query': 'search for: '}
TOKENIZER = Tokenizer(VOCABULARY, 64, 64, 'query: ', 'passage: ', PROMPTS)


def ids(text):
  processor = sentencepiece.SentencePieceProcessor(
      model_file=str(VOCABULARY.file)
  )
  return [*processor.encode(text), 1]


@pytest.mark.parametrize(
    'query, passage, expected',
    [
        (None, None, ('query: ', 'passage: ')),
        ('nli', None, ('classify: ', 'passage: ')),
        ('Retrieval-query', 'nli', ('search for: ', 'classify: ')),
        ('document', 'query', ('passage: ', 'query: ')),
    ],
)
def test_a_prompt_stands_in_the_place_of_a_prefix(query, passage, expected):
  tokenizer = TOKENIZER.prompted(query, passage)
  for encode, text in zip(
      (tokenizer.encode_queries, tokenizer.encode_passages), expected
  ):
    assert encode(['parse a date']).row(0).tolist() == ids(
        text + 'parse a date'
    )


def test_an_unknown_prompt_names_what_may_be_meant():
  with pytest.raises(UserError, match="no prompt 'nil'. Did you mean 'nli'?"):
    TOKENIZER.prompted('nil')
  with pytest.raises(UserError, match='Known: Retrieval-query, document, nli'):
    TOKENIZER.prompted(passage='xyzzy')


@pytest.mark.parametrize(
    'prompts, message',
    [
        (['a'], r"PROMPTS\) is \['a'\]; expected texts by name"),
        ({'a': 1}, 'expected texts by name'),
        ({'query': 'q: '}, 'what the prefix of queries.*QUERY_PREFIX'),
        ({'document': ''}, 'Give PASSAGE_PREFIX, or another name'),
    ],
)
def test_prompts_are_texts_by_name(prompts, message):
  with pytest.raises(UserError, match=message):
    Tokenizer(VOCABULARY, prompts=prompts)
