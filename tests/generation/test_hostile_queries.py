"""Generated queries that are not what `Shards.write` writes."""

import json

import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.generation.sampling import Sampling
from dualenc_jax.generation.shards import Passage, Shards


@pytest.mark.parametrize(
    'query', [5, 'abc', ['q', 0.5], ['q', '0.5', True], [1, 0.5, True], {}]
)
def test_a_query_of_another_form_is_named(tmp_path, query):
  shards = Shards(tmp_path, [Passage('d1', '', 'a')], 1, Sampling(), 8, 0)
  row = {'_id': 'd1', 'queries': [['q', -0.5, True]]}
  shards.path(0).write_text(json.dumps(row))
  assert [found.text for found in shards.read()] == ['q']
  shards.path(0).write_text(json.dumps({**row, 'queries': [query]}))
  with pytest.raises(UserError, match='00000.jsonl, line 1 has the query'):
    list(shards.read())
