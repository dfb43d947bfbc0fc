"""Tokenizer files: transformers gives the ids that Vocabulary gives."""

import argparse
import ast
import functools
import inspect
import itertools
import pathlib
import random
import statistics
import tarfile
import typing
import unicodedata

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
import small_vocabulary
import transformers

from dualenc_jax.checkpoints import hugging_face_tokenizer
from dualenc_jax.checkpoints.weights import Usage
from dualenc_jax.data.readers.python_code import find_functions
from dualenc_jax.data.text.tokenizer import Vocabulary
from dualenc_jax.utils.errors import UserError

SMALL = Vocabulary('python_code_8k').file
MODULES = argparse, ast, inspect, pathlib, random, statistics, tarfile, typing
ODD = [
    '', ' ', '\n\t \n', ' a  b \r\n\x0b c\t', '</s>', '<pad>', '<unk>',
    'a</s>b', 'a </s> b</s>', '<<</s>>>', '<unk><unk>', '<pa', '<extra_id_0>',
    'x<extra_id_7>y', 'e\u0301tude ﬁne ①② Ａ１ ½ … “q”',
    '\xa0x\xa0\xa0y\u3000z\u2028', '\x85x', '\ufeffbom', 'a\u200bb\xadc',
    '日本語テキスト नमस्ते 😀😀 🤷🏽‍♀️', '\x00a\x01b\x7f',
    'parseDate HTTPServer x.parse .aB a_b _c __init__ ABc aBC.D getHTTPCode2X',
    'A\u0308pfel O\u0308l A\u033ex A\u200db B\ufe0f 한\u200d', '▁', '▁x ▁▁ x▁ ',
    'word ' * 2000, 'x' * 5000,
]
# Texts that a tokenizer made of another splits otherwise, if any.
DECOMPOSED = (
    # Composed and not: letters, letters with two marks, syllables.
    'Äpfel A\u0308pfel Öl O\u0308l é e\u0301 c\u030c s\u030b',
    'Tiếng Việt Tie\u0302\u0301ng Vie\u0323\u0302t 한국어 \u1112\u1161\u11ab',
    'I\u0307stanbul \u03b1\u0345',
    # Joiners, a selector of a variation, a modifier; marks of half a width.
    'می\u200cخواهم क्\u200dष ❤\ufe0f 👩\u200d💻 👍🏽 が か\u3099 ｶﾞ ﬁ',
    # Marks in another order than Unicode's, and marks behind no letter.
    'שׁ ש\u05bc\u05c1 مّ م\u064e\u0651 q\u0307\u0323 a\u0323\u0302 \u0301x',
    '</s> <pad> <0x41> ▁x▁ ▁',
)


@functools.cache
def texts():
  """Odd ones, and docstrings and functions of the standard library."""
  functions = [
      f for m in MODULES for f in find_functions(pathlib.Path(m.__file__), '')
  ]
  return ODD + [f[side] for f in functions for side in ('query', 'passage')]


def written(folder, vocabulary=SMALL, **lengths):
  """The tokenizer that transformers makes of the files written."""
  (folder / 'config.json').write_text('{"model_type": "t5"}')
  usage = Usage(vocabulary, **lengths)
  hugging_face_tokenizer.write(usage, folder)
  return transformers.AutoTokenizer.from_pretrained(folder)


def differing(tokenizer, vocabulary, given, length):
  """The texts whose ids differ."""
  theirs = tokenizer(given, truncation=True, max_length=length)['input_ids']
  ours = vocabulary.encode(given, length)
  rows = np.split(ours.values, ours.offsets[1:-1])
  return [
      (text, row.tolist(), ids)
      for text, row, ids in zip(given, rows, theirs)
      if row.tolist() != ids
  ]


def same_choice(processor, ours, theirs):
  """Whether two rows are the same text in pieces of the same total score.

  SentencePiece sums the scores of a text in float32, tokenizers those of a word
  in float64: of two splits that are equally good, they may take another one.
  """
  scores = [sum(map(processor.get_score, row)) for row in (ours, theirs)]
  return (
      processor.decode(ours) == processor.decode(theirs)
      and abs(scores[0] - scores[1]) < 1e-2
  )


