"""What a report says of the margins of mined negatives."""

import types

import numpy as np
import pytest

from dualenc_jax.mining import margins


@pytest.mark.parametrize(
    ('teacher', 'other', 'said'),
    [(1.0, 1.0, 'too easy'), (0.5, 0.5, 'not beat'), (1.0, 0.5, None)],
)
def test_easy_queries_are_no_fault_of_the_teacher(teacher, other, said):
  chosen = [[types.SimpleNamespace(score=-1.0)]]
  first = {'teacher': teacher, 'bm25': other}
  text = '\n'.join(margins.report(np.ones(1), chosen, first))
  for warning in ('too easy', 'not beat'):
    assert (warning in text) == (warning == said)
