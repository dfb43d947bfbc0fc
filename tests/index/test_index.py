"""The index on disk: round trip, and every kind of broken or other index."""

import json
import os

import faiss
import index_files
from index_files import D, embeddings_for, header, passages_from, write
import numpy as np
import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.index import Header, Index, IndexBuild, Passage


def test_round_trip(tmp_path):
  folder = tmp_path / 'runs' / 'index'
  provenance = {'step': 20, 'lengths': [64, 256], 'corpus': 'python_code'}
  write(folder, 11, provenance=provenance)
  index = Index.open(folder, {'tower': 'passage', 'step': 20, 'dim': D})
  rows, passages = embeddings_for(11), passages_from(0, 11)
  assert len(index) == 11 and index.embeddings.shape == (11, D)
  assert isinstance(index.embeddings[5:7].base.base, np.memmap)
  np.testing.assert_array_equal(index.embeddings, rows)
  assert [index.passage(i) for i in range(11)] == passages
  assert list(index.ids) == [p.id for p in passages]
  assert len(index.ids) == 11
  assert [index.ids[i] for i in (10, 0, -1)] == ['id10', 'id0', 'id10']
  assert index.ids[3:5] == ['id3', 'id4']
  assert json.loads((folder / 'header.json').read_text()) == {
      'format': 'dualenc-index',
      'version': 3,
      'passages': 11,
      'dim': D,
      'dtype': 'float32',
      'tower': 'passage',
      'normalised': True,
      'tokens': 256,
      'shard_size': 4,
      'shards': 3,
      'provenance': provenance,
  }
  # Nothing but the index is left, and nothing of its making in it.
  assert os.listdir(folder.parent) == ['index']
  assert sorted(os.listdir(folder)) == [
      'header.json', 'shard-00000', 'shard-00001', 'shard-00002'
  ]


def test_the_files_are_of_use_without_this_library(tmp_path):
  write(tmp_path / 'index', 10)
  found = faiss.IndexFlatIP(D)
  ids, texts = [], []
  for folder in sorted((tmp_path / 'index').glob('shard-*')):
    found.add(np.load(folder / 'embeddings.npy'))
    ids += (folder / 'ids.txt').read_text().splitlines()
    lines = (folder / 'passages.jsonl').read_bytes()
    starts = np.load(folder / 'offsets.npy')
    for start, end in zip(starts, starts[1:]):
      texts.append(json.loads(lines[start:end]))
  rows = embeddings_for(10)
  _, (best,) = found.search(rows[7:8] * 9, 1)
  assert ids[best[0]] == f'id{np.argmax(rows @ rows[7])}'
  assert ids == [p.id for p in passages_from(0, 10)]
  assert texts[3] == {
      'id': 'id3',
      'name': 'naïve_3',
      'location': 'mod.py:3',
      'text': 'line\n"two"\t' * 3,
  }
  info = json.loads((tmp_path / 'index/shard-00002/shard.json').read_text())
  assert (info['rows'], info['first_row']) == (2, 8)
  path = tmp_path / 'index' / 'shard-00002'
  assert info['bytes'] == {
      file.name: file.stat().st_size
      for file in path.iterdir()
      if file.name != 'shard.json'
  }


def test_float16_on_disk(tmp_path):
  write(tmp_path / 'index', 10, dtype='float16')
  index = Index.open(tmp_path / 'index', {'dtype': 'float16'})
  assert index.embeddings.dtype == np.float16
  rows = embeddings_for(10)
  np.testing.assert_array_equal(index.embeddings[:], rows.astype(np.float16))
  assert index.embeddings[[9, 1]].dtype == np.float16
  with pytest.raises(UserError, match="dtype is 'float16', expected 'float32'"):
    Index.open(tmp_path / 'index', {'dtype': 'float32'})


def test_rows_out_of_range(tmp_path):
  write(tmp_path / 'index')
  index = Index.open(tmp_path / 'index')
  for row in (-1, 10):
    with pytest.raises(IndexError, match='expected 0 to 9'):
      index.passage(row)
  for row in (-11, 10):
    with pytest.raises(IndexError, match='expected 0 to 9'):
      index.ids[row]


def test_text_is_kept_whatever_it_holds(tmp_path):
  odd = Passage('a\u2028', '\u2028\x00', '', 'lone \ud800 surrogate')
  build = IndexBuild(tmp_path / 'index', header(1))
  build.start()
  index_files.write_shards(build, [0], embeddings_for(1), [odd])
  assert build.finish()
  index = Index.open(tmp_path / 'index')
  assert index.passage(0) == odd
  assert list(index.ids) == ['a\u2028'] == [index.ids[0]]


