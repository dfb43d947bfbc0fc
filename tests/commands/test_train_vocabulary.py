"""The vocabulary script: its normaliser, its ids, and that runs agree."""

import numpy as np
import pytest
import sentencepiece

from dualenc_jax.commands.train_vocabulary import length_report, train
from dualenc_jax.text.tokenizer import Tokenizer, Vocabulary

LINES = [
    f'def parse_{a}(self): return self.{a}_{b} + {i}'
    for i, (a, b) in enumerate(
        (a, b)
        for a in ('date', 'time', 'zone', 'name', 'path')
        for b in ('first', 'second', 'third', 'last')
    )
]


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  path = tmp_path_factory.mktemp('vocabulary') / 'new' / 'toy.model'
  train(LINES, 80, path)
  return path


def test_two_runs_write_the_same_bytes(model, tmp_path):
  train(LINES, 80, tmp_path / 'again.model')
  assert (tmp_path / 'again.model').read_bytes() == model.read_bytes()


def test_ids_and_size_are_what_vocabulary_expects(model):
  vocabulary = Vocabulary(str(model))
  assert vocabulary.size == 80
  assert vocabulary.encode(['date'], 9).row(0).tolist()[-1] == 1


@pytest.mark.parametrize(
    'text,normal',
    [
        ('parse_iso_date', '▁parse▁iso▁date'),
        ('__init__', '▁init'),
        ('parseDate', '▁parse▁date'),
        ('HTTPServer', '▁http▁server'),
        ('getURLForRequest', '▁get▁url▁for▁request'),
        ('MAX_SIZE', '▁max▁size'),
        ('self.parse(x)', '▁self.▁parse(▁x)'),
        ('a\n\t  b', '▁a▁b'),
        ('sha256 = 0xFF', '▁sha256▁=▁0x▁ff'),
        ('É 中', '▁É▁中'),
    ],
)
def test_normaliser_is_in_the_model(model, text, normal):
  processor = sentencepiece.SentencePieceProcessor()
  processor.load(str(model))
  pieces = processor.encode_as_pieces(text)
  assert ''.join(pieces) == normal


def test_length_report(model):
  examples = [{'query': 'date', 'passage': 'date ' * n} for n in range(1, 4)]
  tokenizer = Tokenizer(Vocabulary(str(model)), 64, 3)
  word = len(Vocabulary(str(model)).encode(['date'], 99).row(0)) - 1
  lengths = np.array([1, 2, 3]) * word + 1
  query, passage = length_report(tokenizer, examples).splitlines()
  assert query.startswith(f'query: mean {word + 1:.1f}')
  assert f'median {np.median(lengths):.0f},' in passage
  assert passage.endswith(f'{np.mean(lengths > 3):.1%} longer than 3')
