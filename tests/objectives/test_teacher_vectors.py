"""Vectors of another model in the batches of a run."""

import json
import random

import numpy as np
import pyarrow as pa
from pyarrow import parquet
import pytest
import tiny_run

from dualenc_jax.cli import check, config, train
from dualenc_jax.retrieval.index.build import Corpus
from dualenc_jax.retrieval.index.shard import Passage
from dualenc_jax.utils.errors import UserError

DIM = 12
EMBED = '--gin_file=losses/embed_distill.gin'


@pytest.fixture
def data(tmp_path):
  """Flags of a run over pairs with ids, its rows, and a vector per text.

  Of two hard negatives one is the passage of another pair.
  """
  flags = tiny_run.flags(
      tmp_path, '--gin.NUM_NEGATIVES=2', '--gin.VALIDATION_FILE=None',
      '--gin.TEST_FILE=None', f'--model_dir={tmp_path / "model"}',
  )
  path = tmp_path / 'train.jsonl'
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  for i, row in enumerate(rows):
    row |= {'query_id': f'{i}', 'passage_id': f'{i}'}
    row['query'] = f'{i} {row["query"]}'
    row['negatives'][0] = rows[(i + 5) % len(rows)]['passage']
  write_rows(path, rows)
  texts = {t for r in rows for t in (r['query'], r['passage'], *r['negatives'])}
  drawn = np.random.default_rng(0).normal(size=(len(texts), DIM))
  return flags, rows, dict(zip(sorted(texts), drawn.astype(np.float16)))


def write_rows(path, rows):
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))


def write_texts(path, vectors):
  """A Parquet file of texts, in any order, with ids that mean nothing."""
  texts = random.Random(1).sample(sorted(vectors), len(vectors))
  parquet.write_table(pa.table({
      'id': [f't{i}' for i in range(len(texts))], 'text': texts,
      'vector': [vectors[text].tolist() for text in texts],
  }), path)
  return str(path)


def write_numpy(path, texts, vectors):
  """A .npy of texts by id."""
  np.save(path, np.stack([vectors[text] for text in texts.values()]))
  path.with_suffix('.txt').write_text('\n'.join(texts))
  return str(path)


def write_index(path, texts, vectors):
  ids = list(texts)
  rows = np.stack([vectors[t] for t in texts.values()]).astype(np.float32)

  def passage(row):
    return Passage(ids[row], '', '', texts[ids[row]])

  Corpus(rows, ids, passage, False).write(path, DIM, 16, {})
  return str(path)


def build(flags, queries=None, passages=None, *more):
  given = {'QUERIES': queries, 'PASSAGES': passages}
  macros = [f'--gin.TEACHER_{n}={x}' for n, x in given.items() if x]
  argv = [*flags, EMBED, *macros, *more]
  return train.build(config.parse_args(train.make_parser(), argv))


def check_batches(experiment, rows, vectors, unknown=()):
  """Compares two batches, whole and cell by cell, with vectors by text."""
  by_query, batches = {row['query']: row for row in rows}, experiment.batches
  texts = experiment.caches[0].query_texts
  by_key = {
      key: texts.text(i)
      for i, key in enumerate(experiment.caches[0].query_fingerprints.tolist())
  }

  def unit(text):
    x = vectors[text].astype(np.float64)
    return np.zeros(DIM) if text in unknown else x / np.linalg.norm(x)

  for step in (0, 7):
    batch = batches(step)
    keys = batch['query_ids'].astype(np.uint64)
    for i, key in enumerate((keys[:, 0] | keys[:, 1] << np.uint64(32))):
      query = by_key[int(key)]
      row = by_query[query]
      if 'teacher_queries' in batch:
        found = batch['teacher_queries'][i]
        np.testing.assert_allclose(found, unit(query), atol=1e-6)
      if 'teacher_passages' in batch:
        found = batch['teacher_passages'][i]
        wanted = [unit(t) for t in (row['passage'], *row['negatives'])]
        # Each epoch begins with another of the hard negatives.
        np.testing.assert_allclose(found[0], wanted[0], atol=1e-6)
        both = [np.roll(wanted[1:], k, axis=0) for k in (0, 1)]
        errors = [np.abs(found[1:] - x).max() for x in both]
        assert min(errors) < 1e-6
  abstract = experiment.objective.abstract_batch(experiment)
  for name, array in abstract.items():
    if name.startswith('teacher'):
      assert array.shape == batch[name].shape and array.dtype == np.float32


def test_a_file_of_texts_is_for_both_sides(data, tmp_path, caplog):
  flags, rows, vectors = data
  caplog.set_level('INFO')
  path = write_texts(tmp_path / 'all.parquet', vectors)
  made = build(flags, path, path)
  check_batches(made, rows, vectors)
  assert 'vectors of 96 of 96 queries' in caplog.text
  alone = build(flags, path)
  assert 'teacher_passages' not in alone.batches(0)
  assert {*alone.batches.facts} == {'teacher_queries'}


def test_ids_and_the_tokens_of_hard_negatives(data, tmp_path):
  flags, rows, vectors = data
  for row in rows:
    row['negatives'][1] = row['negatives'][0]
  write_rows(tmp_path / 'train.jsonl', rows)
  queries = {row['query_id']: row['query'] for row in rows}
  passages = {row['passage_id']: row['passage'] for row in rows}
  # Queries and passages have the same ids; the passages are in two files.
  half = len(passages) // 2
  parts = [dict([*passages.items()][a:b]) for a, b in ((0, half), (half, None))]
  one = write_numpy(tmp_path / 'one.npy', parts[0], vectors)
  two = write_index(tmp_path / 'two', parts[1], vectors)
  of_queries = write_numpy(tmp_path / 'q.npy', queries, vectors)
  check_batches(build(flags, of_queries, f'({one!r}, {two!r})'), rows, vectors)


