"""Files of caches as they are written, and what a copied one may say."""

import json
import os

from cache_words import TOKENIZER, Words
import numpy as np
import pytest

from dualenc_jax.data.cache import format as cache_format, prepare
from dualenc_jax.data.cache.format import (
  ArrayWriter,
  Cache,
  DamagedCache,
  map_array,
)
from dualenc_jax.utils.errors import UserError

NAN = float('nan')
ARRAYS = {
    'nothing': [],
    'one': [7],
    'equal': [5] * 20,
    'late': [5] * 19 + [6],
    'early': [5, 6] + [5] * 18,
    'mixed': list(range(20)),
    'absent': [NAN] * 20,
    'late after absent': [NAN] * 19 + [1],
}


@pytest.mark.parametrize('name', ARRAYS)
@pytest.mark.parametrize('ends', [[], [0, 3, 3, 19], range(1, 20)])
def test_what_is_written_is_mapped(tmp_path, monkeypatch, name, ends):
  """An array of equal values takes the room of one."""
  monkeypatch.setattr(cache_format, '_BLOCK', 4)
  values = np.array(ARRAYS[name], np.float32)
  writer = ArrayWriter(tmp_path, 'x', np.float32)
  for part in np.split(values, [end for end in ends if end < len(values)]):
    writer.append(part)
  writer.close()
  np.testing.assert_array_equal(map_array(writer.path, writer.rows), values)
  is_constant = name in ('one', 'equal', 'absent')
  size = writer.path.stat().st_size
  assert size == writer.size == 4 * (1 if is_constant else len(values))


@pytest.fixture
def cache(tmp_path):
  return prepare(Words(5), 'train', TOKENIZER, tmp_path)


def of_file(name, sizes):
  return lambda header: header['files'].update({name: sizes})


@pytest.mark.parametrize('change, message', [
    (of_file('../x.uint8', [1, 1]), 'x.uint8'),
    (of_file('x.object', [1, 8]), 'x.object'),
    (of_file('relevances.int32', [10**15, 20]), 'relevances'),
    (of_file('relevances.int32', [5]), 'relevances'),
    (lambda header: header.update(examples=6), '6 examples'),
    (lambda header: header['files'].pop('relevances.int32'), 'relevances'),
])
def test_a_header_that_cannot_be(cache, tmp_path, change, message):
  path = cache.folder / 'header.json'
  header = json.loads(path.read_text())
  change(header)
  path.write_text(json.dumps(header))
  with pytest.raises(DamagedCache, match=message):
    Cache.open(cache.folder)
  # It is made again, as one of which a file is missing.
  again = prepare(Words(5), 'train', TOKENIZER, tmp_path)
  assert again.query_texts.text(4) == cache.query_texts.text(4)


@pytest.mark.parametrize('offsets', [[0, 10**15], [5, 0]])
def test_offsets_that_do_not_ascend(cache, offsets):
  path = cache.folder / 'query_tokens.offsets.int64'
  found = np.fromfile(path, np.int64)
  found[1:3] = offsets
  found.tofile(path)
  with pytest.raises(DamagedCache, match='query_tokens: offsets do not ascend'):
    Cache.open(cache.folder)


def test_a_text_that_is_no_utf8_and_a_pipe(cache):
  path = cache.folder / 'query_texts.values.uint8'
  path.write_bytes(b'\xff' * path.stat().st_size)
  with pytest.raises(UserError, match='query_texts.values.uint8 has a text'):
    [*map(Cache.open(cache.folder).query_texts.text, range(5))]
  for file in ('relevances.int32', 'header.json'):
    (cache.folder / file).unlink()
    os.mkfifo(cache.folder / file)
    with pytest.raises(DamagedCache):
      Cache.open(cache.folder)
