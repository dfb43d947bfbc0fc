"""The reader of MultiReQA: pairs, corpus, files, options, and their errors."""

import logging

import pytest
from reading import column, DATA, pack, refused

from dualenc_jax.data.dataset import example
from dualenc_jax.data.readers.multireqa import MultiReQA

MRQA = 'mrqa/dev/SQuAD.jsonl.gz'
CANDIDATES = 'multireqa/dev/SQuAD/candidates.json.gz'
PAIRS = [
    ('a1', 'SQuAD_a1/a2/a3/_0', 'Ada wrote notes.'),
    ('a2', 'SQuAD_a1/a2/a3/_1', 'Babbage built an engine.'),
    ('a2', 'SQuAD_a1/a2/a3/_2', 'It was never finished.'),
    ('b1', 'SQuAD_b2/b1/_0', '🐙 has 8 arms.'),
    ('b1', 'SQuAD_b2/b1/_2', '🐙🐙 have 16'),
    ('b2', 'SQuAD_b2/b1/_1', '𝒳 is a letter; so is é.'),
    ('c1', 'SQuAD_c1/c2/_0_0', 'The Po is long.'),
    ('c2', 'SQuAD_c1/c2/_1_0', 'Salt 🌊 in them.'),
]


def fill(root, folder='dev'):
  sources = {MRQA: 'contexts.jsonl', CANDIDATES: 'candidates.json'}
  for name, source in sources.items():
    pack(DATA / 'multireqa' / source, root / name.replace('dev', folder))


@pytest.fixture
def root(tmp_path):
  fill(tmp_path)
  return tmp_path


def reader(root, dataset='SQuAD', **options):
  return MultiReQA(dataset, root=str(root), **options)


def pairs(rows):
  return [(r['query_id'], r['passage_id'], r['passage']) for r in rows]


def test_pairs(root):
  """Answers at a sentence's first and last character, several of a question,
  one in two sentences, one in a title, and a question without candidates.
  """
  found = list(reader(root).examples('validation'))
  assert pairs(found) == PAIRS
  assert found[0] == example(
      'Who wrote notes?', 'Ada wrote notes.', query_id='a1',
      passage_id='SQuAD_a1/a2/a3/_0', location=f'{root / MRQA}:2',
  )


def test_corpus(root):
  rows = list(reader(root).examples('corpus'))
  contexts = {'a1/a2/a3': '012', 'b2/b1': '012', 'c1/c2': ('0_0', '0_1', '1_0')}
  assert column(rows, 'passage_id') == [
      f'SQuAD_{name}/_{n}' for name, labels in contexts.items() for n in labels
  ]
  assert rows[7]['passage'] == 'It ends near Venice.'
  assert all(row['query'] == row['query_id'] == '' for row in rows)
  assert {pair[1:] for pair in PAIRS} <= {pair[1:] for pair in pairs(rows)}


def test_splits():
  known, tested = MultiReQA('TriviaQA'), MultiReQA('BioASQ')
  assert known.splits() == ('train', 'validation', 'corpus')
  assert tested.splits() == ('test', 'corpus')
  assert known.corpus_split('validation') == tested.corpus_split('test')
  assert known.corpus_split('validation') == 'corpus'
  assert known.corpus_split('train') is known.corpus_split('corpus') is None
  for each, split in ((known, 'test'), (tested, 'train'), (tested, 'tst')):
    check = each.check_split
    refused(lambda: check(split), f'has no split {split!r}', 'corpus')


def test_questions_with_a_positive_are_counted(root, caplog):
  caplog.set_level(logging.INFO, 'dualenc_jax')
  assert len(list(reader(root).examples('validation'))) == 8
  assert '6 of 8 questions have a positive' in caplog.text
