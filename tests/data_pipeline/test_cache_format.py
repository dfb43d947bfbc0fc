"""Files of caches as they are written, and what a copied one may say."""

import json
import os

from cache_words import TOKENIZER, Words
import pytest

from dualenc_jax.data.cache import Cache, DamagedCache, prepare
from dualenc_jax.utils.errors import UserError


@pytest.fixture
def cache(tmp_path):
  return prepare(Words(5), 'train', TOKENIZER, tmp_path)


def of_file(name, rows):
  return lambda header: header['files'].update({name: rows})


@pytest.mark.parametrize('change, message', [
    (of_file('../x.uint8', 1), 'x.uint8'),
    (of_file('relevances.int32', 10**15), 'relevances'),
    (of_file('relevances.int32', [5]), 'relevances'),
    (lambda header: header.update(examples=6), '6 examples'),
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
