"""pairs' reader: Parquet files, written by pyarrow."""

import os
import sys

import pyarrow as pa
from pyarrow import parquet
import pytest
from reading import column, refused
from test_pairs import read, texts

from dualenc_jax.data.dataset import example
from dualenc_jax.errors import SourceUnavailable
from dualenc_jax.readers import pairs_formats, text_lines
from dualenc_jax.readers.pairs import Pairs

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


def test_other_columns_are_not_read(tmp_path):
  columns = {'query': ['q', 'r'], 'passage': ['p', 'p'], 'other': NOT_UTF_8}
  path = write(tmp_path, columns).rename(tmp_path / 'part-0')
  assert column(read(path, format='parquet'), 'query') == ['q', 'r']


def shared_text(folder, size, of_lists=False):
  """A small file of 256 rows, all with one text of so many letters."""
  text = pa.DictionaryArray.from_arrays(
      pa.array([0] * 256, pa.int32()), pa.array(['a' * size])
  )
  if of_lists:
    text = pa.ListArray.from_arrays(pa.array(range(257), pa.int32()), text)
  columns = {'query': ['q'] * 256, 'passage': text}
  return write(folder, columns, compression='zstd')


def test_a_text_that_all_rows_have_takes_the_memory_of_a_few(
    tmp_path, monkeypatch
):
  monkeypatch.setattr(pairs_formats, '_PARQUET_TEXTS', 2**24)
  path = shared_text(tmp_path, 2**20)
  before, peak, count = pa.total_allocated_bytes(), 0, 0
  for row in Pairs(train=str(path)).examples('train'):
    count += len(row['passage']) == 2**20
    peak = max(peak, pa.total_allocated_bytes() - before)
    if count == 20:
      break
  # 2**28 otherwise.
  assert count == 20 and peak < 2**25


@pytest.mark.parametrize('of_lists', [False, True])
def test_a_text_longer_than_any_line(tmp_path, monkeypatch, of_lists):
  monkeypatch.setattr(text_lines, 'LONGEST_LINE', 2**20)
  monkeypatch.setattr(pairs_formats, '_OF_LISTS', 2**18)
  path = shared_text(tmp_path, 2**18 if of_lists else 2**20, of_lists)
  refused(lambda: read(path), "a.parquet: column 'passage' has a dictionary")


def test_memory_does_not_grow_with_a_row_group(tmp_path):
  rows = [os.urandom(1000).hex() for _ in range(10_000)]
  path = write(tmp_path, {'query': rows, 'passage': rows})
  assert parquet.read_metadata(path).num_row_groups == 1
  before = pa.total_allocated_bytes()
  peak = 0
  for _ in Pairs(train=str(path)).examples('train'):
    peak = max(peak, pa.total_allocated_bytes() - before)
  assert 0 < peak < path.stat().st_size / 2


@pytest.mark.parametrize('columns, reason', [
    ({'query': ['q', 'r'], 'passage': ['p', None]}, "'passage' holds NoneType"),
    ({'query': ['q', ''], 'passage': ['p', 'p']}, "'query' is empty"),
    ({'query': NOT_UTF_8, 'passage': ['p', 'p']}, 'not UTF-8'),
    ({'query': ['q', 'r'], 'passage': [['p'], []]}, 'is an empty list'),
])
def test_bad_rows(tmp_path, columns, reason):
  path = write(tmp_path, columns)
  refused(lambda: read(path), f'{path}:2: ', reason)
  assert column(read(path, strict=False), 'query') == ['q']


def test_missing_columns_and_rows(tmp_path):
  path = write(tmp_path, {'query': ['q'], 'passages': ['p']})
  told = refused(lambda: read(path), "mean 'passages'", 'PASSAGE_COLUMN')
  assert 'COLUMNS=' not in told
  empty = pa.array([], STRING)
  write(tmp_path, {'query': empty, 'passage': empty})
  refused(lambda: read(path), 'has no rows')


def test_damaged_files(tmp_path):
  rows = [f'text {i} ' * 20 for i in range(5000)]
  path = write(tmp_path, {'query': rows, 'passage': rows})
  content = path.read_bytes()
  for damaged in (b'', b'query\tpassage\n' * 9, content[:-9], content[9:]):
    path.write_bytes(damaged)
    refused(lambda: read(path), 'a.parquet', 'damaged', 'Copy or download')
  middle = len(content) // 2
  path.write_bytes(content[:middle] + bytes(500) + content[middle + 500 :])
  refused(lambda: read(path), 'after row ', 'Copy or download')


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
  path = write(tmp_path, {'query': ['q'], 'passage': ['p']})
  monkeypatch.setitem(sys.modules, 'pyarrow', None)
  reader = Pairs(train=str(path))
  reader.check_split('train')
  refused(lambda: reader.examples('train'), 'Install dualenc-jax[data]',
          error=SourceUnavailable)
