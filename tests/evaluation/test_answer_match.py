"""Answer matching: cases by hand, and DPR's regular expression by `regex`."""

import random
import unicodedata

import numpy as np
import pytest
import regex

from dualenc_jax.evaluation import answer_match

CASES = [
    ('193', 'It froze over in 1931.', False),
    ('1931', 'from 1931-1935', True),
    ('\u00cdris', 'I\u0301RIS sings', True),
    # Hyphens and punctuation are tokens, spaces are not.
    ('well known', 'a well-known market', False),
    ("o'clock", 'at nine o\u2019clock', False),
    # White space and control characters separate, format ones too.
    ('a b', 'a\u00a0\t\nb', True),
    ('ab', 'a\u200bb', False),
    # All of the answer, in order.
    ('a a b', 'a a a b', True),
    ('', 'anything', True),
]


def has_answer(answers, text):
  found = answer_match.each_hit(np.array([[0]]), [answers], lambda _: text)
  return next(next(found))


@pytest.mark.parametrize('answer, text, expected', CASES)
def test_by_hand(answer, text, expected):
  assert has_answer([answer], text) is expected
  # One answer of several is enough.
  assert has_answer(['no such words', answer, '1888'], text) is expected


WORD_OR_SIGN = regex.compile(
    r'([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])', regex.I | regex.U | regex.M
)


def reference_tokens(text):
  text = unicodedata.normalize('NFD', text)
  return [match.group().lower() for match in WORD_OR_SIGN.finditer(text)]


def reference_has_answer(answers, text):
  """A search for the list in the list."""
  text = reference_tokens(text)
  for answer in map(reference_tokens, answers):
    for start in range(len(text) - len(answer) + 1):
      if text[start : start + len(answer)] == answer:
        return True
  return False


def assigned(first, last):
  """Characters; unassigned ones depend on the version of Unicode."""
  characters = map(chr, range(first, last + 1))
  return [c for c in characters if unicodedata.category(c) != 'Cn']


ALPHABETS = [
    list('abAB 12-,.\'"'),
    list('aI\u0130i\u0131\u0301\u0307\u0327\u00df\u1e9e\u03a3\u03c2\u03c3 .'),
    assigned(0, 0x24F) + assigned(0x900, 0x97F),
    assigned(0x2000, 0x218F),
    assigned(0, 0x2FFFF),
]


@pytest.mark.parametrize('alphabet', ALPHABETS, ids=range(len(ALPHABETS)))
def test_against_dprs_expression_on_random_strings(alphabet):
  rng = random.Random(0)
  found = 0
  for _ in range(1500):
    text = ''.join(rng.choices(alphabet, k=rng.randrange(30)))
    assert answer_match.tokens(text) == reference_tokens(text)
    start = rng.randrange(len(text) + 1)
    answers = [
        ''.join(rng.choices(alphabet, k=rng.randrange(1, 4))),
        text[start : start + rng.randrange(1, 6)].swapcase(),
    ]
    expected = reference_has_answer(answers, text)
    assert has_answer(answers, text) is expected
    found += expected
  assert 0 < found < 1500


def test_every_assigned_character_alone_and_in_a_word():
  for character in assigned(0, 0x10FFFF):
    text = f'a{character}b'
    assert answer_match.tokens(text) == reference_tokens(text), ord(character)


PLACES = [1, 5, 6, 20, 21, 100, 101, 0]


def test_top_k_matches_by_the_first_hit():
  # The passage that answers stands at this place, the last one's nowhere.
  indices = np.arange(1, 151)[None, :].repeat(len(PLACES), axis=0)
  answers = [[f'no {place}', 'nothing'] for place in PLACES]
  matches = answer_match.top_k_matches(
      indices, answers, lambda row: f'This is no {row}.'
  )
  assert {name: values.tolist() for name, values in matches.items()} == {
      'Top-5': [1, 1, 0, 0, 0, 0, 0, 0],
      'Top-20': [1, 1, 1, 1, 0, 0, 0, 0],
      'Top-100': [1, 1, 1, 1, 1, 1, 0, 0],
  }
  assert list(matches) == ['Top-5', 'Top-20', 'Top-100']
  cuts = answer_match.top_k_matches(
      indices, answers, lambda row: f'This is no {row}.', [1, 101]
  )
  assert cuts['Top-1'].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
  assert cuts['Top-101'].tolist() == [1, 1, 1, 1, 1, 1, 1, 0]
