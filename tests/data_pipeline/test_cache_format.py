"""Array files: chunks, columns of one value, and going on."""

import numpy as np
import pytest

from dualenc_jax.data.cache import format as cache_format
from dualenc_jax.data.cache.format import ArrayWriter, map_array

ARRAYS = {
    'nothing': [],
    'one': [7],
    'equal': [5] * 20,
    'zeros': [0] * 20,
    'late': [5] * 19 + [6],
    'early': [5, 6] + [5] * 18,
    'mixed': list(range(20)),
}


def write(folder, values, ends, state=(0, 0)):
  """Appends values[state[0]:], divided at `ends`; returns rows and bytes."""
  writer = ArrayWriter(folder, 'x', np.int32, *state)
  rest = np.array(values[writer.rows :], np.int32)
  for part in np.split(rest, ends):
    writer.append(part)
  writer.sync()
  writer.close()
  return writer.rows, writer.size


@pytest.mark.parametrize('name', ARRAYS)
@pytest.mark.parametrize('ends', [[], [1], [0, 3, 3, 19], range(1, 20)])
def test_what_is_written_is_mapped(tmp_path, monkeypatch, name, ends):
  monkeypatch.setattr(cache_format, '_BLOCK', 4)
  rows, size = write(tmp_path, ARRAYS[name], list(ends))
  path = tmp_path / 'x.int32'
  assert path.stat().st_size == size
  found = map_array(path, rows)
  assert found.dtype == np.int32 and found.tolist() == ARRAYS[name]
  is_constant = len(set(ARRAYS[name])) == 1
  assert size == 4 * (1 if is_constant else rows)


@pytest.mark.parametrize('name', ['equal', 'zeros', 'late', 'early', 'mixed'])
@pytest.mark.parametrize('done', [0, 1, 2, 19, 20])
def test_a_writer_goes_on_and_forgets_the_rest(tmp_path, name, done):
  state = write(tmp_path, ARRAYS[name][:done], [])
  with open(tmp_path / 'x.int32', 'ab') as file:
    file.write(b'what was not committed')
  rows, size = write(tmp_path, ARRAYS[name], [], state)
  path = tmp_path / 'x.int32'
  assert path.stat().st_size == size
  assert map_array(path, rows).tolist() == ARRAYS[name]


def test_offsets_follow_those_that_are_there(tmp_path):
  writer = ArrayWriter(tmp_path, 'x', np.int64)
  for offsets in ([0, 0, 0], [0], [0, 2, 5], [0, 1]):
    writer.append_offsets(np.array(offsets))
  writer.close()
  assert map_array(writer.path, writer.rows).tolist() == [0, 0, 0, 2, 5, 6]


@pytest.mark.parametrize('last, size', [(np.nan, 4), (1.0, 80)])
def test_values_that_are_all_absent_take_no_room(tmp_path, last, size):
  values = np.full(20, np.nan, np.float32)
  values[-1] = last
  writer = ArrayWriter(tmp_path, 'x', np.float32)
  for part in np.split(values, [1, 7, 19]):
    writer.append(part)
  writer.close()
  assert writer.size == size
  found = map_array(tmp_path / 'x.float32', 20)
  np.testing.assert_array_equal(found, values)
