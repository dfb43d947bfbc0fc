"""TensorBoard's files of a run, read record by record."""


def read(folder):
  """(step, tag, value) of scalars on disk, and the steps of sessions' starts.

  A record is a length, its checksum, an `Event` and its checksum.
  """
  # Once training has run: alone it would import PyTorch.
  from tensorboardX.proto import event_pb2

  scalars, starts = [], []
  for path in sorted((folder / 'events').iterdir()):
    data, start = path.read_bytes(), 0
    while start < len(data):
      size = int.from_bytes(data[start : start + 8], 'little')
      event = event_pb2.Event.FromString(data[start + 12 : start + 12 + size])
      start += 12 + size + 4
      scalars += [
          (event.step, v.tag, v.simple_value) for v in event.summary.value
      ]
      if event.HasField('session_log'):
        assert event.session_log.status == event_pb2.SessionLog.START
        starts.append(event.step)
    assert start == len(data)
  return scalars, starts
