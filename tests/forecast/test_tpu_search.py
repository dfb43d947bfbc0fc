"""Search as the TPU's compiler has it."""

import pytest

from dualenc_jax.forecast import slices
from dualenc_jax.search.search_programs import Programs

# More scores than fit the units' own memory.
QUERIES, ROWS, DIM, KEPT = 256, 2**17, 64, 44


@pytest.mark.slow
def test_scores_are_there_once():
  """No copy of them, in the order of queries or of groups, stands beside."""
  run = Programs(tuple(slices.find('v5e:2x2').devices))
  compiled = run.lower_update_best(ROWS, QUERIES, DIM, KEPT).compile()
  temporaries = compiled.memory_analysis().temp_size_in_bytes
  scores = 4 * QUERIES * ROWS
  assert scores <= temporaries < 1.5 * scores
