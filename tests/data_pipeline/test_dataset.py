"""Datasets of the user's own, and what all have in common."""

import dataclasses

import pytest

from dualenc_jax.data import Dataset, example
from dualenc_jax.data.dataset import rows
from dualenc_jax.data.readers import Beir, Pairs
from dualenc_jax.utils.errors import UserError


@dataclasses.dataclass(frozen=True)
class Mine(Dataset):
  """The least that a dataset needs."""

  count: int = 2
  texts: tuple = ('p0', 'p1')

  def splits(self):
    return ('train', 'validation')

  def examples(self, split):
    for number in range(self.count):
      yield {'query': f'q{number}', 'passage': self.texts[number]}


def test_the_least_that_a_dataset_needs():
  mine = Mine()
  assert list(rows(mine, 'train')) == [example('q0', 'p0'), example('q1', 'p1')]
  assert (mine.task_name, mine.label, mine.evaluated) == (
      'Mine', 'Mine', 'validation'
  )
  assert mine.parts() == [(mine, 1.0)] and mine.for_split('train') == mine
  assert mine.corpus_split('train') is None and not mine.self_hits
  assert mine.answer_text('text', 'name') == 'text'
  assert mine.select_datasets() == [mine] and mine.judging_documents() == mine
  assert mine.identity('train') == {'count': 2, 'texts': ('p0', 'p1')}
  # Of what is read, where the class has no fingerprint of its own.
  assert mine.fingerprint('train') == Mine().fingerprint('train')
  assert mine.fingerprint('train') != Mine(1).fingerprint('train')
  with pytest.raises(UserError, match="no split 'tset'.*train, validation"):
    mine.fingerprint('tset')
  with pytest.raises(UserError, match="no data sets to choose 'x' from"):
    mine.select_datasets('x')


@pytest.mark.parametrize('row, message', [
    ({'query': 'q', 'pasage': 'p'}, "example 1: .*'pasage'"),
    ({'query': 5, 'passage': 'p'}, "example 1: 'query' holds 5, no"),
    ({'query': 'q', 'negatives': ['n', None]}, "example 1: 'negatives'"),
])
def test_what_is_no_example_is_named(row, message):
  class Bad(Mine):
    def examples(self, split):
      yield row

  with pytest.raises(UserError, match=f"Bad.*'train', {message}"):
    list(rows(Bad(), 'train'))


def test_identity_leaves_out_where_files_are():
  pairs = Pairs(train='/a/train.jsonl', test='/a/t.jsonl', query='question')
  defaults = Pairs().identity('x')
  assert pairs.identity('train') == defaults | {
      'train': 'train.jsonl', 'query': 'question'
  }
  assert pairs.identity('test') == defaults | {
      'test': 't.jsonl', 'query': 'question'
  }
  beir = Beir(
      dataset='scifact', root='/a', hard_negatives='/b/negatives.jsonl',
      max_negatives=5,
  )
  train, corpus = beir.identity('train'), beir.identity('corpus')
  assert train['hard_negatives'] == 'negatives.jsonl'
  assert not {'root', 'data_root'} & train.keys()
  assert not {'hard_negatives', 'max_negatives'} & corpus.keys()
