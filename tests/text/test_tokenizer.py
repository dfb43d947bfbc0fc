"""Vocabulary, tokenizer, prefixes and prompts, against SentencePiece."""

import dataclasses
import functools
import hashlib
import io
import itertools
import json

import numpy as np
import pytest
import sentencepiece

from dualenc_jax.data import prepare
from dualenc_jax.data.readers import Pairs, Texts
from dualenc_jax.data.text.tokenizer import (
  queries_of_length,
  Tokenizer,
  Vocabulary,
)
from dualenc_jax.utils.errors import UserError

VOCABULARY = Vocabulary('python_code_8k')
PREFIXES = {'query_prefix': 'query: ', 'passage_prefix': 'passage: '}
TEXTS = [
    'Parse an ISO 8601 date.',
    'def parse_iso_date(text):\n  return HTTPServer(text).parse()',
    *('', '  two  spaces ', 'x', '2nd: word', 'word ' * 100),
]


@functools.cache
def processor(model):
  return sentencepiece.SentencePieceProcessor(model_file=str(model.file))


def pieces(text, length=16, model=VOCABULARY):
  return processor(model).encode(text)[: length - 1] + [1]


def listed(rows):
  return [rows.row(i).tolist() for i in range(len(rows))]


@pytest.mark.parametrize('length', [2, 9, 64])
def test_rows_are_cut_and_then_end_with_eos(length):
  rows = VOCABULARY.encode(TEXTS, length)
  assert rows.values.dtype == np.uint16
  assert listed(rows) == [pieces(text, length) for text in TEXTS]


def test_size_sha256_and_extra_ids():
  assert VOCABULARY.size == 8000
  content = VOCABULARY.file.read_bytes()
  assert VOCABULARY.sha256 == hashlib.sha256(content).hexdigest()
  # Large ones need 32 bits.
  for size, dtype in ((65536, np.uint16), (65537, np.uint32)):
    large = dataclasses.replace(VOCABULARY, extra_ids=size - 8000)
    assert large.size == size
    assert large.encode(['x'], 8).values.dtype == dtype


def test_t5_vocabulary(shared):
  path = shared / 'data' / 't5_spiece' / 'spiece.model'
  vocabulary = Vocabulary(str(path), extra_ids=100)
  assert vocabulary.size == 32100
  assert vocabulary.encode(['Hello world'], 8).row(0).tolist() == [8774, 296, 1]
  # Decoding gives the text that is kept.
  rows = vocabulary.encode(['A  flea can live up to a year.', 'flea ' * 9], 5)
  texts = [vocabulary.decode(rows.row(i)) for i in range(2)]
  assert texts == ['A flea can', 'flea flea']


@pytest.mark.slow
def test_t5_vocabulary_on_real_text_is_that_of_transformers(shared):
  import transformers

  folder = shared / 'data' / 't5_spiece'
  reference = transformers.T5TokenizerFast.from_pretrained(
      folder, local_files_only=True
  )
  assert type(reference.backend_tokenizer).__module__ == 'tokenizers'
  path = shared / 'data' / 'msmarco_v1_dl1920' / 'corpus.jsonl'
  with path.open() as lines:
    texts = [json.loads(line)['text'] for line in itertools.islice(lines, 1000)]
  rows = Vocabulary(str(folder / 'spiece.model'), 100).encode(texts, 128)
  expected = reference(texts, truncation=True, max_length=128).input_ids
  assert listed(rows) == expected
  # Some of the texts are cut.
  assert 100 < sum(len(row) == 128 for row in expected) < 900


def test_shipped_vocabulary_splits_identifiers_and_knows_ascii():
  encode = processor(VOCABULARY).encode
  words = encode('parse iso date http server get url')
  for text in (
      'parse_iso_date HTTPServer getURL',
      'parseISODate http_server get_url',
      'PARSE_ISO_DATE HttpServer GetUrl',
  ):
    assert encode(text) == words
  piece = encode('parse')
  assert encode('self.parse')[-len(piece) :] == piece
  assert 2 not in encode(' '.join(map(chr, range(33, 127))))


def test_files_that_are_no_vocabulary(tmp_path):
  with pytest.raises(UserError, match="Did you mean 'python_code_8k'"):
    Vocabulary('python_code_8').encode(['x'], 8)
  path, model = tmp_path / 'x.model', io.BytesIO()
  path.write_text('nonsense')
  with pytest.raises(UserError, match=r'x\.model is not a SentencePiece model'):
    Vocabulary(str(path)).encode(['x'], 8)
  # With other special ids.
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(['a b c d'] * 20), model_writer=model,
      vocab_size=8, hard_vocab_limit=False, minloglevel=2,
  )
  path.write_bytes(model.getvalue())
  with pytest.raises(UserError, match=r'expected \(0, 1\)'):
    Vocabulary(str(path)).encode(['x'], 8)


