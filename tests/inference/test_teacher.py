"""What a teacher's scores have to be."""

import contextlib

import numpy as np
import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.inference.teacher import check_spread


@pytest.mark.parametrize(('scores', 'why'), [
    ([0.9, 0.8, 0.99, 0.2], 'passed a sigmoid, .* Give raw logits'),
    ([2.1, 2.0, 2.2, 1.9], 'It tells passages apart too little'),
    ([4.0, -3.0, 1.0, 3.0], None),
])
def test_flat_labels_are_refused_with_the_reason(scores, why):
  own, others = np.array(scores[::2]), np.array(scores[1::2])
  expected = (
      contextlib.nullcontext()
      if why is None
      else pytest.raises(UserError, match=f'deviation of 0.*{why}')
  )
  with expected:
    check_spread(own - others, np.array(scores), 1.0)
