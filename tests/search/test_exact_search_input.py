"""What search refuses, and what it says then."""

import jax
import numpy as np
import pytest

from dualenc_jax.retrieval.index import RowStore
from dualenc_jax.retrieval.search.exact_search import ExactSearch
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.devices(8)

GOOD = np.ones((3, 4), np.float32)
IDS = ['a', 'b', 'c']
MANY = 700
MANY_IDS = [str(i) for i in range(MANY)]


@pytest.mark.parametrize('passages, ids, message', [
    (RowStore([GOOD[:0]]), [], r'passage embeddings have shape \(0, 4\)'),
    (GOOD, IDS[:2], '2 passage ids for 3 passage embeddings'),
    (GOOD.astype(int), IDS, 'passage embeddings are int64: expected'),
])
def test_bad_corpora(passages, ids, message):
  with pytest.raises(UserError, match=message):
    ExactSearch(passages, ids)


@pytest.mark.parametrize('queries, message', [
    (GOOD[:0], r'query embeddings have shape \(0, 4\)'),
    (GOOD[:, :3], 'query embeddings have dim 3 and passage embeddings 4:'),
    (np.full((9, 4), np.nan), 'query embeddings of row 0, .* hold NaN'),
])
def test_bad_queries(queries, message):
  search = ExactSearch(GOOD, IDS)
  with pytest.raises(UserError, match='k is 0; expected'):
    search.top_k(queries, 0)
  with pytest.raises(UserError, match=message):
    search.top_k(queries, 1)
  with pytest.raises(UserError, match=message):
    search.gold_ranks(queries, [[0]] * len(queries))


@pytest.mark.parametrize('value, rows, message', [
    # In the last block, of which a part is padding.
    (1e20, [699], 'of row 699 hold'),
    (np.inf, range(600, 700), 'row 604 and 95 more nearby hold'),
])
def test_bad_passages(rows, message, value):
  passages = np.ones((MANY, 4), np.float32)
  passages[rows, 2] = value
  message = f'passage embeddings .*{message}'
  mesh = jax.sharding.Mesh(np.array(jax.devices()), ('x',))
  search = ExactSearch(passages, MANY_IDS, mesh, block_rows=16)
  with pytest.raises(UserError, match=message):
    search.top_k(GOOD, 2)
  with pytest.raises(UserError, match=message):
    search.gold_ranks(GOOD, [[1], [], [2]])
