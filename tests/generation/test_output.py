"""The files of generated queries are read back as they were written."""

import csv

from dualenc_jax.data.readers import Beir
from dualenc_jax.pipelines.generation import output
from dualenc_jax.pipelines.generation.corpus import Passage
from dualenc_jax.pipelines.generation.generator import Query


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
