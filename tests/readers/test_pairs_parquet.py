"""pairs' reader: Parquet files, written by pyarrow."""

import os
import sys

import pyarrow as pa
from pyarrow import parquet
import pytest
from test_pairs import column, read

from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.readers.pairs import Pairs

STRING = pa.string()
# 'q' and a byte that is not UTF-8, which pyarrow does not check.
NOT_UTF_8 = pa.Array.from_buffers(
    STRING,
    2,
    [None, pa.py_buffer(b'\0\0\0\0\1\0\0\0\2\0\0\0'), pa.py_buffer(b'q\xff')],
)


def write(folder, columns, **options):
  path = folder / 'a.parquet'
  parquet.write_table(pa.table(columns), path, **options)
  return path


def test_rows_over_batches_and_row_groups(tmp_path):
  count = 2500
  negatives = [[f'n{j}' for j in range(i % 4)] for i in range(count)]
  path = write(
      tmp_path,
      {
          'passage': [f'p {i}' for i in range(count)],
          'query': [f'q {i}' for i in range(count)],
          'negatives': negatives,
          'query_id': range(count),
          'passage_id': [f'd{i}' for i in range(count)],
          'other': [float(i) for i in range(count)],
      },
      row_group_size=700,
  )
  examples = read(path)
  assert len(examples) == count
  for i in (0, 255, 256, 699, 700, 2499):
    assert examples[i] == {
        'query': f'q {i}',
        'passage': f'p {i}',
        'negatives': negatives[i],
        'query_id': str(i),
        'passage_id': f'd{i}',
        'name': '',
        'location': f'{path}:{i + 1}',
        'relevance': 1,
        'answers': [],
    }


TYPES = [
    pa.list_(STRING),
    pa.large_list(pa.large_string()),
    pa.list_(pa.dictionary(pa.int32(), STRING)),
]


@pytest.mark.parametrize('list_type', TYPES, ids=str)
def test_lists_and_strings_of_every_type(tmp_path, list_type):
  path = write(
      tmp_path,
      {
          'query': pa.array(['q', 'r']).dictionary_encode(),
          'a.pos': pa.array([['p1', 'p2'], ['p3']]).cast(list_type),
          'neg': pa.array([[], []], pa.list_(pa.null())),
          'neg_1': pa.array(['n', None], pa.large_string()),
          'neg_2': pa.array([None, ''], STRING),
          'neg_scores': [1.0, 2.0],
      },
  )
  examples = read(path, passage='a.pos', negatives='neg')
  assert [(e['query'], e['passage'], e['negatives']) for e in examples] == [
      ('q', 'p1', ['n']),
      ('q', 'p2', ['n']),
      ('r', 'p3', []),
  ]


def test_format_by_option(tmp_path):
  path = write(tmp_path, {'query': ['q'], 'passage': ['p']})
  path = path.rename(tmp_path / 'part-0')
  assert column(read(path, format='parquet'), 'passage') == ['p']


def test_other_columns_are_not_read(tmp_path):
  columns = {'query': ['q', 'r'], 'passage': ['p', 'p'], 'other': NOT_UTF_8}
  assert column(read(write(tmp_path, columns)), 'query') == ['q', 'r']


def shared_text(folder, size, of_lists=False):
  """A small file of 256 rows, all with one text of so many MiB."""
  text = pa.DictionaryArray.from_arrays(
      pa.array([0] * 256, pa.int32()), pa.array(['a' * (size << 20)])
  )
  if of_lists:
    text = pa.ListArray.from_arrays(pa.array(range(257), pa.int32()), text)
  path = write(
      folder, {'query': ['q'] * 256, 'passage': text}, compression='zstd'
  )
  assert path.stat().st_size < 20_000
  return path


def test_a_text_that_all_rows_have_takes_the_memory_of_a_few(tmp_path):
  path = shared_text(tmp_path, 16)
  before, peak, count = pa.total_allocated_bytes(), 0, 0
  for example in Pairs(train=str(path)).examples('train'):
    count += len(example['passage']) == 16 << 20
    peak = max(peak, pa.total_allocated_bytes() - before)
    if count == 20:
      break
  # 4 GiB otherwise.
  assert count == 20 and peak < 2**29


