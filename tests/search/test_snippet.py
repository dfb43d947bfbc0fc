"""The sentence that shows why a passage was found, by hand."""

import pytest

from dualenc_jax.retrieval.search import snippet

TEXT = (
    'Jupiter is a planet. Its four largest moons were discovered by Galileo in'
    ' 1610!\n\nOther\nmoons are small. 木星は大きい。衛星がある。'
)


@pytest.mark.parametrize('query, expected, matches', [
    # discovered, moon: by their stems, without the stop words.
    (
        'who has discovered the moon',
        'Its four largest moons were discovered by Galileo in 1610!',
        2,
    ),
    # The first of two with one word; a line end within is a space.
    ('small', 'Other moons are small.', 1),
    ('nothing of it', 'Jupiter is a planet.', 0),
    ('衛星がある', '衛星がある。', 4),
    # Stop words alone are words after all.
    ('is a', 'Jupiter is a planet.', 2),
])
def test_the_sentence_with_the_most_words(query, expected, matches):
  assert snippet.find_snippet(query, TEXT) == (expected, matches)


def test_a_long_line_is_cut():
  found = snippet.find_snippet('needle', 'needle' + ' straw' * 200)
  assert found.matches == 1 and found.text.startswith('needle straw straw')
  assert found.text.endswith(' straw...')
  assert len(found.text) <= snippet.LONGEST
