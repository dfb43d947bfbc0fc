"""JPQ+GPL by commands: its live hits, its teacher, a run that is killed."""


import numpy as np
import pytest
import run_files
from run_files import assert_same, killed_at, logged, tensors_and_codec
import small_vocabulary
import tiny_run
import two_hosts

import dualenc_jax
from dualenc_jax.commands import cli, train
from dualenc_jax.errors import UserError
from dualenc_jax.index import Index
from dualenc_jax.interop import loading, own

pytestmark = pytest.mark.slow
DEPTH, TEMPERATURE = 6, 0.05


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A dual encoder, an index by it, and a cross-encoder of its vocabulary."""
  folder = tmp_path_factory.mktemp('made')
  dense, teacher = folder / 'dense', folder / 'teacher'
  train.main([
      *tiny_run.flags(folder, '--gin.STEPS=20', '--gin.TEMPERATURE=0.1'),
      f'--model_dir={dense}',
  ])
  train.main([
      *tiny_run.flags(folder, '--gin_file=architectures/cross_encoder.gin'),
      '--gin.PAIR_LENGTH=48', '--gin.STEPS=5', f'--model_dir={teacher}',
  ])
  assert not cli.main([
      'encode', f'--model_dir={dense}', '--codec=opq:16x4',
      f'--index_dir={folder / "index"}',
  ])
  return folder


def flags(made, folder, *more):
  folder.mkdir(exist_ok=True)
  return tiny_run.flags(
      folder, '--gin_file=losses/jpq_gpl.gin',
      f'--gin.INITIAL_CHECKPOINT_PATH={made / "dense"}',
      f'--gin.CODEC_FROM={made / "index"}',
      f'--gin.TEACHER_DIR={made / "teacher"}', '--gin.LEAST_SPREAD=0.0',
      '--gin.LEARNING_RATE=1e-3', f'--gin.JPQ_DEPTH={DEPTH}',
      f'--gin.TEMPERATURE={TEMPERATURE}', *more,
  )


def test_the_first_step_learns_margins_of_the_exact_hits(made, tmp_path):
  """All queries at once; search and teacher by texts, from outside."""
  folder = tmp_path / 'run'
  train.main([
      *flags(made, folder, '--gin.BATCH_SIZE=96', '--gin.DROPOUT_RATE=0.0'),
      '--gin.STEPS=1', f'--model_dir={folder / "jpq"}',
  ])
  rows, passages = run_files.rows_of(folder)
  retriever = dualenc_jax.Retriever.from_dir(made / 'dense')
  codec = Index.open(made / 'index').embeddings.codec
  vectors = codec.decode(codec.encode(retriever.encode_passages(passages)))
  queries = [row['query'] for row in rows]
  scores = codec.queries(retriever.encode_queries(queries)).astype(
      np.float64
  ) @ np.asarray(vectors, np.float64).T
  own_rows = [passages.index(row['passage']) for row in rows]
  order = np.argsort(-scores, axis=1, kind='stable')[:, :DEPTH]
  pairs = [
      [query, passage]
      for query, found in enumerate(order)
      for passage in (own_rows[query], *found)
  ]
  teacher = loading.load_teacher(made / 'teacher').scores(
      queries, passages, np.array(pairs)
  ).reshape(len(rows), -1)
  # Of one query text there may be several passages.
  labelled = [
      {i for i, row in zip(own_rows, rows) if row['query'] == query}
      for query in queries
  ]
  losses = []
  for q, found in enumerate(order):
    errors = [
        (
            (scores[q, own_rows[q]] - scores[q, j]) / TEMPERATURE
            - (teacher[q, 0] - teacher[q, 1 + place])
        )
        ** 2
        for place, j in enumerate(found)
        if j not in labelled[q]
    ]
    losses.append(np.mean(errors))
  (row,) = logged(folder / 'jpq')
  assert row['loss'] == pytest.approx(np.mean(losses), rel=1e-3)
  distinct = {(queries[q], p) for q, p in pairs}
  assert row['asked'] == pytest.approx(len(distinct) / len(rows))


def test_a_killed_run_ends_as_it_would_have(made, tmp_path):
  """Bit for bit, and no pair is asked for twice, by another run neither."""
  given = flags(
      made, tmp_path / 'data', '--gin.STEPS=8', '--gin.CHECKPOINT_EVERY=3'
  )
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  train.main([
      *given, f'--gin.STATES_DIR={tmp_path / "one"}', f'--model_dir={whole}'
  ])
  given = *given, f'--gin.STATES_DIR={tmp_path / "other"}'
  with killed_at(6):
    train.main([*given, f'--model_dir={killed}'])
  assert own.steps(killed) == [3]
  train.main([*given, f'--model_dir={killed}'])
  assert_same(tensors_and_codec(whole), tensors_and_codec(killed))
  rows = logged(whole)
  assert [r['loss'] for r in rows] == [r['loss'] for r in logged(killed)]
  asked = [row['asked'] for row in rows]
  # Two steps of the second epoch, whose queries have been seen.
  assert max(asked[6:]) < min(asked[:6])
  files = [*tmp_path.glob('o*/teacher-*.bin')]
  assert len(files) == 2
  assert files[0].read_bytes() == files[1].read_bytes()
  assert files[0].stat().st_size == 20 * round(16 * sum(asked))
  third = tmp_path / 'third'
  train.main([*given, f'--model_dir={third}'])
  assert {row['asked'] for row in logged(third)} == {0.0}


def test_two_hosts_train_as_one(made, tmp_path):
  given = flags(
      made, tmp_path / 'data', '--gin.STEPS=3', '--gin.DROPOUT_RATE=0.0'
  )
  one, two = tmp_path / 'one', tmp_path / 'two'
  train.main([*given, f'--model_dir={one}'])
  two_hosts.run('train', *given, f'--model_dir={two}')
  losses = [[row['loss'] for row in logged(run)] for run in (one, two)]
  assert losses[1] == pytest.approx(losses[0], rel=1e-5)
  # Each host asks for itself.
  asked = [[row['asked'] for row in logged(run)] for run in (one, two)]
  assert all(a <= b <= 1 + DEPTH for a, b in zip(*asked))


def test_what_cannot_be(made, tmp_path):
  other = tmp_path / 'other'
  other.mkdir()
  train.main([
      *tiny_run.flags(other, '--gin_file=architectures/cross_encoder.gin'),
      f'--gin.VOCABULARY={small_vocabulary.write(other / "own.model")}',
      '--gin.VOCAB_SIZE=384', '--gin.PAIR_LENGTH=60', '--gin.STEPS=1',
      f'--model_dir={other / "teacher"}',
  ])
  for more, message in (
      (['--gin.TEACHER_DIR=None'], 'TEACHER_DIR is None; expected the model_d'),
      (
          [f'--gin.TEACHER_DIR={made / "dense"}'],
          'is a dual encoder, no cross-encoder',
      ),
      (
          [f'--gin.TEACHER_DIR={other / "teacher"}'],
          'of another vocabulary than .*, whose tokens the run has',
      ),
      (
          ['--gin.QUERY_LENGTH=60'],
          'leave room for queries of .* tokens, and QUERY_LENGTH is 60',
      ),
      (
          ["--gin.data.Tokenizer.query_prefix='q: '"],
          "with the prefixes {}, and the run has {'query_prefix': 'q: '}",
      ),
      (['--gin.LEAST_SPREAD=1e3'], 'margins have a standard deviation of'),
  ):
    with pytest.raises(UserError, match=message):
      train.main([
          *flags(made, tmp_path / 'data', *more),
          f'--model_dir={tmp_path / "new"}',
      ])
