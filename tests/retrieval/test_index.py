"""The index on disk: round trip, crashes, and every kind of broken folder."""

import json
import multiprocessing
import os
import signal

import numpy as np
import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.retrieval.index import Index
from dualenc_jax.retrieval.index import IndexWriter
from dualenc_jax.retrieval.index import Passage

D = 6


def passages_from(start, count):
  return [
      Passage(f'id{i}', f'naïve_{i}', f'mod.py:{i}', 'line\n"two"\t' * (i % 4))
      for i in range(start, start + count)
  ]


def embeddings_for(count, seed=0):
  return np.random.default_rng(seed).normal(size=(count, D)).astype(np.float32)


def write(folder, count=10, seed=0, **header):
  header = {'dim': D, 'tower': 'passage'} | header
  with IndexWriter(folder, **header) as writer:
    writer.append(embeddings_for(count, seed), passages_from(0, count))
    writer.commit()


def assert_is(folder, count, seed):
  """The index holds `count` rows of `seed`, and nothing lies beside it."""
  index = Index.open(folder)
  assert len(index) == count
  np.testing.assert_array_equal(index.embeddings, embeddings_for(count, seed))
  assert list(index.passages()) == passages_from(0, count)


def test_round_trip_in_blocks(tmp_path):
  folder = tmp_path / 'runs' / 'index'
  blocks = [3, 1, 4096, 0, 17]
  rows = embeddings_for(sum(blocks))
  provenance = {'step': 20, 'lengths': [64, 256], 'corpus': 'python_code'}
  with IndexWriter(folder, D, 'passage', True, provenance) as writer:
    start = 0
    for size in blocks:
      block = rows[start : start + size]
      writer.append(block, passages_from(start, size))
      start += size
    assert not folder.exists()
    writer.commit()

  index = Index.open(folder, {'tower': 'passage', 'step': 20, 'dim': D})
  assert len(index) == len(rows)
  assert isinstance(index.embeddings, np.memmap)
  np.testing.assert_array_equal(index.embeddings, rows)
  np.testing.assert_array_equal(np.load(folder / 'embeddings.npy'), rows)
  expected = passages_from(0, len(rows))
  for row in (0, 4116, 3, 2999):
    assert index.passage(row) == expected[row]
  assert list(index.passages()) == expected
  assert index.ids() == [p.id for p in expected]
  lines = (folder / 'passages.jsonl').read_text().splitlines()
  assert json.loads(lines[3]) == {
      'id': 'id3',
      'name': 'naïve_3',
      'location': 'mod.py:3',
      'text': 'line\n"two"\t' * 3,
  }
  header = json.loads((folder / 'header.json').read_text())
  assert header == {
      'format': 'dualenc-index',
      'version': 1,
      'passages': 4117,
      'dim': D,
      'dtype': 'float32',
      'tower': 'passage',
      'normalised': True,
      'passages_bytes': os.path.getsize(folder / 'passages.jsonl'),
      'provenance': provenance,
  }
  assert os.listdir(folder.parent) == ['index']


def test_rows_out_of_range(tmp_path):
  write(tmp_path / 'index')
  index = Index.open(tmp_path / 'index')
  for row in (-1, 10):
    with pytest.raises(IndexError, match='expected 0 to 9'):
      index.passage(row)


def test_text_is_kept_whatever_it_holds(tmp_path):
  odd = Passage('a', '\u2028\x00', '', 'lone \ud800 surrogate')
  with IndexWriter(tmp_path / 'index', D, 'passage') as writer:
    writer.append(embeddings_for(1), [odd])
    writer.commit()
  assert Index.open(tmp_path / 'index').passage(0) == odd


def test_a_new_index_replaces_an_older_one(tmp_path):
  folder = tmp_path / 'index'
  write(folder, 10, seed=1)
  older = Index.open(folder)
  write(folder, 4, seed=2)
  assert_is(folder, 4, seed=2)
  # A reader of the older one goes on reading it.
  np.testing.assert_array_equal(older.embeddings, embeddings_for(10, 1))
  assert os.listdir(tmp_path) == ['index']


