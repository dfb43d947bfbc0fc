"""The reader of TensorBoard's files, against what tensorboardX writes."""

import numpy as np
import pytest
import report_folder
from tensorboardX import record_writer

from dualenc_jax.report import event_files
from dualenc_jax.report.series import Series


def scalars(folder):
  """Steps to values by tag, and problems."""
  series, problems = event_files.read_scalars(folder / 'events')
  values = {
      tag: dict(zip(s.steps.tolist(), s.values.tolist()))
      for tag, s in series.items()
  }
  return values, problems


def rounded(values):
  """As a file holds them: in float32."""
  return {step: float(np.float32(value)) for step, value in values.items()}


@pytest.mark.parametrize(
    'data, crc',
    # RFC 3720, B.4, and the check value of CRC-32C.
    [
        (bytes(32), 0x8A9136AA),
        (b'\xff' * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b'123456789', 0xE3069283),
    ],
)
def test_the_checksum_is_crc32c_masked_as_tfrecords_have_it(data, crc):
  masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32
  rows = np.frombuffer(data, np.uint8)[None]
  assert event_files.masked_crc32c(rows).tolist() == [masked]


def test_the_checksum_of_many_rows_is_that_of_each():
  rows = np.random.default_rng(0).integers(0, 256, (50, 71), np.uint8)
  expected = [record_writer.masked_crc32c(row.tobytes()) for row in rows]
  assert event_files.masked_crc32c(rows).tolist() == expected


def test_every_value_is_read_as_it_was_written(tmp_path):
  rng = np.random.default_rng(0)
  curves = {
      'train/loss': dict(enumerate(rng.normal(size=300).tolist(), 1)),
      'validation/nDCG_10': {100: 0.25, 200: 0.5, 300: float('nan')},
  }
  report_folder.events(tmp_path, curves)
  values, problems = scalars(tmp_path)
  assert problems == []
  assert values['train/loss'] == rounded(curves['train/loss'])
  assert list(values) == ['train/loss', 'validation/nDCG_10']
  assert np.isnan(values['validation/nDCG_10'].pop(300))
  assert values['validation/nDCG_10'] == {100: 0.25, 200: 0.5}


def test_a_restart_hides_what_the_run_before_it_did_later(tmp_path):
  first = {'a': dict.fromkeys(range(1, 11), 1.0), 'only_before': {7: 1.0}}
  second = {'a': {7: 2.0, 8: 2.0}}
  report_folder.events(tmp_path, first, suffix='.0')
  report_folder.events(tmp_path, second, start=6, suffix='.1')
  values, problems = scalars(tmp_path)
  assert values == {'a': {**dict.fromkeys(range(1, 7), 1.0), 7: 2.0, 8: 2.0}}
  assert problems == []


def test_the_later_of_two_values_of_a_step_counts(tmp_path):
  path = report_folder.events(tmp_path, {'a': {1: 1.0, 2: 1.0}})
  other = tmp_path / 'other'
  other.mkdir()
  again = report_folder.events(other, {'a': {2: 5.0}}, start=10)
  again.rename(path.with_name(path.name + '.later'))
  assert scalars(tmp_path)[0] == {'a': {1: 1.0, 2: 5.0}}


@pytest.mark.parametrize('cut', [1, 4, 9, 13, 20])
def test_a_last_record_that_is_being_written_is_left_out_in_silence(
    tmp_path, cut
):
  path = report_folder.events(tmp_path, {'a': {1: 1.0, 2: 2.0, 3: 3.0}})
  content = path.read_bytes()
  path.write_bytes(content[:-cut])
  assert scalars(tmp_path) == ({'a': {1: 1.0, 2: 2.0}}, [])


@pytest.mark.parametrize(
    'part', ['length', 'length checksum', 'data', 'checksum']
)
def test_damage_ends_a_file_and_is_told(tmp_path, part):
  path = report_folder.events(tmp_path, {'a': {i: i * 1.0 for i in range(9)}})
  report_folder.events(tmp_path, {'b': {1: 1.0}}, start=99, suffix='.z')
  content = bytearray(path.read_bytes())
  starts, at = [], 0
  while at < len(content):
    starts.append(at)
    at += 16 + int.from_bytes(content[at : at + 8], 'little')
  broken = starts[-4]
  size = starts[-3] - broken
  offsets = {'length': 5, 'length checksum': 9, 'data': 20}
  content[broken + offsets.get(part, size - 1)] ^= 0x10
  path.write_bytes(content)
  values, (problem,) = scalars(tmp_path)
  assert values == {'a': {i: i * 1.0 for i in range(5)}, 'b': {1: 1.0}}
  assert str(path) in problem and f'byte {broken:,}' in problem


@pytest.mark.parametrize('content', [b'', b'1234567', b'\0' * 11])
def test_a_file_that_has_hardly_begun_has_no_values(tmp_path, content):
  (tmp_path / 'events').mkdir()
  (tmp_path / 'events' / 'events.out.tfevents.1.x').write_bytes(content)
  assert scalars(tmp_path) == ({}, [])


def test_a_file_of_something_else_is_told(tmp_path):
  path = tmp_path / 'events' / 'events.out.tfevents.1.x'
  path.parent.mkdir()
  path.write_bytes(b'no records at all, just a few words of text')
  values, (problem,) = scalars(tmp_path)
  assert values == {} and str(path) in problem
  writer = record_writer.RecordWriter(str(path))
  writer.write(b'\xff\xff\xff')
  writer.close()
  values, (problem,) = scalars(tmp_path)
  assert values == {} and 'no event' in problem


def test_without_files_there_are_no_curves(tmp_path):
  assert scalars(tmp_path) == ({}, [])


@pytest.mark.parametrize('count', [1, 2, 499, 500, 501, 7919])
def test_a_thinned_curve_is_short_and_keeps_what_stands_out(count):
  values = np.random.default_rng(count).normal(size=count)
  values[count // 3] = 50.0
  values[count // 2] = -50.0
  series = Series.of(dict(enumerate(values.tolist())))
  thin = series.thinned(500)
  assert len(thin) == min(count, len(thin)) <= 500
  assert {thin.steps[0], thin.steps[-1]} == {0, count - 1}
  assert thin.values.max() == values.max()
  assert thin.values.min() == values.min()
  # Every point is one of the curve's own, in its order.
  np.testing.assert_array_equal(thin.values, values[thin.steps])
  assert (np.diff(thin.steps) > 0).all()


def test_a_thinned_curve_has_the_extremes_of_every_stretch():
  # The ends, and 249 stretches of 40 points: two of each are 500 in all.
  values = np.random.default_rng(0).normal(size=2 + 249 * 40)
  thin = Series.of(dict(enumerate(values.tolist()))).thinned(500)
  stretches = values[1:-1].reshape(249, 40)
  kept = thin.values[1:-1].reshape(249, 2)
  np.testing.assert_array_equal(kept.max(1), stretches.max(1))
  np.testing.assert_array_equal(kept.min(1), stretches.min(1))


def test_a_smoothed_curve_is_of_means_around_each_point():
  values = np.random.default_rng(0).normal(size=101).tolist()
  smooth = Series.of(dict(enumerate(values))).smoothed(9)
  expected = [np.mean(values[max(i - 4, 0) : i + 5]) for i in range(101)]
  np.testing.assert_allclose(smooth.values, expected, atol=1e-12)