@pytest.mark.parametrize(
    'embeddings, message',
    [
        (embeddings_for(3), r'\(3, 6\): expected float32 \(4, 6\)'),
        (np.ones((4, 5), np.float32), r'\(4, 5\): expected float32 \(4, 6\)'),
        (np.ones((4, D)), 'are float64 .* expected float32'),
    ],
)
def test_embeddings_of_another_shape(tmp_path, embeddings, message):
  build = IndexBuild(tmp_path / 'index', header())
  build.start()
  ((shard, lock),) = build.claims([0])
  with pytest.raises(UserError, match=message):
    build.write(shard, lock, embeddings, passages_from(0, len(embeddings)))
  assert build.missing() == [0, 1, 2]


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'passages': 0}, "field 'passages' is 0: expected a whole number"),
        ({'dim': '6'}, "field 'dim' is '6': expected a whole number"),
        ({'shard_size': 0}, "field 'shard_size' is 0"),
        ({'dtype': 'float64'}, "'float64': expected float32 or float16"),
        ({'tower': 'left'}, "'left': expected passage or query"),
        (
            {'provenance': {'tower': 1, 'dim': 2, 'step': 3}},
            r"provenance names \['dim', 'tower'\]",
        ),
        ({'provenance': {'step': {3}}}, 'provenance must be plain JSON: .*set'),
    ],
)
def test_a_plan_that_cannot_be(fields, message):
  valid = {'passages': 5, 'dim': 6, 'tower': 'query', 'tokens': 64}
  with pytest.raises(UserError, match=message):
    Header(**(valid | fields))


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
  assert "corpus is none, expected 'x'" in message
  assert 'step' not in message
  assert message.endswith('Run `dualenc encode` again.')


@pytest.mark.parametrize('folder', ['none', 'empty'])
def test_no_index(tmp_path, folder):
  (tmp_path / 'empty').mkdir()
  with pytest.raises(UserError, match=f'{folder}/header.json.*encode'):
    Index.open(tmp_path / folder)


@pytest.mark.parametrize(
    'name',
    [
        'embeddings.npy',
        'offsets.npy',
        'passages.jsonl',
        'ids.txt',
        'shard.json',
    ],
)
@pytest.mark.parametrize('share', [None, 0, 0.5, 0.99])
def test_missing_and_truncated_files(tmp_path, name, share):
  write(tmp_path / 'index')
  path = tmp_path / 'index' / 'shard-00001' / name
  if share is None:
    path.unlink()
  else:
    os.truncate(path, int(share * path.stat().st_size))
  damage = 'cannot be read|is no JSON|missing|truncated'
  with pytest.raises(UserError, match=f'shard-00001.*({damage}).*Run'):
    Index.open(tmp_path / 'index')
  # Encoding again makes this shard, and only this one, once more.
  kept = tmp_path / 'index' / 'shard-00000' / 'ids.txt'
  before = kept.stat()
  write(tmp_path / 'index')
  np.testing.assert_array_equal(
      Index.open(tmp_path / 'index').embeddings, embeddings_for(10)
  )
  assert kept.stat().st_mtime_ns == before.st_mtime_ns
  assert kept.stat().st_ino == before.st_ino
  assert os.listdir(tmp_path) == ['index']


def test_a_missing_shard(tmp_path):
  write(tmp_path / 'index')
  os.rename(tmp_path / 'index' / 'shard-00001', tmp_path / 'elsewhere')
  with pytest.raises(UserError, match='shard-00001/.* cannot be read'):
    Index.open(tmp_path / 'index')


@pytest.mark.parametrize(
    'change, message',
    [
        ({'format': 'faiss'}, "another format than 'dualenc-index'"),
        ({'version': 2}, 'version 2; this program reads version 3'),
        ({'passages': '10'}, "field 'passages' is '10': expected a whole"),
        ({'dtype': None}, "field 'dtype' is None: expected float32 or"),
        ({'passages': 9}, r'shard.json: has 2 rows from row 8 on, .* says 1 '),
        ({'passages': 15}, 'shards is 3, but 15 passages of 4 a shard make 4'),
        ({'dim': 7}, r'embeddings.npy: holds .* says float32 \(4, 7\)'),
        ({'dtype': 'float16'}, r'npy: holds float32 .* says float16 \(4, 6\)'),
    ],
)
def test_a_header_that_does_not_fit(tmp_path, change, message):
  write(tmp_path / 'index')
  path = tmp_path / 'index' / 'header.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | change))
  with pytest.raises(UserError, match=message):
    Index.open(tmp_path / 'index')


@pytest.mark.parametrize('text', ['', '{"format": ', '[]', 'null'])
def test_a_header_that_is_none(tmp_path, text):
  write(tmp_path / 'index')
  (tmp_path / 'index' / 'header.json').write_text(text)
  with pytest.raises(UserError, match='header.json is no JSON'):
    Index.open(tmp_path / 'index')


def test_a_row_that_is_not_a_passage(tmp_path):
  write(tmp_path / 'index')
  path = tmp_path / 'index' / 'shard-00001' / 'passages.jsonl'
  path.write_bytes(path.read_bytes().replace(b'"id5"', b'"id5!'))
  index = Index.open(tmp_path / 'index')
  assert index.passage(4).id == 'id4'
  with pytest.raises(UserError, match='passages.jsonl:2: not a passage'):
    index.passage(5)


def test_ids_that_are_not_a_line_each(tmp_path):
  write(tmp_path / 'index')
  path = tmp_path / 'index' / 'shard-00001' / 'ids.txt'
  path.write_bytes(path.read_bytes().replace(b'5\n', b'5 '))
  index = Index.open(tmp_path / 'index')
  assert index.ids[3] == 'id3'
  with pytest.raises(UserError, match='ids.txt: has 3 whole lines: expected 4'):
    index.ids[4]
  with pytest.raises(UserError, match='ids.txt: has 3 whole lines'):
    list(index.ids)
