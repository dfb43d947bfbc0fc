"""Texts to shards: order, kills, hosts, bad vectors, full disks."""

import json

import numpy as np
import pytest

from dualenc_jax.data import prepare, Tokenizer
from dualenc_jax.data.readers import Texts
from dualenc_jax.data.text.tokenizer import Vocabulary
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval.index import (
  build_for_model,
  Header,
  Index,
  IndexBuild,
)
from dualenc_jax.retrieval.index.build_for_model import TextSource
from dualenc_jax.utils.errors import UserError

D, N, SHARD = 4, 23, 5
TOKENIZER = Tokenizer(Vocabulary('python_code_8k'), 8, 16)


def text_of(number):
  return ' '.join(['word', *('array byte cache'.split() * (number % 3)), 'end'])


def vector_of(row):
  """Stands in for the tower: what a row of the cache becomes."""
  return np.random.default_rng(row).normal(size=D).astype(np.float32)


@pytest.fixture
def cache_of(tmp_path):
  def cache_of(rows, split='corpus'):
    path = tmp_path / 'texts.jsonl'
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    task = Texts(str(path))
    return prepare(task, split, TOKENIZER, tmp_path / 'tokens')

  return cache_of


@pytest.fixture
def source(cache_of):
  return TextSource.passages(
      cache_of({'_id': f'p{i}', 'text': text_of(i)} for i in range(N))
  )


class Embed:
  """Batches of two, the longest rows first; raises at the call `fail_at`."""

  def __init__(self, source, fail_at=None, change=lambda row, vector: vector):
    self.lengths = source.tokens.lengths
    self.calls, self.fail_at, self.change = [], fail_at, change

  def __call__(self, rows):
    self.calls.append(rows.tolist())
    order = np.argsort(self.lengths[rows], kind='stable')[::-1]
    for start in range(0, len(order), 2):
      if start and len(self.calls) - 1 == self.fail_at:
        raise RuntimeError('killed')
      positions = order[start : start + 2]
      yield positions, np.stack(
          [self.change(rows[p], vector_of(rows[p])) for p in positions]
      )


def build_of(folder, source, **fields):
  fields = {'tower': source.tower, 'dtype': 'float32'} | fields
  return IndexBuild(
      folder, Header(len(source), D, tokens=16, shard_size=SHARD, **fields)
  )


def tree(folder):
  return {
      str(path.relative_to(folder)): path.read_bytes()
      for path in sorted(folder.rglob('*'))
      if path.is_file()
  }


@pytest.mark.parametrize('dtype', ['float32', 'float16'])
def test_row_i_is_passage_i(tmp_path, source, dtype):
  build = build_of(tmp_path / 'index', source, dtype=dtype)
  build_for_model.encode_shards(build, source, Embed(source))
  assert build.finish()
  index = Index.open(tmp_path / 'index')
  expected = np.stack([vector_of(i) for i in range(N)]).astype(dtype)
  np.testing.assert_array_equal(index.embeddings, expected)
  assert list(index.ids) == [f'p{i}' for i in range(N)]
  for i in range(N):
    assert index.passage(i).text == text_of(i)
    assert index.passage(i).location == f'{tmp_path / "texts.jsonl"}:{i + 1}'


def test_a_killed_run_goes_on_and_ends_the_same(tmp_path, source, fail_at=2):
  whole = build_of(tmp_path / 'whole', source)
  build_for_model.encode_shards(whole, source, Embed(source))
  assert whole.finish()

  with pytest.raises(RuntimeError, match='killed'):
    build_for_model.encode_shards(
        build_of(tmp_path / 'index', source), source, Embed(source, fail_at)
    )
  partial = tmp_path / 'index.partial'
  assert len(list(partial.glob('shard-*/'))) == fail_at
  again = build_of(tmp_path / 'index', source)
  embed = Embed(source)
  build_for_model.encode_shards(again, source, embed)
  assert len(embed.calls) == 5 - fail_at and embed.calls[0][0] == fail_at * 5
  assert again.finish()
  assert tree(tmp_path / 'index') == tree(tmp_path / 'whole')


def test_hosts_make_what_one_makes(tmp_path, source, count=7):
  one = build_of(tmp_path / 'one', source)
  build_for_model.encode_shards(one, source, Embed(source))
  assert one.finish()
  done = []
  for host in reversed(range(count)):
    build = build_of(tmp_path / 'index', source)
    embed = Embed(source)
    build_for_model.encode_shards(build, source, embed, Host(host, count))
    assert [rows[0] // SHARD for rows in embed.calls] == list(
        range(host, 5, count)
    )
    done.append(build.finish())
  # Whoever makes the last shard completes the index.
  assert done == [False] * (count - 1) + [True]
  assert tree(tmp_path / 'index') == tree(tmp_path / 'one')


def test_vectors_that_are_not_finite_are_named(tmp_path, source):
  def change(row, vector):
    return np.where([row == 12, 0, 0, 0], np.nan, vector).astype(np.float32)

  build = build_of(tmp_path / 'index', source)
  with pytest.raises(UserError, match=r"of row 12 \(passage 'p12'\) hold NaN"):
    build_for_model.encode_shards(build, source, Embed(source, change=change))
  # What was made before is whole, and kept.
  assert build.missing() == [2, 3, 4]


def test_a_split_without_queries(cache_of):
  with pytest.raises(UserError, match='has only passages'):
    TextSource.queries(cache_of([{'_id': 'a', 'text': 'x'}]))