def test_a_linked_folder_is_replaced_where_it_lies(tmp_path):
  write(tmp_path / 'disk' / 'index', 10, seed=1)
  (tmp_path / 'link').symlink_to(tmp_path / 'disk' / 'index')
  write(tmp_path / 'link', 4, seed=2)
  assert (tmp_path / 'link').is_symlink()
  assert_is(tmp_path / 'disk' / 'index', 4, seed=2)


def test_an_error_leaves_the_older_index(tmp_path):
  folder = tmp_path / 'index'
  write(folder, 10, seed=1)
  with pytest.raises(RuntimeError):
    with IndexWriter(folder, D, 'passage') as writer:
      writer.append(embeddings_for(3), passages_from(0, 3))
      raise RuntimeError
  assert_is(folder, 10, seed=1)
  assert os.listdir(tmp_path) == ['index']


def test_no_commit_leaves_nothing(tmp_path):
  with IndexWriter(tmp_path / 'index', D, 'passage') as writer:
    writer.append(embeddings_for(3), passages_from(0, 3))
  assert os.listdir(tmp_path) == []


def die_while_writing(folder):
  writer = IndexWriter(folder, D, 'passage')
  writer.append(embeddings_for(3), passages_from(0, 3))
  os.kill(os.getpid(), signal.SIGKILL)


def die_between_the_renames(folder):
  rename = os.rename

  def rename_once(source, target):
    rename(source, target)
    os.kill(os.getpid(), signal.SIGKILL)

  os.rename = rename_once
  write(folder, 4, seed=2)


@pytest.mark.parametrize('die', [die_while_writing, die_between_the_renames])
def test_a_killed_writer_leaves_the_older_index(tmp_path, die):
  folder = tmp_path / 'index'
  write(folder, 10, seed=1)
  process = multiprocessing.get_context('spawn').Process(
      target=die, args=(folder,)
  )
  process.start()
  process.join()
  assert process.exitcode == -signal.SIGKILL
  assert_is(folder, 10, seed=1)
  # The next writer clears up what the dead one left.
  assert len(os.listdir(tmp_path)) == 2
  write(folder, 5, seed=3)
  assert_is(folder, 5, seed=3)
  assert os.listdir(tmp_path) == ['index']


def test_a_full_disk(tmp_path, monkeypatch):
  folder = tmp_path / 'index'
  write(folder, 10, seed=1)

  def full(_):
    raise OSError(28, 'No space left on device')

  with monkeypatch.context() as patch:
    patch.setattr(os, 'fsync', full)
    with pytest.raises(UserError, match='index: cannot write .*No space left'):
      write(folder, 4, seed=2)
  assert_is(folder, 10, seed=1)
  assert os.listdir(tmp_path) == ['index']


def test_a_place_that_cannot_be_written(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match='cannot write the index: Not a dir'):
    IndexWriter(tmp_path / 'file' / 'index', D, 'passage')


@pytest.mark.parametrize('name', ['index', 'index.partial', 'index.replaced'])
def test_a_folder_of_something_else_is_never_touched(tmp_path, name):
  (tmp_path / name).mkdir()
  (tmp_path / name / 'thesis.tex').write_text('years of work')
  with pytest.raises(UserError, match="not an index: it holds 'thesis.tex'"):
    write(tmp_path / 'index')
  assert (tmp_path / name / 'thesis.tex').read_text() == 'years of work'


@pytest.mark.parametrize(
    'embeddings, ids, message',
    [
        (embeddings_for(2), ['a', 'b', 'c'], r'\(2, 6\): expected .* \(3, 6\)'),
        (np.ones((1, 5), np.float32), ['a'], r'\(1, 5\): expected .* \(1, 6\)'),
        (np.ones((1, D)), ['a'], 'are float64 .* expected float32'),
        (embeddings_for(2), ['a', 'a'], "'a' stands at corpus rows 1 and 2"),
        (embeddings_for(1), ['first'], "'first' stands at corpus rows 0 and 1"),
        (embeddings_for(1), [''], 'corpus row 1 has an empty passage id'),
        (
            np.full((1, D), np.nan, np.float32),
            ['a'],
            r"embedding of passage 'a' \(row 1\) holds NaN",
        ),
    ],
)
def test_bad_rows(tmp_path, embeddings, ids, message):
  with IndexWriter(tmp_path / 'index', D, 'passage') as writer:
    writer.append(embeddings_for(1), [Passage('first', '', '', 'text')])
    with pytest.raises(UserError, match=message):
      writer.append(embeddings, [Passage(i, '', '', 'text') for i in ids])