def test_texts_without_a_vector(data, tmp_path, caplog):
  flags, rows, vectors = data
  negative = rows[3]['negatives'][1]
  gone = {rows[0]['query'], rows[1]['passage'], negative}
  here = {text: x for text, x in vectors.items() if text not in gone}
  path = write_texts(tmp_path / 'some.parquet', here)
  count = 2 * 96
  for sides, message in (
      ((path, None), 'vectors of 95 of 96 queries; there is none of .*:1'),
      ((None, path), rf'of {count - 2} of {count} passages and hard neg.*:2'),
  ):
    with pytest.raises(UserError, match=message):
      build(flags, *sides).batches  # noqa: B018
  some = build(flags, path, path, '--gin.STRICT=False')
  check_batches(some, rows, vectors, gone)
  assert 'They are left out' in caplog.text
  only = write_texts(
      tmp_path / 'no.parquet',
      {t: x for t, x in vectors.items() if t != negative},
  )
  with pytest.raises(UserError, match=f"the hard negative '{negative}'"):
    build(flags, None, only).batches  # noqa: B018


def test_bad_vectors(data, tmp_path):
  flags, rows, vectors = data
  every = write_texts(tmp_path / 'all.parquet', vectors)
  other = write_texts(tmp_path / 'other.parquet', {'x': np.ones(DIM)})
  short = write_texts(
      tmp_path / 'short.parquet', {t: x[:3] for t, x in vectors.items()}
  )
  passages = {row['passage_id']: row['passage'] for row in rows}
  index = write_index(tmp_path / 'index', passages, vectors)
  changed = {**passages, '0': rows[1]['passage']}
  changed = write_index(tmp_path / 'changed', changed, vectors)

  def refuses(message, *given):
    with pytest.raises(UserError, match=message):
      build(flags, *given).batches  # noqa: B018

  refuses("none of the 96 queries.*first id is 't0'", other)
  refuses('of 3 dimensions, and .*all.parquet of 12', every, short)
  refuses('an index of the passage tower. Expected vectors of queries', index)
  refuses('and 1 have the id of another text there', None, changed)
  for bad in (np.nan, 0.0):
    broken = {t: np.full(DIM, bad) if t == rows[0]['query'] else x
              for t, x in vectors.items()}
    path = write_texts(tmp_path / 'broken.parquet', broken)
    with pytest.raises(UserError, match="vector of 't.*' is zero or has NaN"):
      build(flags, path, None, '--gin.BATCH_SIZE=96').batches(0)


def test_what_does_not_go_together(data, tmp_path):
  flags, _, vectors = data
  path = write_texts(tmp_path / 'all.parquet', vectors)

  def refuses(message, *more):
    with pytest.raises(UserError, match=message):
      check.main([*flags, '--no_compile', *more])

  given = f'--gin.TEACHER_QUERIES={path}', f'--gin.TEACHER_PASSAGES={path}'
  matching = '--gin_file=objectives/matching.gin'
  alone = '--gin_file=architectures/sde.gin'
  none = 'needs vectors of another model, but there are none'
  refuses(f'EmbedDistill {none}', EMBED)
  refuses(f'GUARD_MARGIN {none}', '--gin.GUARD_MARGIN=0.0')
  refuses('as CachedNegatives has no vectors', '--gin.GUARD_MARGIN=0.0',
          '--gin_file=objectives/negative_cache.gin')
  refuses('is given, but InBatchSoftmax does not read', *given)
  flags.remove('--gin.NUM_NEGATIVES=2')
  refuses('Matching learns queries alone', matching, alone, *given)
  refuses('12 components, and the model embeddings of 128. Set', matching,
          alone, given[0])
  refuses('the towers share their encoder', matching, alone)


@pytest.mark.nightly
def test_a_run_of_other_dimensions(data, tmp_path):
  flags, _, vectors = data
  path = write_texts(tmp_path / 'all.parquet', vectors)
  given = [
      *flags, EMBED, f'--gin.TEACHER_QUERIES={path}',
      '--gin.BATCH_SIZE=96', '--gin.MICRO_BATCH_SIZE=48', '--gin.STEPS=8',
      '--gin.LEARNING_RATE=0.01',
  ]
  train.main([*given, f'--gin.TEACHER_PASSAGES={path}'])
  lines = tiny_run.logged(tmp_path / 'model', 'train')
  assert lines[-1]['taught_fraction'] == 1
  assert lines[-1]['teacher_cosine'] > lines[0]['teacher_cosine']
  write_texts(tmp_path / 'all.parquet', {t: -x for t, x in vectors.items()})
  with pytest.raises(UserError, match='training data .*: teacher_queries: '):
    train.main([
        *given, f'--gin.TEACHER_PASSAGES={path}', '--gin.STEPS=9',
        '--allow_config_change',
    ])


@pytest.mark.nightly
def test_a_student_that_searches_the_index_of_its_teacher(data, tmp_path):
  flags, _, vectors = data
  path = write_texts(tmp_path / 'all.parquet', vectors)
  flags.remove('--gin.NUM_NEGATIVES=2')
  train.main([
      *flags, f'--gin.TEACHER_QUERIES={path}',
      '--gin.STEPS=8', '--gin.LEARNING_RATE=0.01',
      '--gin_file=objectives/matching.gin',
      '--gin_file=architectures/sde.gin', f'--model_dir={tmp_path / "two"}',
      f'--gin.models.Projection.features={DIM}',
  ])
  lines = tiny_run.logged(tmp_path / 'two', 'train')
  assert lines[-1]['cosine'] > lines[0]['cosine']