@pytest.mark.parametrize('at_spaces', [True, False])
def test_ids_of_odd_and_of_decomposed_texts(tmp_path, at_spaces):
  """What has no piece is bytes, so that ids show every character."""
  path = small_vocabulary.write(
      tmp_path / 'v.model', vocab_size=600, byte_fallback=True,
      normalization_rule_name='nmt_nfkc_cf', split_by_whitespace=at_spaces,
  )
  letters = map(chr, [*range(0x20, 0xac00), *range(0xac00, 0xd7a4, 97)])
  parts = {unicodedata.normalize('NFD', c) for c in letters if c.isalpha()}
  given = sorted(p for p in parts if len(p) > 1) + [*DECOMPOSED]
  assert len(given) > 900
  different = differing(
      written(tmp_path, path), Vocabulary(str(path)), given, 1 << 20
  )
  # SentencePiece itself gives these and their NFC other ids.
  assert all('I\u0307' in t or '\u0345' in t for t, _, _ in different)


@pytest.mark.slow
@pytest.mark.parametrize('own', [True, False])
def test_ids_of_the_shipped_vocabulary_and_of_t5(shared, tmp_path, own):
  path = SMALL if own else shared / 'data/t5_spiece/spiece.model'
  vocabulary, given = Vocabulary(str(path)), texts()
  tokenizer = written(tmp_path, path, query_length=32, passage_length=128)
  assert tokenizer.model_max_length == 128
  assert len(tokenizer) == vocabulary.size
  assert len(given) > 600
  different = differing(tokenizer, vocabulary, given, 1 << 20)
  processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
  assert len(different) <= 2
  for text, ours, theirs in different:
    assert same_choice(processor, ours, theirs), text
  # Cut to a length, EOS at the end.
  unequal = {text for text, _, _ in different}
  given = [text for text in given if text not in unequal][:100]
  for length in (1, 2, 17, 256):
    assert not differing(tokenizer, vocabulary, given, length)


@pytest.mark.slow
def test_every_way_to_join_words(tmp_path):
  """All texts of a few kinds of characters, against SentencePiece itself."""
  normalizer = written(tmp_path).backend_tokenizer.normalizer
  processor = sentencepiece.SentencePieceProcessor(model_file=str(SMALL))
  for length in range(1, 8):
    for characters in itertools.product('aB. ', repeat=length):
      text = ''.join(characters)
      expected = processor.normalize(text)
      assert normalizer.normalize_str(text) == expected, text


@pytest.mark.slow
def test_what_is_read_of_a_folder(tmp_path):
  assert hugging_face_tokenizer.read(tmp_path) == Usage()
  written(tmp_path, query_length=32)
  path = tmp_path / 'spiece.model'
  assert hugging_face_tokenizer.read(tmp_path) == Usage(path, None, 32, 32)
  # Of the tokenizer of transformers neither its extra ids nor its length of
  # 1e30.
  (tmp_path / 'a').mkdir()
  (tmp_path / 'a/spiece.model').write_bytes(SMALL.read_bytes())
  tokenizer = transformers.T5Tokenizer.from_pretrained(tmp_path / 'a')
  tokenizer.save_pretrained(tmp_path / 'b')
  assert not (tmp_path / 'b/spiece.model').exists()
  path.unlink()
  processor = sentencepiece.SentencePieceProcessor(model_file=str(SMALL))
  pieces = tuple(map(processor.id_to_piece, range(8000)))
  assert hugging_face_tokenizer.read(tmp_path).pieces == pieces
  usage = hugging_face_tokenizer.read(tmp_path / 'b')
  assert usage.pieces == pieces and usage.query_length is None
  for name in ('tokenizer.json', 'tokenizer_config.json'):
    (tmp_path / name).write_text('')
    with pytest.raises(UserError, match=f'{name} is not JSON'):
      hugging_face_tokenizer.read(tmp_path)


def test_what_no_tokenizer_has(tmp_path):
  path = tmp_path / 'x.model'
  for part, name, value, message in (
      ('normalizer_spec', 'precompiled_charsmap', b'x', 'custom normalisation'),
      ('trainer_spec', 'model_type', 2, 'is neither a plain unigram'),
      ('trainer_spec', 'treat_whitespace_as_suffix', True, 'is neither a pl'),
      ('normalizer_spec', 'escape_whitespaces', False, 'is neither a plain'),
  ):
    proto = sentencepiece_model_pb2.ModelProto.FromString(SMALL.read_bytes())
    setattr(getattr(proto, part), name, value)
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(UserError, match=message):
      written(tmp_path, path)
