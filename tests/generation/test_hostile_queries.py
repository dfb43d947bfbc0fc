"""Generated queries that are not what `Shards.write` writes."""

import csv
import json

import pytest

from dualenc_jax.data.readers import Beir
from dualenc_jax.pipelines.generation import output
from dualenc_jax.pipelines.generation.corpus import Passage
from dualenc_jax.pipelines.generation.generator import Query
from dualenc_jax.pipelines.generation.sampling import Sampling
from dualenc_jax.pipelines.generation.shards import Shards
from dualenc_jax.utils.errors import UserError


@pytest.mark.parametrize(
    'query', [5, ['q', 0.5], ['q', '0.5', True], [1, 0.5, True]]
)
def test_a_query_of_another_form_is_named(tmp_path, query):
  shards = Shards(tmp_path, [Passage('d1', '', 'a')], 1, Sampling(), 8, 0)
  row = {'_id': 'd1', 'queries': [['q', -0.5, True]]}
  shards.path(0).write_text(json.dumps(row))
  assert [found.text for found in shards.read()] == ['q']
  shards.path(0).write_text(json.dumps({**row, 'queries': [query]}))
  with pytest.raises(UserError, match='00000.jsonl, line 1 has the query'):
    list(shards.read())


def test_quotes_in_ids_are_read_back(tmp_path):
  names = ['"a"', '"b', 'c"', 'd"e', '"', '""', 'f']
  passages = [Passage(name, '', f'text {name}') for name in names]
  queries = [Query(i, 0, f'query {i}', -0.5, True) for i in range(len(names))]
  output.write(tmp_path, passages, queries, {}, {})
  pairs = Beir(folder=str(tmp_path), prefix='qgen').examples('train')
  assert [pair['passage_id'] for pair in pairs] == names
  # As BEIR's own reader, which is GPL's.
  with (tmp_path / 'qgen-qrels' / 'train.tsv').open(newline='') as file:
    rows = [*csv.reader(file, delimiter='\t', quoting=csv.QUOTE_MINIMAL)]
  assert [row[1] for row in rows[1:]] == names
