"""A disk that is full while a cache is built."""

import subprocess
import sys

from cache_words import TOKENIZER, Words

from dualenc_jax.data.cache import prepare

LIMITED = """
import resource, sys
import cache_words
from dualenc_jax.data import cache as cache_lib
from dualenc_jax.data.cache import prepare
from dualenc_jax.utils.errors import UserError
cache_lib.CHUNK = 100
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
  assert 'cannot be written: File too large' in done.stdout, done.stderr
  assert 'CACHE_DIR' in done.stdout
  (building,) = tmp_path.iterdir()
  assert {path.suffix for path in building.iterdir()} == {'.lock'}
  # There is room again.
  assert len(prepare(Words(3000), 'train', TOKENIZER, tmp_path)) == 3000
