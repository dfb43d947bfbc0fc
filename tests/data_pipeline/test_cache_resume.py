"""Caches that are begun by one process and finished by another."""

from concurrent import futures
import os
import pathlib
import signal
import subprocess
import sys
import time

import cache_words
from cache_words import TOKENIZER, Words
import filelock
import pytest

from dualenc_jax.data.cache import build as cache_build, prepare
from dualenc_jax.text.tokenizer import Tokenizer

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


def halves(cache_dir):
  found = (cache_dir / cache_build.BUILDING).glob('*')
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


# A commit is 27 calls of fsync: 26 files and the journal. The first call of
# replace ends the first commit; the second of rename moves the complete cache.
@pytest.mark.parametrize('function, calls, done', [
    ('example', [1], 0), ('example', [12, 27, 6], 21), ('fsync', [27], 0),
    ('fsync', [28], 7), ('replace', [1], 0), ('rename', [1], 47),
    ('rename', [2], 47),
])
def test_killed_anywhere_it_goes_on_to_the_same_files(
    tmp_path, expected, tokenised, monkeypatch, function, calls, done
):
  for call in calls:
    killed(tmp_path, function, call)
  monkeypatch.setattr(cache_build, 'CHUNK', 5 if call % 2 else 4096)
  lines, shown = [], []
  cache = prepare(
      Words(COUNT), 'train', TOKENIZER, tmp_path, lines.append,
      progress=lambda *args: shown.append(args),
  )
  assert contents(cache.folder) == expected
  if done:
    assert f'{done} examples are done' in lines[0]
  assert shown[0][0] == done and shown[-1][0] == COUNT
  passages = {row['passage'] for row in Words(COUNT).examples('train')}
  again = {Words(COUNT).example(number)['passage'] for number in range(done)}
  assert len(again) == done and not again.intersection(tokenised)
  assert passages - again <= set(tokenised)
  assert halves(tmp_path) == []


class Interrupted(Words):

  def example(self, number):
    if number == 39:
      raise KeyboardInterrupt
    return super().example(number)


@pytest.fixture
def interrupt(tmp_path, monkeypatch):
  """Leaves half a cache of a source, 30 examples of it, in this process."""
  monkeypatch.setattr(cache_build, 'CHUNK', 30)
  monkeypatch.setattr(cache_build, 'COMMIT_SECONDS', -1.0)

  def leave_half(source='source', tokenizer=TOKENIZER):
    before = halves(tmp_path)
    with pytest.raises(KeyboardInterrupt):
      prepare(Interrupted(COUNT, source), 'train', tokenizer, tmp_path)
    (half,) = {*halves(tmp_path)} - {*before}
    return half

  return leave_half


def test_halves_of_a_source_that_was_changed_are_removed(tmp_path, interrupt):
  held, lines = interrupt('held'), []
  with filelock.FileLock(f'{held}.lock'):  # By a process that builds it.
    before, recent = interrupt('before'), interrupt('recent')
    for old in (held, before):
      os.utime(old, times=(time.time() - 8 * 86_400,) * 2)
    other = interrupt(tokenizer=Tokenizer(TOKENIZER.vocabulary, 8, 17))
    # One of which nothing was committed.
    before.with_name(f'{before.name[:-1]}-').mkdir()
    prepare(Words(COUNT), 'train', TOKENIZER, tmp_path, lines.append)
  assert {*halves(tmp_path)} == {held, recent, other}
  assert f'Removed {before}' in lines[0]


@pytest.mark.parametrize(
    'damage', [pathlib.Path.unlink, lambda path: os.truncate(path, 100)]
)
def test_half_a_cache_that_lost_data_is_begun_anew(
    tmp_path, expected, interrupt, damage
):
  half = interrupt()
  damage(half / 'passage_texts.values.uint8')
  lines = []
  cache = prepare(Words(COUNT), 'train', TOKENIZER, tmp_path, lines.append)
  assert contents(cache.folder) == expected
  assert not any('are done' in line for line in lines)


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
  assert '14 examples are done' in lines[1]