@pytest.mark.parametrize('name', ['query_length', 'passage_length'])
def test_lengths_that_cannot_be_are_errors(name):
  for length in (1, 2**16 + 1):
    with pytest.raises(UserError, match=rf'Tokenizer\.{name} is {length};'):
      Tokenizer(VOCABULARY, **{name: length})
  Tokenizer(VOCABULARY, 2, 2**16)


def test_queries_of_an_exact_length():
  vocabulary = Vocabulary('python_code_8k', extra_ids=64)
  tokenizer = Tokenizer(vocabulary, 32, 64, query_prefix='find: ')
  for tokens in (4, 8, 32):
    texts = queries_of_length(tokenizer, tokens, 50)
    assert len(texts) == 50 and len({*texts}) > 40
    for text in texts:
      assert len(pieces('find: ' + text, 100)) == tokens
  # Equal tokenizers have equal ones.
  again = dataclasses.replace(tokenizer, query_length=16)
  texts = queries_of_length(tokenizer, 8, 5)
  assert queries_of_length(again, 8, 5) == texts
  with pytest.raises(UserError, match='33 tokens.* reads 32'):
    queries_of_length(tokenizer, 33, 5)
  with pytest.raises(UserError, match='of 3 tokens.* EOS take 3'):
    queries_of_length(tokenizer, 3, 5)


@pytest.mark.parametrize('texts', [TEXTS, [], ['']])
def test_tokens_are_those_of_prefix_and_text(texts):
  tokenizer = Tokenizer(VOCABULARY, 8, 16, **PREFIXES)
  for rows, prefix, length in (
      (tokenizer.encode_queries(texts), 'query: ', 8),
      (tokenizer.encode_passages(texts), 'passage: ', 16),
  ):
    assert listed(rows) == [pieces(prefix + text, length) for text in texts]


def test_a_prefix_with_a_space_leaves_the_text_as_it_is(shared):
  spiece = Vocabulary(str(shared / 'data' / 't5_spiece' / 'spiece.model'))
  for vocabulary in (VOCABULARY, spiece):
    for prefix in ('query: ', 'Represent this sentence: '):
      own = pieces(prefix, model=vocabulary)[:-1]
      # Its own tokens count: of a text two are left, and EOS.
      short = Tokenizer(vocabulary, len(own) + 3, query_prefix=prefix)
      whole = Tokenizer(vocabulary, query_prefix=prefix)
      for text in TEXTS[:-1]:
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
    assert listed(column) == [pieces(text) for text in expected]
  assert [cache.query_texts.text(i) for i in range(2)] == ['first', 'second']
  # Of a corpus there are no queries, of queries no passages.
  corpus = tmp_path / 'corpus.tsv'
  corpus.write_text('1\ta text\n')
  for split, own, empty in (
      ('corpus', 'passage', 'query'), ('queries', 'query', 'passage')
  ):
    cache = prepare(Texts(str(corpus)), split, tokenizer, tmp_path / 'tokens')
    assert getattr(cache, f'{empty}_tokens').lengths.tolist() == [0]
    found = listed(getattr(cache, f'{own}_tokens'))
    assert found == [pieces(f'{own}: a text')]


def test_a_prompt_stands_in_the_place_of_a_prefix():
  prompts = {'nli': 'classify: ', 'Retrieval-query': 'search for: '}
  tokenizer = Tokenizer(VOCABULARY, 64, 64, **PREFIXES, prompts=prompts)
  for given, expected in (
      (('nli', None), ('classify: ', 'passage: ')),
      (('Retrieval-query', 'nli'), ('search for: ', 'classify: ')),
      (('document', 'query'), ('passage: ', 'query: ')),
  ):
    own = tokenizer.prompted(*given)
    encoded = own.encode_queries(['a date']), own.encode_passages(['a date'])
    assert [rows.row(0).tolist() for rows in encoded] == [
        pieces(prefix + 'a date', 64) for prefix in expected
    ]
  with pytest.raises(UserError, match="no prompt 'nil'. Did you mean 'nli'?"):
    tokenizer.prompted('nil')


@pytest.mark.parametrize(
    'options, message',
    [
        ({'query_prefix': None}, r"Tokenizer\.query_prefix is None.*'' for"),
        ({'prompts': ['a']}, r"PROMPTS\) is \['a'\]; expected texts by name"),
        ({'prompts': {'query': 'q: '}}, "has 'query'. Give QUERY_PREFIX"),
    ],
)
def test_prefixes_are_texts_and_prompts_texts_by_name(options, message):
  with pytest.raises(UserError, match=message):
    Tokenizer(VOCABULARY, **options)
