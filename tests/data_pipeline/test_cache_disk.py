"""Disks that are full, or will be, and forecasts of what is needed."""

import gzip
import json
import re
import shutil
import subprocess
import sys
import types

from cache_words import TOKENIZER, Words
import pyarrow as pa
from pyarrow import parquet
import pytest

from dualenc_jax.data.cache import build as cache_build, prepare
from dualenc_jax.data.dataset import example
from dualenc_jax.data.readers import Pairs
from dualenc_jax.utils import sizes
from dualenc_jax.utils.errors import UserError

LIMITED = """
import resource, sys
import cache_words
from dualenc_jax.data.cache import build as cache_build, prepare
from dualenc_jax.utils.errors import UserError
cache_build.sizes.count = lambda head: 3000
cache_build.CHUNK = 100
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
try:
  prepare(cache_words.Words(3000), 'train', cache_words.TOKENIZER, sys.argv[1])
except UserError as error:
  print(error)
"""


def test_a_file_that_cannot_grow_is_cleaned_up_and_explained(tmp_path):
  """The kernel itself refuses to write more than 20,000 bytes of a file."""
  done = subprocess.run(
      [sys.executable, '-c', LIMITED, str(tmp_path)],
      env={'PYTHONPATH': ':'.join(sys.path)}, capture_output=True, text=True,
      timeout=60,
  )
  assert done.stdout.startswith('The disk is full'), done.stderr
  assert 'are free now' in done.stdout and 'CACHE_DIR' in done.stdout
  (building,) = tmp_path.iterdir()
  assert {path.suffix for path in building.iterdir()} == {'.lock'}
  # There is room again.
  cache = prepare(Words(3000), 'train', TOKENIZER, tmp_path)
  size = sum(path.stat().st_size for path in cache.folder.iterdir())
  needed = float(re.search('needs about (.*) MB in all', done.stdout)[1])
  assert needed == pytest.approx(size / 1e6, rel=0.2) and len(cache) == 3000


@pytest.fixture
def task(tmp_path):
  path = tmp_path / 'pairs.jsonl'
  rows = [{'query': f'query {i}', 'passage': 'word ' * 50} for i in range(999)]
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return Pairs(train=str(path))


def test_what_clearly_does_not_fit_is_refused_at_once(
    task, tmp_path, monkeypatch
):
  usage = types.SimpleNamespace(total=0, used=0, free=10000)
  monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage)
  monkeypatch.setattr(cache_build, 'CHUNK', 100)
  calls = []
  with pytest.raises(UserError, match='does not fit the disk.*0.0 MB are free'):
    prepare(
        task, 'train', TOKENIZER, tmp_path / 'cache',
        progress=lambda done, total: calls.append(done),
    )
  assert calls == [0, 100]
  assert [p.name for p in (tmp_path / 'cache').iterdir()] == ['.building']


@pytest.mark.parametrize('suffix', ['.csv', '.jsonl.gz', '.parquet'])
def test_count_by_the_size_of_the_file(tmp_path, suffix):
  path = tmp_path / f'rows{suffix}'
  opener = gzip.open if suffix.endswith('.gz') else open
  if suffix == '.parquet':
    parquet.write_table(pa.table({'query': range(50000)}), path)
  else:
    with opener(path, 'wt') as stream:
      for number in range(50000):
        stream.write(f'{number:06} {hash(str(number)):020}\n')
  # Every second line is an example.
  first = [example(location=f'{path}:{2 * i + 2}') for i in range(10000)]
  rel = 0.2 if suffix.endswith('.gz') else 1e-3
  assert sizes.count(first) == pytest.approx(25000, rel=rel)
  for locations in (
      ['', ''],
      ['a.py:1', 'b.py:7'],
      ['a.jsonl:1', 'a.jsonl:2'],  # No such file.
      ['a.parquet:1', 'a.parquet:2'],
      ['passages.json:1', 'passages.json:2'],  # May be one line.
  ):
    assert sizes.count([example(location=x) for x in locations]) is None
