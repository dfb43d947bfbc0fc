"""Token caches: round trip, keys, reuse, damage, a source that is gone."""

import json
import shutil
import sys

import cache_words
import numpy as np
import pytest

from dualenc_jax.data import cache as cache_lib
from dualenc_jax.data.cache import prepare
from dualenc_jax.data.readers import Pairs, PythonCode
from dualenc_jax.data.seqio_task import SeqioTask
from dualenc_jax.data.text.ragged import fingerprints
from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary
from dualenc_jax.objectives.pairs import describe_cuts
from dualenc_jax.utils.errors import UserError

ROWS = [
    {'query': 'first query', 'passage': 'a passage', 'negatives': ['n', 'a b']},
    {'query': 'second 中', 'passage': 'another passage'},
    {'query': 'third', 'passage': 'a b', 'negatives': ['c d'], 'name': 'x'},
    {'query': '4', 'passage': 'word ' * 50, 'query_id': 'Q', 'passage_id': 9},
    {'query': 'fifth', 'passage': 'last', 'negatives': ['n1', 'a b', 'n3']},
]
VOCABULARY = Vocabulary('python_code_8k')
TOKENIZER = Tokenizer(VOCABULARY, 8, 16)


@pytest.fixture
def source(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text(''.join(json.dumps(row) + '\n' for row in ROWS))
  return path


@pytest.fixture
def task(source):
  return Pairs(train=str(source))


@pytest.fixture
def cache_dir(tmp_path):
  return tmp_path / 'cache'


def folders(cache_dir):
  """Complete caches, and what there is of others but locks."""
  found = [*cache_dir.iterdir(), *(cache_dir / cache_lib.BUILDING).iterdir()]
  others = cache_lib.BUILDING, '.lock'
  return sorted(path.name for path in found if not path.name.endswith(others))


def check_same(cache, rows):
  """Texts, tokens and numbers of the cache are those of the rows."""
  for i, row in enumerate(rows):
    for name in ('name', 'location'):
      assert getattr(cache, f'{name}s').text(i) == row[name]
    for side, encode in (
        ('query', TOKENIZER.encode_queries),
        ('passage', TOKENIZER.encode_passages),
    ):
      # Of a passage alone, the query is empty.
      tokens = encode([row[side]]).row(0) if row[side] else []
      found = getattr(cache, f'{side}_tokens').row(i)
      np.testing.assert_array_equal(found, tokens)
      assert getattr(cache, f'{side}_texts').text(i) == row[side]
    start, end = cache.answers_offsets[i : i + 2]
    assert [cache.answers.text(j) for j in range(start, end)] == row['answers']
    start, end = cache.negative_offsets[i : i + 2]
    found = [cache.negative_tokens.row(j).tolist() for j in range(start, end)]
    negatives = TOKENIZER.encode_passages(row['negatives'])
    assert found == [negatives.row(j).tolist() for j in range(len(negatives))]
  assert cache.relevances.tolist() == [row['relevance'] for row in rows]
  for name in ('query', 'passage', 'negative'):
    tokens = getattr(cache, f'{name}_tokens')
    assert tokens.values.dtype == np.uint16
    found = getattr(cache, f'{name}_fingerprints')
    np.testing.assert_array_equal(found, fingerprints(tokens))


@pytest.mark.parametrize('chunk', [2, 8192])
def test_round_trip(task, cache_dir, monkeypatch, chunk):
  monkeypatch.setattr(cache_lib, 'CHUNK', chunk)
  cache = prepare(task, 'train', TOKENIZER, cache_dir)
  check_same(cache, [*task.examples('train')])
  # Example 2's passage is a negative of examples 0 and 4.
  own = cache.passage_fingerprints[2]
  assert (cache.negative_fingerprints[[1, 4]] == own).all()
  assert cache.header.items() >= {
      'task': 'pairs', 'split': 'train', 'vocabulary': VOCABULARY.sha256,
      'query_length': 8, 'passage_length': 16, 'examples': 5,
  }.items()
  # Ids default to the start of sha256(b'third') and of sha256(b'a b').
  assert cache.query_ids.text(3) == 'Q' and cache.passage_ids.text(3) == '9'
  assert cache.query_ids.text(2) == 'qb1e99324505bd32d'
  assert cache.passage_ids.text(2) == 'pc8687a08aa5d6ed2'
  # What training says of it: the fourth of five is cut.
  assert [*describe_cuts([cache], ('queries', 'passages'))] == [
      '20.0% of passages fill the 16 tokens of PASSAGE_LENGTH: what is longer'
      ' is cut.'
  ]
  # Rows of a corpus, answers and grades.
  words = cache_words.Words(50)
  cache = prepare(words, 'train', TOKENIZER, cache_dir)
  check_same(cache, [*words.examples('train')])


def test_reused_when_nothing_changed(task, cache_dir, monkeypatch):
  first = prepare(task, 'train', TOKENIZER, cache_dir)

  def no_examples(*unused_args):
    raise AssertionError('the source was read again')

  monkeypatch.setattr(Pairs, 'examples', no_examples)
  assert prepare(task, 'train', TOKENIZER, cache_dir).folder == first.folder


def test_anything_in_the_key_makes_another_cache(
    task, source, cache_dir, shared
):
  (t5,) = (shared / 'data' / 't5_spiece').glob('*.model')
  tokenizers = [
      TOKENIZER, Tokenizer(VOCABULARY, 9, 16), Tokenizer(VOCABULARY, 8, 17),
      Tokenizer(Vocabulary(str(t5)), 8, 16),
      Tokenizer(VOCABULARY, 8, 16, query_prefix='q: '),
      Tokenizer(VOCABULARY, 8, 16, passage_prefix='q: '),
  ]
  prepared = [
      prepare(task, 'train', tokenizer, cache_dir).folder
      for tokenizer in tokenizers
  ]
  other = Pairs(train=str(source), strict=False)
  prepared.append(prepare(other, 'train', TOKENIZER, cache_dir).folder)
  source.write_text(json.dumps(ROWS[0]) + '\n')
  changed = prepare(task, 'train', TOKENIZER, cache_dir)
  assert len(changed) == 1
  assert len({*prepared, changed.folder}) == 8 == len(folders(cache_dir))


def test_a_truncated_file_is_rebuilt_and_that_is_said(task, cache_dir):
  name = 'passage_tokens.values.uint16'
  first = prepare(task, 'train', TOKENIZER, cache_dir)
  tokens = first.passage_tokens.values.copy()
  path = first.folder / name
  data = path.read_bytes()
  path.write_bytes(data[: len(data) // 2])
  lines = []
  again = prepare(task, 'train', TOKENIZER, cache_dir, lines.append)
  assert 'Rebuilding a damaged token cache' in lines[0] and name in lines[0]
  np.testing.assert_array_equal(again.passage_tokens.values, tokens)
  assert folders(cache_dir) == [first.folder.name]


def test_without_its_source_the_one_matching_cache_serves(
    task, source, cache_dir, monkeypatch
):
  old = prepare(task, 'train', TOKENIZER, cache_dir).folder
  source.write_text(''.join(json.dumps(row) + '\n' for row in ROWS[:2]))
  new = prepare(task, 'train', TOKENIZER, cache_dir).folder
  source.unlink()
  # Another file of this name may be what either is of.
  with pytest.raises(UserError, match='2 may be of it.*Remove those'):
    prepare(task, 'train', TOKENIZER, cache_dir)
  # A damaged one is none.
  (new / 'header.json').unlink()
  lines = []
  cache = prepare(task, 'train', TOKENIZER, cache_dir, lines.append)
  assert cache.folder == old and 'without checking' in lines[-1]
  with pytest.raises(UserError, match='there is none here'):
    prepare(task, 'train', Tokenizer(VOCABULARY, 8, 99), cache_dir)
  # In the folder that all projects share, it may be another's.
  monkeypatch.setenv('DUALENC_CACHE', str(cache_dir))
  shutil.copytree(old, cache_dir / 'tokens' / old.name)
  with pytest.raises(UserError, match='If of this one, copy it into another'):
    prepare(task, 'train', TOKENIZER, cache_dir / 'tokens')


def test_without_seqio_its_tasks_need_a_cache(cache_dir, monkeypatch):
  monkeypatch.setitem(sys.modules, 'dualenc_jax.data.seqio_adapter', None)
  task = SeqioTask('somewhere', module='json')
  with pytest.raises(UserError, match=r'dualenc-jax\[data\].*none here'):
    prepare(task, 'train', TOKENIZER, cache_dir)


def test_a_failure_leaves_nothing(task, source, tmp_path, cache_dir):
  (tmp_path / 'code').mkdir()
  with source.open('a') as stream:
    stream.write('nonsense\n')
  for bad, folder, message in (
      (task, cache_dir, ':6: not JSON'),
      (PythonCode([str(tmp_path / 'code')]), cache_dir, "no examples in split"),
      (task, source / 'cache', 'cannot be written'),
  ):
    with pytest.raises(UserError, match=message):
      prepare(bad, 'train', TOKENIZER, folder)
  assert folders(cache_dir) == []
