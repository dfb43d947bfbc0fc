"""Writes files for readers and looks at what these make of them, in tests."""

import gzip
import json
import pathlib

import pytest

from dualenc_jax.utils.errors import UserError

DATA = pathlib.Path(__file__).parents[1] / 'data'


def encoded(*lines):
  """Lines of str, bytes, or of a value that is written as JSON."""
  texts = [x if isinstance(x, (str, bytes)) else json.dumps(x) for x in lines]
  data = [x if isinstance(x, bytes) else x.encode() for x in texts]
  return b''.join(line + b'\n' for line in data)


def write(path, *lines):
  data = encoded(*lines)
  path.write_bytes(gzip.compress(data, 1) if path.suffix == '.gz' else data)
  return path


def append(path, *lines):
  path.write_bytes(path.read_bytes() + encoded(*lines))
  return path


def pack(path, target=None):
  """Moves a file into a .gz beside it, or packs it at `target`."""
  packed = target or path.with_name(f'{path.name}.gz')
  packed.parent.mkdir(parents=True, exist_ok=True)
  packed.write_bytes(gzip.compress(path.read_bytes(), 1))
  if target is None:
    path.unlink()
  return packed


def objects(path):
  """The JSON of each line."""
  opener = gzip.open if path.suffix == '.gz' else open
  with opener(path, 'rt', encoding='utf-8', newline='\n') as stream:
    return [json.loads(line) for line in stream]


def column(examples, name):
  return [example[name] for example in examples]


def judged(examples):
  names = 'query', 'passage', 'query_id', 'passage_id', 'relevance'
  return [tuple(e[name] for name in names) for e in examples]


def refused(function, *parts, error=UserError):
  """The error's message, which has all these parts."""
  with pytest.raises(error) as raised:
    result = function()
    list(result if hasattr(result, '__iter__') else ())
  for part in parts:
    assert part in str(raised.value)
  return str(raised.value)
