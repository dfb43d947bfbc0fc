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

TEXTS = [
    'Parse an ISO 8601 date.',
    'def parse_iso_date(text):\n  return HTTPServer(text).parse()',
    '',
    'word ' * 100,
]


def shipped_processor():
  processor = sentencepiece.SentencePieceProcessor()
  processor.load(str(SHIPPED / 'python_code_8k.model'))
  return processor


@pytest.mark.parametrize('length', [2, 9, 64])
def test_rows_are_cut_and_then_end_with_eos(length):
  processor = shipped_processor()
  rows = Vocabulary('python_code_8k').encode(TEXTS, length)
  assert rows.values.dtype == np.uint16
  for i, text in enumerate(TEXTS):
    expected = processor.encode(text)[: length - 1] + [1]
    assert rows.row(i).tolist() == expected


def test_decode_gives_the_text_that_is_kept(shared):
  vocabulary = Vocabulary(str(shared / 'data' / 't5_spiece' / 'spiece.model'))
  rows = vocabulary.encode(['A  flea can live up to a year.', 'flea ' * 9], 5)
  texts = [vocabulary.decode(rows.row(i)) for i in range(2)]
  assert texts == ['A flea can', 'flea flea']


def test_size_sha256_and_extra_ids():
  vocabulary = Vocabulary('python_code_8k')
  data = (SHIPPED / 'python_code_8k.model').read_bytes()
  assert vocabulary.size == 8000
  assert dataclasses.replace(vocabulary, extra_ids=100).size == 8100
  assert vocabulary.sha256 == hashlib.sha256(data).hexdigest()


def test_large_vocabularies_need_32_bits():
  assert Vocabulary('python_code_8k', 65536 - 8000).token_dtype == np.uint16
  large = Vocabulary('python_code_8k', 65537 - 8000)
  assert large.encode(['x'], 8).values.dtype == np.uint32


def test_t5_vocabulary(shared):
  (path,) = (shared / 'data' / 't5_spiece').glob('*.model')
  vocabulary = Vocabulary(str(path), extra_ids=100)
  assert vocabulary.size == 32100
  assert vocabulary.encode(['Hello world'], 8).row(0).tolist() == [8774, 296, 1]


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


def test_shipped_vocabulary_splits_identifiers_into_query_words():
  processor = shipped_processor()
  words = processor.encode('parse iso date http server get url')
  for text in (
      'parse_iso_date HTTPServer getURL',
      'parseISODate http_server get_url',
      'PARSE_ISO_DATE HttpServer GetUrl',
  ):
    assert processor.encode(text) == words
  piece = processor.encode('parse')
  assert processor.encode('self.parse')[-len(piece) :] == piece


def test_shipped_vocabulary_knows_all_of_ascii():
  text = ' '.join(chr(c) for c in range(33, 127))
  assert 2 not in shipped_processor().encode(text)


@pytest.mark.slow
def test_shipped_vocabulary_tokenises_alike_in_seqio():
  import seqio

  vocabulary = seqio.SentencePieceVocabulary(
      str(SHIPPED / 'python_code_8k.model'), extra_ids=0
  )
  expected = [vocabulary.encode_tf(text).numpy().tolist() for text in TEXTS]
  rows = Vocabulary('python_code_8k').encode(TEXTS, 1000)
  assert [rows.row(i).tolist()[:-1] for i in range(len(TEXTS))] == expected
  assert vocabulary.eos_id == 1 and vocabulary.pad_id == 0


def test_unknown_name_lists_the_shipped_ones():
  with pytest.raises(UserError, match="Did you mean 'python_code_8k'"):
    Vocabulary('python_code_8').encode(['x'], 8)


def test_file_that_is_no_model(tmp_path):
  path = tmp_path / 'x.model'
  path.write_text('nonsense')
  with pytest.raises(UserError, match=r'x\.model is not a SentencePiece model'):
    Vocabulary(str(path)).encode(['x'], 8)


def test_other_special_ids_are_refused(tmp_path):
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(['a b c d'] * 20), model_writer=model,
      vocab_size=8, hard_vocab_limit=False, minloglevel=2,
  )
  path = tmp_path / 'other.model'
  path.write_bytes(model.getvalue())
  with pytest.raises(UserError, match=r'expected \(0, 1, 2\)'):
    Vocabulary(str(path)).encode(['x'], 8)


@pytest.mark.parametrize('name', ['query_length', 'passage_length'])
@pytest.mark.parametrize('length', [1, 2**16 + 1, 2**62])
def test_lengths_that_cannot_be_are_errors(name, length):
  with pytest.raises(UserError, match=rf'Tokenizer\.{name} is {length};'):
    Tokenizer(Vocabulary('python_code_8k'), **{name: length})
  Tokenizer(Vocabulary('python_code_8k'), 2, 2**16)


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
