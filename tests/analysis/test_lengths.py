"""Token counts against SentencePiece, and which models share a panel."""

import numpy as np
import sentencepiece
import toy_set

from dualenc_jax.analysis import lengths as lengths_lib, sample as sample_lib
from dualenc_jax.data import Tokenizer, Vocabulary

VOCABULARY = Vocabulary('python_code_8k')


def test_lengths_are_not_cut_and_the_share_that_is_cut_is_told():
  sample = sample_lib.draw(toy_set.toy_set(), 1000)
  queries, passages = lengths_lib.count_tokens(
      Tokenizer(VOCABULARY, 8, 10), sample, 'a'
  )
  processor = sentencepiece.SentencePieceProcessor(
      model_file=str(VOCABULARY.file)
  )
  for side, texts in (
      (queries, [f'find the row {i}\tof it' for i in sample.queries]),
      (passages, ['row ' * (i + 1) for i in sample.passages]),
  ):
    # And one for EOS.
    expected = [len(processor.encode(text)) + 1 for text in texts]
    assert side.tokens.tolist() == expected
    assert side.cut == np.mean([n > side.limit for n in expected])
  assert (queries.limit, passages.limit) == (8, 10)
  assert passages.tokens.max() > 30 and 0 < passages.cut < 1


def test_models_that_tokenise_alike_share_a_panel():
  sample = sample_lib.draw(toy_set.toy_set(), 1000)
  sides = [
      side
      for name, query_length in (('a', 8), ('b', 9), ('c', 8))
      for side in lengths_lib.count_tokens(
          Tokenizer(VOCABULARY, query_length, 10), sample, name
      )
  ]
  merged = lengths_lib.merge(sides)
  assert [(s.side, s.models, s.limit) for s in merged] == [
      ('queries', ('a', 'c'), 8),
      ('queries', ('b',), 9),
      ('passages', ('a', 'b', 'c'), 10),
  ]
