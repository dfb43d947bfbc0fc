"""pairs' reader: Parquet files, written by pyarrow."""

import os

import pyarrow as pa
from pyarrow import parquet
import pytest
from reading import column, refused
from test_pairs import read, texts

from dualenc_jax.data.dataset import example
from dualenc_jax.data.readers.pairs import Pairs

STRING = pa.string()
# 'q' and a byte that is not UTF-8, which pyarrow does not check.
NOT_UTF_8 = pa.Array.from_buffers(
    STRING, 2,
    [None, pa.py_buffer(b'\0\0\0\0\1\0\0\0\2\0\0\0'), pa.py_buffer(b'q\xff')],
)


def write(folder, columns, **options):
  path = folder / 'a.parquet'
  parquet.write_table(pa.table(columns), path, **options)
  return path


def test_rows_over_batches_and_row_groups(tmp_path):
  numbers = range(2500)
  columns = {
      'passage': [f'p {i}' for i in numbers],
      'query': [f'q {i}' for i in numbers],
      'negatives': [[f'n{j}' for j in range(i % 4)] for i in numbers],
      'query_id': numbers,
      'passage_id': [f'd{i}' for i in numbers],
      'other': [float(i) for i in numbers],
  }
  path = write(tmp_path, columns, row_group_size=700)
  examples = read(path)
  assert len(examples) == 2500
  for i in (0, 255, 256, 699, 700, 2499):
    assert examples[i] == example(
        f'q {i}', f'p {i}', negatives=columns['negatives'][i],
        query_id=str(i), passage_id=f'd{i}', location=f'{path}:{i + 1}',
    )


@pytest.mark.parametrize('list_type', [
    pa.list_(STRING), pa.large_list(pa.large_string()),
    pa.list_(pa.dictionary(pa.int32(), STRING)),
], ids=str)
def test_lists_and_strings_of_every_type(tmp_path, list_type):
  path = write(tmp_path, {
      'query': pa.array(['q', 'r']).dictionary_encode(),
      'a.pos': pa.array([['p1', 'p2'], ['p3']]).cast(list_type),
      'neg': pa.array([[], []], pa.list_(pa.null())),
      'neg_1': pa.array(['n', None], pa.large_string()),
      'neg_2': pa.array([None, ''], STRING),
      'neg_scores': [1.0, 2.0],
  })
  assert texts(read(path, passage='a.pos', negatives='neg')) == [
      ['q', 'p1', 'n'], ['q', 'p2', 'n'], ['r', 'p3']
  ]


def test_memory_does_not_grow_with_a_row_group(tmp_path):
  rows = [os.urandom(1000).hex() for _ in range(10_000)]
  path = write(tmp_path, {'query': rows, 'passage': rows})
  assert parquet.read_metadata(path).num_row_groups == 1
  before = pa.total_allocated_bytes()
  peak = 0
  for _ in Pairs(train=str(path)).examples('train'):
    peak = max(peak, pa.total_allocated_bytes() - before)
  assert 0 < peak < path.stat().st_size / 2


def test_bad_rows(tmp_path):
  path = write(tmp_path, {'query': ['q', 'r'], 'passage': ['p', None]})
  refused(lambda: read(path), f"{path}:2: 'passage' holds null, not a")
  assert column(read(path, strict=False), 'query') == ['q']
  path = write(tmp_path, {'query': NOT_UTF_8, 'passage': ['p', 'p']})
  refused(lambda: read(path), 'damaged', 'utf-8')


def test_damaged_files(tmp_path):
  rows = [f'text {i} ' * 20 for i in range(5000)]
  path = write(tmp_path, {'query': rows, 'passage': rows})
  content = path.read_bytes()
  for damaged in (b'', b'query\tpassage\n' * 9, content[:-9], content[9:]):
    path.write_bytes(damaged)
    refused(lambda: read(path), 'a.parquet', 'damaged', 'Copy or download')
  middle = len(content) // 2
  path.write_bytes(content[:middle] + bytes(500) + content[middle + 500 :])
  refused(lambda: read(path), 'damaged', 'Copy or download')
  # Sums tell damage that texts do not show.
  options = {'write_page_checksum': True, 'compression': 'none'}
  path = write(tmp_path, {'query': rows, 'passage': rows}, **options)
  path.write_bytes(path.read_bytes().replace(b'text 4999', b'text 4998', 1))
  refused(lambda: read(path), 'a.parquet', 'CRC', 'Copy or download')
