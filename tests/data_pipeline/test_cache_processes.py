"""Caches that several processes build, and kills of these."""

from concurrent import futures
import signal
import subprocess
import sys
import time

import cache_words
from cache_words import TOKENIZER, Words
import pytest

from dualenc_jax.data import cache as cache_lib
from dualenc_jax.data.cache import prepare
from dualenc_jax.data.text.tokenizer import Tokenizer

COUNT = 47  # Seven chunks of the child.


def child(cache_dir, function, call, count=COUNT):
  """Starts a process that prepares `Words(count)` and is killed."""
  arguments = [cache_dir, count, function, call]
  return subprocess.Popen(
      [sys.executable, cache_words.__file__, *map(str, arguments)]
  )


def killed(*args):
  assert child(*args).wait(60) == -signal.SIGKILL


def contents(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def parts(cache_dir):
  found = (cache_dir / cache_lib.BUILDING).glob('*')
  return [path for path in found if path.is_dir()]


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
  """The files of a cache that was built in one go."""
  folder = tmp_path_factory.mktemp('whole')
  return contents(prepare(Words(COUNT), 'train', TOKENIZER, folder).folder)


@pytest.fixture
def tokenised(monkeypatch):
  """Receives the passages that are tokenised."""
  encode, texts = Tokenizer.encode_passages, []

  def recorded(self, passages, threads=-1):
    texts.extend(passages)
    return encode(self, passages, threads)

  monkeypatch.setattr(Tokenizer, 'encode_passages', recorded)
  return texts


@pytest.mark.parametrize('function, call', [
    ('example', 12), ('fsync', 7), ('replace', 1), ('rename', 1),
])
def test_killed_anywhere_it_is_built_anew(tmp_path, expected, function, call):
  killed(tmp_path, function, call)
  cache = prepare(Words(COUNT), 'train', TOKENIZER, tmp_path)
  assert contents(cache.folder) == expected
  assert not parts(tmp_path)


def wait_for(condition):
  end = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.01)


def waiting(cache_dir):
  """A child that holds the lock, a cache to come, and what is said of it."""
  holding, lines = child(cache_dir, 'hold', 20), []
  wait_for(lambda: (cache_dir / 'holding').exists())
  cache = futures.ThreadPoolExecutor(1).submit(
      prepare, Words(COUNT), 'train', TOKENIZER, cache_dir, lines.append
  )
  wait_for(lambda: lines)
  return holding, cache, lines


def test_while_one_process_builds_another_waits_and_uses_it(
    tmp_path, expected, tokenised
):
  holding, cache, lines = waiting(tmp_path)
  assert lines[0].startswith('Waiting for another process')
  (tmp_path / 'go').touch()
  assert holding.wait(60) == 0
  assert contents(cache.result(60).folder) == expected
  assert len(lines) == 1 and not tokenised


def test_one_that_waits_takes_over_when_the_other_is_killed(tmp_path, expected):
  holding, cache, lines = waiting(tmp_path)
  holding.kill()
  holding.wait()
  assert contents(cache.result(60).folder) == expected
  assert lines[1].startswith('Tokenising')