@pytest.mark.parametrize('size, of_lists', [(65, False), (17, True)])
def test_a_text_longer_than_any_line(tmp_path, size, of_lists):
  path = shared_text(tmp_path, size, of_lists)
  with pytest.raises(UserError, match="a.parquet: column 'passage' has a dict"):
    read(path)


def test_memory_does_not_grow_with_a_row_group(tmp_path):
  texts = [os.urandom(1000).hex() for _ in range(10_000)]
  path = write(tmp_path, {'query': texts, 'passage': texts})
  assert parquet.read_metadata(path).num_row_groups == 1
  before = pa.total_allocated_bytes()
  peak = 0
  for _ in Pairs(train=str(path)).examples('train'):
    peak = max(peak, pa.total_allocated_bytes() - before)
  assert 0 < peak < path.stat().st_size / 2


BAD = [
    ({'query': ['q', 'r'], 'passage': ['p', None]}, "'passage' holds NoneType"),
    ({'query': ['q', ''], 'passage': ['p', 'p']}, "'query' is empty"),
    ({'query': NOT_UTF_8, 'passage': ['p', 'p']}, 'not UTF-8'),
]


@pytest.mark.parametrize('columns, reason', BAD)
def test_bad_rows(tmp_path, columns, reason):
  path = write(tmp_path, columns)
  with pytest.raises(UserError) as error:
    read(path)
  assert str(error.value).startswith(f'{path}:2: {reason}')
  assert column(read(path, strict=False), 'query') == ['q']


WRONG_TYPES = [
    ({'passage': [1.5]}, "'passage' holds float, not a string"),
    ({'passage': [b'p']}, "'passage' holds bytes, not a string"),
    ({'passage': [{'text': 'p'}]}, "'passage' holds dict, not a string"),
    ({'passage': [[['p']]]}, "'passage' holds list, not a string"),
    ({'passage': ['p'], 'negatives': [2]}, "'negatives' holds int"),
    ({'passage': ['p'], 'query_id': [0.5]}, "'query_id' is neither"),
]


@pytest.mark.parametrize('columns, reason', WRONG_TYPES)
def test_columns_of_a_wrong_type(tmp_path, columns, reason):
  path = write(tmp_path, {'query': ['q']} | columns)
  with pytest.raises(UserError) as error:
    read(path)
  assert str(error.value).startswith(f'{path}:1: {reason}')


def test_columns_that_are_missing_or_there_twice(tmp_path):
  path = write(tmp_path, {'query': ['q'], 'passages': ['p']})
  with pytest.raises(UserError, match="'passage'. Did you mean 'passage") as e:
    read(path)
  assert 'PASSAGE_COLUMN' in str(e.value) and 'COLUMNS=' not in str(e.value)
  table = pa.table([['q'], ['p'], ['r']], names=['query', 'passage', 'query'])
  parquet.write_table(table, path)
  with pytest.raises(UserError, match="two columns 'query'"):
    read(path)


def test_no_rows(tmp_path):
  empty = pa.array([], STRING)
  path = write(tmp_path, {'query': empty, 'passage': empty})
  with pytest.raises(UserError, match='has no rows'):
    read(path)


def test_damaged_files(tmp_path):
  texts = [f'text {i} ' * 20 for i in range(5000)]
  path = write(tmp_path, {'query': texts, 'passage': texts})
  content = path.read_bytes()
  for damaged in (b'', b'query\tpassage\n' * 9, content[:-9], content[9:]):
    path.write_bytes(damaged)
    with pytest.raises(UserError, match=r'a\.parquet.* damaged.*Copy or downl'):
      read(path)
  middle = len(content) // 2
  path.write_bytes(content[:middle] + bytes(500) + content[middle + 500 :])
  with pytest.raises(UserError, match='after row [0-9]+: .*Copy or download'):
    read(path)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
  path = write(tmp_path, {'query': ['q'], 'passage': ['p']})
  monkeypatch.setitem(sys.modules, 'pyarrow', None)
  reader = Pairs(train=str(path))
  reader.check_split('train')
  with pytest.raises(SourceUnavailable, match=r'Install dualenc-jax\[data\]'):
    list(reader.examples('train'))
