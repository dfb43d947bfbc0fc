"""Token caches that say what cannot be, as one that was copied here may."""

import json
import os

from cache_words import TOKENIZER, Words
import numpy as np
import pytest

from dualenc_jax.data.cache import prepare
from dualenc_jax.data.cache.format import Cache, CacheWriter, DamagedCache
from dualenc_jax.errors import UserError


@pytest.fixture
def cache(tmp_path):
  return prepare(Words(5), 'train', TOKENIZER, tmp_path)


def changed(cache, change):
  path = cache.folder / 'header.json'
  header = json.loads(path.read_text())
  change(header)
  path.write_text(json.dumps(header))


def of_file(name, sizes):
  return lambda header: header['files'].update({name: sizes})


@pytest.mark.parametrize(
    'change, message',
    [
        (of_file('../x.uint8', [1, 1]), 'x.uint8'),
        (of_file('/etc/x.uint8', [1, 1]), 'x.uint8'),
        (of_file('x.object', [1, 8]), 'x.object'),
        (of_file('relevances.int32', [10**15, 20]), 'relevances'),
        (of_file('relevances.int32', [-1, 4]), 'relevances'),
        (of_file('relevances.int32', [5]), 'relevances'),
        (of_file('relevances.int32', '5'), 'relevances'),
        (lambda header: header.update(examples=6), '6 examples'),
        (lambda header: header.update(examples='5'), 'examples'),
        (lambda header: header['files'].pop('relevances.int32'), 'relevances'),
        (lambda header: header.pop('files'), 'files'),
    ],
)
def test_a_header_that_cannot_be(cache, tmp_path, change, message):
  changed(cache, change)
  with pytest.raises(DamagedCache, match=message):
    Cache.open(cache.folder)
  # It is made again, as one of which a file is missing.
  again = prepare(Words(5), 'train', TOKENIZER, tmp_path)
  assert again.query_texts.text(4) == cache.query_texts.text(4)


@pytest.mark.parametrize('offsets', [[0, 10**15], [5, 0], [-1, 3]])
def test_offsets_that_do_not_ascend(cache, offsets):
  path = cache.folder / 'query_tokens.offsets.int64'
  found = np.fromfile(path, np.int64)
  found[1:3] = offsets
  found.tofile(path)
  with pytest.raises(DamagedCache, match='query_tokens: offsets do not ascend'):
    Cache.open(cache.folder)


def test_a_text_that_is_no_utf8(cache):
  path = cache.folder / 'query_texts.values.uint8'
  path.write_bytes(b'\xff' * path.stat().st_size)
  with pytest.raises(UserError, match='query_texts.values.uint8 has a text'):
    [*map(Cache.open(cache.folder).query_texts.text, range(5))]


@pytest.mark.parametrize('file', ['header.json', 'relevances.int32'])
def test_a_pipe(cache, file):
  (cache.folder / file).unlink()
  os.mkfifo(cache.folder / file)
  with pytest.raises(DamagedCache):
    Cache.open(cache.folder)


def test_a_journal_leads_to_no_file_outside(tmp_path):
  other = tmp_path / 'x.int32'
  other.write_bytes(b'precious')
  folder = tmp_path / 'cache'
  folder.mkdir()
  state = {'key': 1, 'examples': 1, 'files': {'../x.int32': [1, 4]}}
  (folder / 'journal.json').write_text(json.dumps(state))
  with CacheWriter(folder, {'key': 1}) as writer:
    assert writer.examples == 0
  assert other.read_bytes() == b'precious'