def test_an_empty_corpus(tmp_path):
  with IndexWriter(tmp_path / 'index', D, 'passage') as writer:
    with pytest.raises(UserError, match='index: the corpus is empty'):
      writer.commit()


def test_bad_provenance(tmp_path):
  with pytest.raises(UserError, match=r"provenance names \['dim', 'tower'\]"):
    write(tmp_path / 'index', provenance={'tower': 1, 'dim': 2, 'step': 3})
  with pytest.raises(UserError, match='provenance must be plain JSON: .*set'):
    write(tmp_path / 'index', provenance={'step': {3}})
  assert os.listdir(tmp_path) == []


def test_every_field_that_differs_is_named(tmp_path):
  write(tmp_path / 'index', provenance={'step': 20, 'vocabulary': 'abc'})
  with pytest.raises(UserError) as error:
    Index.open(
        tmp_path / 'index',
        {'tower': 'query', 'step': 20, 'vocabulary': 'abd', 'corpus': 'x'},
    )
  message = str(error.value)
  assert "tower is 'passage', expected 'query'" in message
  assert "vocabulary is 'abc', expected 'abd'" in message
  assert "corpus is None, expected 'x'" in message
  assert 'step' not in message
  assert message.endswith('Run `dualenc encode` again.')


@pytest.mark.parametrize('folder', ['none', 'empty'])
def test_no_index(tmp_path, folder):
  (tmp_path / 'empty').mkdir()
  with pytest.raises(UserError, match=f'{folder}/header.json: no index here'):
    Index.open(tmp_path / folder)


@pytest.mark.parametrize(
    'name', ['embeddings.npy', 'offsets.npy', 'passages.jsonl', 'header.json']
)
@pytest.mark.parametrize('share', [None, 0, 0.5, 0.99])
def test_missing_and_truncated_files(tmp_path, name, share):
  write(tmp_path / 'index')
  path = tmp_path / 'index' / name
  if share is None:
    path.unlink()
  else:
    os.truncate(path, int(share * path.stat().st_size))
  with pytest.raises(UserError, match=f'{name}: .* (Run|again)'):
    Index.open(tmp_path / 'index')


@pytest.mark.parametrize(
    'change, message',
    [
        ({'format': 'faiss'}, "expected format 'dualenc-index'"),
        ({'version': 2}, 'version is 2: this program reads version 1'),
        ({'passages': '10'}, "field 'passages' is '10': expected a whole"),
        ({'passages': 9}, r'embeddings.npy: holds float32 \(10, 6\), but .*9'),
        ({'dim': 7}, r'embeddings.npy: holds .* says float32 \(10, 7\)'),
        ({'passages_bytes': 9}, r'passages.jsonl: has \d+ bytes, .* says 9'),
    ],
)
def test_a_header_that_does_not_fit(tmp_path, change, message):
  write(tmp_path / 'index')
  path = tmp_path / 'index' / 'header.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | change))
  with pytest.raises(UserError, match=message):
    Index.open(tmp_path / 'index')


def test_a_row_that_is_not_a_passage(tmp_path):
  write(tmp_path / 'index')
  path = tmp_path / 'index' / 'passages.jsonl'
  path.write_bytes(path.read_bytes().replace(b'"id3"', b'"id3!'))
  index = Index.open(tmp_path / 'index')
  assert index.passage(2).id == 'id2'
  with pytest.raises(UserError, match='passages.jsonl:4: not a passage'):
    index.passage(3)
