"""Prefixes and prompts, against SentencePiece used directly."""

import functools

import pytest
import sentencepiece

from dualenc_jax.data import prepare, Tokenizer, Vocabulary
from dualenc_jax.errors import UserError
from dualenc_jax.readers import Pairs, Texts

VOCABULARY = Vocabulary('python_code_8k')
PREFIXES = {'query_prefix': 'query: ', 'passage_prefix': 'passage: '}
PROMPTS = {'nli': 'classify: ', 'Retrieval-query': 'search for: '}
TOKENIZER = Tokenizer(VOCABULARY, 64, 64, 'query: ', 'passage: ', PROMPTS)
TEXTS = ['Parse a date', '  two  spaces ', 'x', '2nd: word', 'a b c d e f g h']


@functools.cache
def processor(model):
  return sentencepiece.SentencePieceProcessor(model_file=str(model.file))


def pieces(text, length=16, model=VOCABULARY):
  return processor(model).encode(text)[: length - 1] + [1]


@pytest.mark.parametrize('texts', [TEXTS, [], ['']])
def test_tokens_are_those_of_prefix_and_text(texts):
  tokenizer = Tokenizer(VOCABULARY, 8, 16, **PREFIXES)
  for rows, prefix, length in (
      (tokenizer.encode_queries(texts), 'query: ', 8),
      (tokenizer.encode_passages(texts), 'passage: ', 16),
  ):
    found = [rows.row(i).tolist() for i in range(len(texts))]
    assert found == [pieces(prefix + text, length) for text in texts]


def test_a_prefix_with_a_space_leaves_the_text_as_it_is(shared):
  spiece = Vocabulary(str(shared / 'data' / 't5_spiece' / 'spiece.model'))
  for vocabulary in (VOCABULARY, spiece):
    for prefix in ('query: ', 'Represent this sentence: '):
      own = pieces(prefix, model=vocabulary)[:-1]
      # Its own tokens count: of a text two are left, and EOS.
      short = Tokenizer(vocabulary, len(own) + 3, query_prefix=prefix)
      whole = Tokenizer(vocabulary, query_prefix=prefix)
      for text in TEXTS:
        alone = pieces(text, 64, vocabulary)
        found = whole.encode_queries([text]).row(0).tolist()
        assert found == own + alone
        cut = short.encode_queries([text]).row(0).tolist()
        assert cut == own + (alone if len(alone) < 3 else alone[:2] + [1])
  # Without it the two make one word.
  joined = Tokenizer(spiece, query_prefix='query:').encode_queries(['x'])
  assert joined.row(0).tolist() == pieces('query:x', model=spiece)
  assert joined.row(0).tolist() != pieces('query: x', model=spiece)


def test_a_cache_has_prefixes_but_not_where_there_is_no_text(tmp_path):
  path = tmp_path / 'queries.jsonl'
  path.write_text(
      '{"query": "first", "passage": "one", "negatives": ["a", "b c"]}\n'
      '{"query": "second", "passage": "two"}\n'
  )
  tokenizer = Tokenizer(VOCABULARY, 8, 16, **PREFIXES)
  task = Pairs(train=str(path))
  cache = prepare(task, 'train', tokenizer, tmp_path / 'tokens')
  for column, expected in (
      (cache.query_tokens, ['query: first', 'query: second']),
      (cache.passage_tokens, ['passage: one', 'passage: two']),
      (cache.negative_tokens, ['passage: a', 'passage: b c']),
  ):
    found = [column.row(i).tolist() for i in range(len(column))]
    assert found == [pieces(text) for text in expected]
  assert [cache.query_texts.text(i) for i in range(2)] == ['first', 'second']
  # Of a corpus there are no queries, of queries no passages.
  corpus = tmp_path / 'corpus.tsv'
  corpus.write_text('1\ta text\n')
  sides = {'query', 'passage'}
  for split, empty in (('corpus', 'query'), ('queries', 'passage')):
    texts = Texts(str(corpus))
    cache = prepare(texts, split, tokenizer, tmp_path / 'tokens')
    assert getattr(cache, f'{empty}_tokens').lengths.tolist() == [0]
    (other,) = sides - {empty}
    found = getattr(cache, f'{other}_tokens').row(0).tolist()
    assert found == pieces(f'{other}: a text')


@pytest.mark.parametrize(
    'query, passage, expected',
    [
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
    found = encode(['parse a date']).row(0).tolist()
    assert found == pieces(text + 'parse a date', 64)


def test_an_unknown_prompt_names_what_may_be_meant():
  with pytest.raises(UserError, match="no prompt 'nil'. Did you mean 'nli'?"):
    TOKENIZER.prompted('nil')


@pytest.mark.parametrize(
    'options, message',
    [
        ({'query_prefix': None}, r"Tokenizer\.query_prefix is None.*'' for"),
        ({'prompts': ['a']}, r"PROMPTS\) is \['a'\]; expected texts by name"),
        ({'prompts': {'query': 'q: '}}, 'the prefix of queries.*QUERY_PREFIX'),
    ],
)
def test_prefixes_are_texts_and_prompts_texts_by_name(options, message):
  with pytest.raises(UserError, match=message):
    Tokenizer(VOCABULARY, **options)
