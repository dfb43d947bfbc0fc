"""Vocabulary, tokenizer and queries of a length, against SentencePiece."""

import dataclasses
import hashlib
import io
import itertools
import json

import numpy as np
import pytest
import sentencepiece

from dualenc_jax.errors import UserError
from dualenc_jax.text import exact_length
from dualenc_jax.text.tokenizer import SHIPPED, Tokenizer, Vocabulary

FILE = SHIPPED / 'python_code_8k.model'
TEXTS = [
    'Parse an ISO 8601 date.',
    'def parse_iso_date(text):\n  return HTTPServer(text).parse()',
    '',
    'word ' * 100,
]


@pytest.fixture(scope='module')
def processor():
  processor = sentencepiece.SentencePieceProcessor()
  processor.load(str(FILE))
  return processor


@pytest.mark.parametrize('length', [2, 9, 64])
def test_rows_are_cut_and_then_end_with_eos(processor, length):
  rows = Vocabulary('python_code_8k').encode(TEXTS, length)
  assert rows.values.dtype == np.uint16
  for i, text in enumerate(TEXTS):
    expected = processor.encode(text)[: length - 1] + [1]
    assert rows.row(i).tolist() == expected


def test_size_sha256_and_extra_ids():
  vocabulary = Vocabulary('python_code_8k')
  assert vocabulary.size == 8000
  assert vocabulary.sha256 == hashlib.sha256(FILE.read_bytes()).hexdigest()
  # Large ones need 32 bits.
  for size, dtype in ((65536, np.uint16), (65537, np.uint32)):
    large = dataclasses.replace(vocabulary, extra_ids=size - 8000)
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
  assert [rows.row(i).tolist() for i in range(1000)] == expected
  # Some of the texts are cut.
  assert 100 < sum(len(row) == 128 for row in expected) < 900


def test_shipped_vocabulary_splits_identifiers_and_knows_ascii(processor):
  words = processor.encode('parse iso date http server get url')
  for text in (
      'parse_iso_date HTTPServer getURL',
      'parseISODate http_server get_url',
      'PARSE_ISO_DATE HttpServer GetUrl',
  ):
    assert processor.encode(text) == words
  piece = processor.encode('parse')
  assert processor.encode('self.parse')[-len(piece) :] == piece
  assert 2 not in processor.encode(' '.join(map(chr, range(33, 127))))


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
  with pytest.raises(UserError, match=r'expected \(0, 1, 2\)'):
    Vocabulary(str(path)).encode(['x'], 8)


@pytest.mark.parametrize('name', ['query_length', 'passage_length'])
def test_lengths_that_cannot_be_are_errors(name):
  for length in (1, 2**16 + 1):
    with pytest.raises(UserError, match=rf'Tokenizer\.{name} is {length};'):
      Tokenizer(Vocabulary('python_code_8k'), **{name: length})
  Tokenizer(Vocabulary('python_code_8k'), 2, 2**16)


def test_queries_of_an_exact_length(processor):
  vocabulary = Vocabulary('python_code_8k', extra_ids=64)
  tokenizer = Tokenizer(vocabulary, 32, 64, query_prefix='find: ')
  for tokens in (4, 8, 32):
    texts = exact_length.queries(tokenizer, tokens, 50)
    assert len(texts) == 50 and len({*texts}) > 40
    for text in texts:
      # And the end of the sequence.
      assert len(processor.encode('find: ' + text)) + 1 == tokens
  # Equal tokenizers have equal ones.
  again = dataclasses.replace(tokenizer, query_length=16)
  texts = exact_length.queries(tokenizer, 8, 5)
  assert exact_length.queries(again, 8, 5) == texts
  with pytest.raises(UserError, match='33 tokens.*cuts queries to 32'):
    exact_length.queries(tokenizer, 33, 5)
  with pytest.raises(UserError, match='exactly 3 tokens.*and EOS take 3'):
    exact_length.queries(tokenizer, 3, 5)
