"""TensorBoard's event files, read without TensorFlow.

A file is a row of TFRecords: a length (uint64), its checksum, as many bytes of
an `Event` message, their checksum; little-endian, checksums CRC-32C, masked.
"""

from collections.abc import Iterator
import functools
import pathlib

from google.protobuf.message import DecodeError
import numpy as np
from tensorboardX.proto import event_pb2

from dualenc_jax.report.series import Series

_HEADER = 12
_FOOTER = 4


def read_scalars(folder: pathlib.Path) -> tuple[dict[str, Series], list[str]]:
  """The scalars of all event files of a folder, as TensorBoard shows them.

  A start of a run hides what files before it have from its step on. Of two
  values of one step the later one counts.

  Args:
    folder: where the files are, none if it is not there.

  Returns:
    A series per tag, and what is wrong with the files, one sentence each.
  """
  kept: dict[str, dict[int, float]] = {}
  problems = []
  for path in sorted(folder.glob('*tfevents*')):
    records, problem = read_records(path)
    for record in records:
      try:
        event = event_pb2.Event.FromString(record)
      except DecodeError:
        problem = f'{path} has a record that is no event; it is left out.'
        continue
      if event.session_log.status == event_pb2.SessionLog.START:
        _drop_from(kept, event.step)
      for value in event.summary.value:
        if value.WhichOneof('value') == 'simple_value':
          kept.setdefault(value.tag, {})[event.step] = value.simple_value
    if problem:
      problems.append(problem)
  return {tag: Series.of(kept[tag]) for tag in sorted(kept) if kept[tag]}, (
      problems
  )


def read_records(path: pathlib.Path) -> tuple[list[bytes], str | None]:
  """The records of a TFRecord file up to the first damaged one.

  A last record that is not all there is no damage: a run may be writing it.

  Returns:
    The records, and a sentence on the damage if there is any.
  """
  try:
    content = path.read_bytes()
  except OSError as e:
    return [], f'{path} cannot be read: {e.strerror or e}.'
  data = np.frombuffer(content, np.uint8)
  starts, lengths = _frames(content)
  good = _checked(data, starts, np.full_like(starts, 8))
  # The last frame's record may not be all there yet.
  whole = starts + _HEADER + lengths + _FOOTER <= len(data)
  good[whole] &= _checked(data, starts[whole] + _HEADER, lengths[whole])
  bad = np.flatnonzero(~good)
  end = bad[0] if len(bad) else int(whole.sum())
  records = [
      content[start + _HEADER : start + _HEADER + length]
      for start, length in zip(starts[:end], lengths[:end])
  ]
  if not len(bad):
    return records, None
  return records, (
      f'{path} is damaged at byte {starts[end]:,}: a checksum does not match.'
      f' The {end:,} records before it are used, what follows is left out.'
  )


def _frames(content: bytes) -> tuple[np.ndarray, np.ndarray]:
  """Starts and lengths of records, believing every length; int64."""

  def walk() -> Iterator[tuple[int, int]]:
    start = 0
    while start + _HEADER <= len(content):
      length = int.from_bytes(content[start : start + 8], 'little')
      # Of a nonsensical length all that matters is that it is too long.
      yield start, min(length, len(content))
      start += _HEADER + length + _FOOTER

  frames = np.array(list(walk()), np.int64).reshape(-1, 2)
  return frames[:, 0], frames[:, 1]


def _checked(
    data: np.ndarray, starts: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
  """Whether the bytes at `starts` have the checksums that follow them."""
  result = np.zeros(len(starts), bool)
  # Those of one length go together: Python's own loop is over bytes, not rows.
  for length in np.unique(lengths):
    rows = np.flatnonzero(lengths == length)
    cells = data[starts[rows, None] + np.arange(length + _FOOTER)]
    written = np.ascontiguousarray(cells[:, length:]).view('<u4')[:, 0]
    result[rows] = masked_crc32c(cells[:, :length]) == written
  return result


def masked_crc32c(rows: np.ndarray) -> np.ndarray:
  """TFRecord's checksum of each row: uint8 [N, length] -> uint32 [N]."""
  table = _crc32c_table()
  crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
  for column in rows.T:
    crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
  crc = ~crc
  return ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)


@functools.cache
def _crc32c_table() -> np.ndarray:
  table = np.arange(256, dtype=np.uint32)
  for _ in range(8):
    table = (table >> 1) ^ np.where(table & 1, np.uint32(0x82F63B78), 0)
  return table.astype(np.uint32)


def _drop_from(kept: dict[str, dict[int, float]], step: int) -> None:
  for values in kept.values():
    for late in [s for s in values if s >= step]:
      del values[late]
