"""Making an index: kills, full disks, several processes, other indexes."""

import multiprocessing
import os
import pathlib
import signal

from index_files import embeddings_for, header, make, passages_from, write
import numpy as np
import pytest

from dualenc_jax.retrieval.index import Index, IndexBuild, Passage
from dualenc_jax.utils.errors import UserError


def assert_is(folder, count, seed):
  """The index holds `count` rows of `seed`, and nothing lies beside it."""
  index = Index.open(folder)
  np.testing.assert_array_equal(index.embeddings, embeddings_for(count, seed))
  assert [index.passage(i) for i in range(count)] == passages_from(0, count)


def stamps(folder):
  """Which files there are, and when each was made."""
  return {
      path: (path.stat().st_ino, path.stat().st_mtime_ns)
      for path in folder.rglob('*')
      if path.is_file()
  }


def test_a_build_goes_on_at_the_first_missing_shard(tmp_path):
  first = IndexBuild(tmp_path / 'index', header(18))
  assert first.missing() == [0, 1, 2, 3, 4]
  first.start()
  assert make(first, [0, 1, 3]) == [0, 1, 3]
  assert not first.finish()
  before = stamps(tmp_path / 'index.partial')
  with pytest.raises(UserError, match='some of its shards are in'):
    Index.open(tmp_path / 'index')

  second = IndexBuild(tmp_path / 'index', header(18))
  assert second.missing() == [2, 4]
  second.start()
  assert make(second, range(5)) == [2, 4]
  assert second.finish()
  assert_is(tmp_path / 'index', 18, seed=0)
  after = stamps(tmp_path / 'index')
  for path, stamp in before.items():
    if 'shard-' in path.parent.name:
      assert after[tmp_path / 'index' / path.parent.name / path.name] == stamp
  assert os.listdir(tmp_path) == ['index']
  # All is done: the same command changes nothing.
  third = IndexBuild(tmp_path / 'index', header(18))
  assert third.missing() == []
  third.start()
  assert make(third, range(5)) == [] and third.finish()
  assert stamps(tmp_path / 'index') == after
  assert os.listdir(tmp_path) == ['index']
  # Where a model lies makes no other index.
  write(tmp_path / 'moved', provenance={'model_dir': 'a', 'step': 1})
  moved = header(provenance={'model_dir': 'b', 'step': 1})
  assert IndexBuild(tmp_path / 'moved', moved).missing() == []


@pytest.mark.parametrize('change, message, shards', [
    ({'dim': 7}, 'dim is 6, expected 7', 1),
    ({'dtype': 'float16'}, "dtype is 'float32', expected 'float16'", 3),
])
def test_shards_of_another_header_are_not_mixed_in(
    tmp_path, change, message, shards
):
  fields = {'count': 10, 'provenance': {'step': 1}}
  build = IndexBuild(tmp_path / 'index', header(**fields))
  build.start()
  make(build, range(shards), seed=1)
  assert build.finish() == (shards == 3)
  before = stamps(tmp_path)
  with pytest.raises(UserError, match=message) as error:
    IndexBuild(tmp_path / 'index', header(**(fields | change)))
  where = 'index already' if shards == 3 else 'index.partial already'
  assert where in str(error.value) and '--overwrite' in str(error.value)
  assert stamps(tmp_path) == before
  write(tmp_path / 'index', 7, seed=2, replace=True)
  assert_is(tmp_path / 'index', 7, seed=2)
  assert os.listdir(tmp_path) == ['index']


def die_at_the_second_shard(folder):
  build = IndexBuild(folder, header(10), replace=True)
  build.start()
  rename = pathlib.Path.rename

  def once(self, target):
    if self.name == 'shard-00001.partial':
      os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)

  pathlib.Path.rename = once
  make(build, range(3), seed=2)


def die_between_the_renames(folder):
  rename = pathlib.Path.rename

  def once(self, target):
    rename(self, target)
    if self == folder:
      os.kill(os.getpid(), signal.SIGKILL)

  pathlib.Path.rename = once
  write(folder, 10, seed=2, replace=True)


@pytest.mark.parametrize(
    'die, missing',
    [(die_at_the_second_shard, [1, 2]), (die_between_the_renames, [])],
)
def test_a_killed_process_leaves_the_older_index(tmp_path, die, missing):
  folder = tmp_path / 'index'
  write(folder, 12, seed=1)
  older = Index.open(folder)
  process = multiprocessing.get_context('spawn').Process(
      target=die, args=(folder,)
  )
  process.start()
  process.join()
  assert process.exitcode == -signal.SIGKILL
  assert_is(folder, 12, seed=1)
  build = IndexBuild(folder, header(10), replace=True)
  assert build.missing() == missing
  build.start()
  assert_is(folder, 12, seed=1)
  assert make(build, range(3), seed=2) == missing
  assert build.finish()
  assert_is(folder, 10, seed=2)
  assert os.listdir(tmp_path) == ['index']
  # A reader of the older one goes on reading it.
  np.testing.assert_array_equal(older.embeddings, embeddings_for(12, 1))
  assert older.passage(9).id == 'id9'


def test_a_full_disk_keeps_the_shards_that_are_there(tmp_path, monkeypatch):
  folder = tmp_path / 'index'
  write(folder, 12, seed=1)
  build = IndexBuild(folder, header(10), replace=True)
  build.start()
  make(build, [0], seed=2)

  def full(_):
    raise OSError(28, 'No space left on device')

  with monkeypatch.context() as patch:
    patch.setattr(os, 'fsync', full)
    with pytest.raises(UserError, match='written: No space left.* are kept'):
      make(build, [1], seed=2)
  assert_is(folder, 12, seed=1)
  partial = {p.name for p in (tmp_path / 'index.partial').glob('shard-*.p*')}
  assert not partial
  # The lock is free: the same process, or another, goes on.
  assert make(build, range(3), seed=2) == [1, 2]
  assert build.finish()
  assert_is(folder, 10, seed=2)


@pytest.mark.parametrize('name', ['index', 'index.partial', 'index.replaced'])
def test_a_folder_of_something_else_is_never_touched(tmp_path, name):
  path = tmp_path / name / 'thesis.tex'
  path.parent.mkdir(parents=True)
  path.write_text('years of work')
  with pytest.raises(UserError, match="not an index: it holds 'thesis.tex'"):
    write(tmp_path / 'index', replace=True)
  assert path.read_text() == 'years of work'


def test_a_shard_that_another_process_has_written_stays(tmp_path):
  folder = tmp_path / 'index'
  first, second = (IndexBuild(folder, header(10)) for _ in range(2))
  first.start()
  second.start()
  make(first, range(3))
  before = stamps(tmp_path / 'index.partial/shard-00001')
  second.write(1, embeddings_for(10)[4:8], passages_from(4, 4))
  assert stamps(tmp_path / 'index.partial/shard-00001') == before
  assert first.finish()
  # Nor is one written after the index is complete.
  second.write(1, embeddings_for(10)[4:8], passages_from(4, 4))
  assert second.finish()
  assert_is(folder, 10, seed=0)
  assert os.listdir(tmp_path) == ['index']


@pytest.mark.parametrize('own', ['', 'b\nc'])
def test_an_id_of_no_line_or_several(tmp_path, own):
  build = IndexBuild(tmp_path / 'index', header(10))
  build.start()
  passages = [passages_from(0, 1)[0], Passage(own, '', '', 'text')]
  with pytest.raises(UserError, match='cannot be kept in an index'):
    build.write(0, embeddings_for(2), passages)
  assert build.missing() == [0, 1, 2]
