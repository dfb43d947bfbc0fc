"""A query and a passage in one text, against SentencePiece on the whole."""

import numpy as np
import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.text.joined import Joined, Template
from dualenc_jax.text.pool import Pool
from dualenc_jax.text.tokenizer import EOS, Tokenizer, Vocabulary

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


@pytest.fixture(scope='module')
def tokenizer():
  return Tokenizer(Vocabulary('python_code_8k'), 16, 256)


@pytest.mark.parametrize('text', TEMPLATES)
@pytest.mark.parametrize('eos', [True, False])
def test_the_tokens_are_those_of_the_whole_text(tokenizer, text, eos):
  around = Template(text, 512, eos).tokens(tokenizer)
  found = around.join(
      tokenizer.encode_queries(QUERIES), tokenizer.encode_passages(PASSAGES)
  )
  for i, (query, passage) in enumerate(zip(QUERIES, PASSAGES)):
    whole = text.format(query=query, passage=passage)
    want = tokenizer.vocabulary.encode([whole], 1000).row(0).tolist()
    assert found.row(i).tolist() == (want if eos else want[:-1])


@pytest.mark.parametrize('length', [30, 40, 52])
def test_the_passage_is_cut_and_nothing_else(tokenizer, length):
  template = Template(TEMPLATES[1], length)
  around = template.tokens(tokenizer)
  queries = tokenizer.encode_queries(QUERIES)
  passages = tokenizer.encode_passages(PASSAGES)
  found = around.join(queries, passages)
  assert max(found.lengths) == length
  for i in range(len(QUERIES)):
    row = found.row(i).tolist()
    query = queries.row(i)[:-1].tolist()
    passage = passages.row(i)[:-1].tolist()
    start = [*around.before, *query, *around.between]
    end = [*around.after]
    assert end[-1] == EOS
    assert row[: len(start)] == start and row[-len(end) :] == end
    kept = row[len(start) : -len(end)]
    assert kept == passage[: len(kept)]
    assert len(row) == min(length, len(start) + len(passage) + len(end))


def test_rows_in_a_flat_array_touch_nothing_else(tokenizer):
  around = Template(TEMPLATES[0], 24).tokens(tokenizer)
  pools = [
      Pool([(rows, {})])
      for rows in (
          tokenizer.encode_queries(QUERIES), tokenizer.encode_passages(PASSAGES)
      )
  ]
  joined = Joined(around, *pools)
  rows = np.array([[3, 3], [0, 1], [-1, -1], [1, 3]])
  lengths = joined.lengths(rows)
  assert lengths[2] == 0 and lengths.max() == 24
  out = np.full(100, -7)
  starts = np.array([2, 30, 0, 60])
  real = lengths > 0
  joined.copy(rows[real], out, starts[real])
  written = np.zeros(100, bool)
  for start, length in zip(starts[real], lengths[real]):
    written[start : start + length] = True
  np.testing.assert_array_equal(out != -7, written)


@pytest.mark.parametrize(
    'text',
    [
        'Query: {query}',
        '{passage} {query}',
        '{query} {query} {passage}',
        'Query:{query} Document: {passage}',
        '{query} {passage}Relevant:',
        '{query}{passage}',
    '{query} {nothing} {passage}',
        None,
    ],
)
def test_templates_that_cannot_be(text):
  with pytest.raises(UserError, match=r'expected {query}, then {passage}'):
    Template(text)


def test_a_template_that_leaves_no_room(tokenizer):
  template = Template(TEMPLATES[1], 20)
  with pytest.raises(UserError, match='length is 20, but .* takes 2.*no room'):
    template.tokens(tokenizer)
  with pytest.raises(UserError, match='length is 0'):
    Template(length=0)
