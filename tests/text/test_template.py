"""A query and a passage in one text, against SentencePiece on the whole."""

import numpy as np
import pytest

from dualenc_jax.data.text.ragged import Pool
from dualenc_jax.data.text.template import PairPool, Template
from dualenc_jax.data.text.tokenizer import EOS, Tokenizer, Vocabulary
from dualenc_jax.utils.errors import UserError

QUERIES = ['read a file', 'HTTP server, or   client?', 'x', 'sort keys of dict']
PASSAGES = [
    'def read(path):\n  return open(path).read()', 'serve', 'A (b) [c] {d}, e.',
    'sorted(' + 'keys ' * 40,
]
TEMPLATES = (
    'Query: {query} Document: {passage}',
    'Query: {query} Document: {passage} Relevant:',
    '{query} {passage}',
)
TOKENIZER = Tokenizer(Vocabulary('python_code_8k'), 16, 256)


@pytest.mark.parametrize('text', TEMPLATES)
@pytest.mark.parametrize('eos', [True, False])
def test_the_tokens_are_those_of_the_whole_text(text, eos):
  template = Template(text, 512, eos).tokens(TOKENIZER)
  found = template.join(
      TOKENIZER.encode_queries(QUERIES), TOKENIZER.encode_passages(PASSAGES)
  )
  for i, (query, passage) in enumerate(zip(QUERIES, PASSAGES)):
    whole = text.format(query=query, passage=passage)
    want = TOKENIZER.vocabulary.encode([whole], 1000).row(0).tolist()
    assert found.row(i).tolist() == (want if eos else want[:-1])


@pytest.mark.parametrize('length', [30, 52])
def test_the_passage_is_cut_and_nothing_else(length):
  template = Template(TEMPLATES[1], length).tokens(TOKENIZER)
  queries = TOKENIZER.encode_queries(QUERIES)
  passages = TOKENIZER.encode_passages(PASSAGES)
  found = template.join(queries, passages)
  assert max(found.lengths) == length
  for i in range(len(QUERIES)):
    row = found.row(i).tolist()
    query = queries.row(i)[:-1].tolist()
    passage = passages.row(i)[:-1].tolist()
    start = [*template.before, *query, *template.between]
    end = [*template.after]
    assert end[-1] == EOS
    assert row[: len(start)] == start and row[-len(end) :] == end
    kept = row[len(start) : -len(end)]
    assert kept == passage[: len(kept)]
    assert len(row) == min(length, len(start) + len(passage) + len(end))
  # A row that is missing has no tokens.
  joined = PairPool(template, Pool([(queries, {})]), Pool([(passages, {})]))
  assert joined.lengths(np.array([[-1, -1], [3, 3]])).tolist() == [0, length]


def test_templates_that_cannot_be():
  for text in (
      'Query: {query}', '{passage} {query}', '{query} {query} {passage}',
      'Query:{query} Document: {passage}', '{query} {passage}Relevant:',
      '{query}{passage}', '{query} {nothing} {passage}', None,
  ):
    with pytest.raises(UserError, match=r'expected {query}, then {passage}'):
      Template(text)
  template = Template(TEMPLATES[1], 20)
  with pytest.raises(UserError, match='length is 20, but .* takes 2.*no room'):
    template.tokens(TOKENIZER)
  with pytest.raises(UserError, match='length is 0'):
    Template(length=0)
