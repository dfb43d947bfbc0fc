"""A query tower learns another's embeddings, against NumPy."""

import numpy as np
import pytest
from run_files import assert_same, logged, rows_of, tensors
import tiny_run

import dualenc_jax
from dualenc_jax.commands import check, train
from dualenc_jax.errors import UserError

DEEP = ['--gin.models.T5Encoder.num_layers=4', '--gin.DROPOUT_RATE=0.1']


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
  folder = tmp_path_factory.mktemp('teacher')
  flags = tiny_run.flags(folder, *DEEP, '--gin.STEPS=20')
  train.main([*flags, f'--model_dir={folder / "model"}'])
  return folder / 'model'


def flags(folder, teacher, *more):
  return tiny_run.flags(
      folder, *DEEP, '--gin_file=losses/matching.gin',
      f'--gin.INITIAL_CHECKPOINT_PATH={teacher}', *more,
  )


def values(folder, name):
  return [row[name] for row in logged(folder)]


@pytest.mark.slow
@pytest.mark.parametrize('distance', ['cosine', 'l2'])
def test_the_loss_is_the_distance_of_all_queries(teacher, tmp_path, distance):
  """One batch of all the queries, at rate 0."""
  light = tmp_path / 'light'
  train.main([
      *flags(
          tmp_path, teacher, f'--gin.DISTANCE={distance}', '--gin.STEPS=1',
          '--gin.LEARNING_RATE=0.0', '--gin.BATCH_SIZE=96',
          '--gin.MICRO_BATCH_SIZE=32', '--gin.DROPOUT_RATE=0.0',
      ),
      f'--model_dir={light}',
  ])
  queries = [row['query'] for row in rows_of(tmp_path)[0]]
  own, there = (
      np.asarray(
          dualenc_jax.Retriever.from_dir(folder).encode_queries(queries),
          np.float64,
      ) for folder in (light, teacher)
  )
  cosines = np.sum(own * there, axis=1)
  assert 0.05 < 1 - cosines.mean() < 1
  expected = {
      'cosine': np.mean(1 - cosines),
      'l2': np.mean(np.linalg.norm(own - there, axis=1)),
  }[distance]
  assert values(light, 'loss') == pytest.approx([expected], abs=2e-6)
  assert values(light, 'cosine') == pytest.approx([cosines.mean()], abs=2e-6)
  for name, vectors in (('query', own), ('passage', there)):
    powers = np.linalg.svd(vectors, compute_uv=False) ** 2
    rank = powers.sum() ** 2 / np.sum(powers**2)
    assert values(light, f'{name}_rank') == pytest.approx([rank], 1e-4)


@pytest.mark.slow
def test_the_tower_comes_near_and_the_teacher_stays(teacher, tmp_path):
  light = tmp_path / 'light'
  train.main([
      *flags(tmp_path, teacher, '--gin.STEPS=100', '--gin.LEARNING_RATE=1e-2'),
      f'--model_dir={light}',
  ])
  found = values(light, 'cosine')
  assert found[-1] > 0.85 > found[0]
  after, before = tensors(light), tensors(teacher)
  for name, value in before.items():
    own = name if name.startswith('projection') else f'passage_{name}'
    assert after[own].tobytes() == value.tobytes(), name
  assert np.any(
      after['token_embedder/embedding'] != before['token_embedder/embedding']
  )
  # Passages are embedded as before: an index of theirs stays what it is.
  texts = ['array byte cache', 'zone']
  one, other = (
      dualenc_jax.Retriever.from_dir(folder).encode_passages(texts)
      for folder in (light, teacher)
  )
  np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_copy_has_nothing_to_learn(teacher, tmp_path):
  light = tmp_path / 'light'
  train.main([
      *flags(
          tmp_path, teacher, '--gin.QUERY_LAYERS=4', '--gin.DISTANCE=l2',
          '--gin.DROPOUT_RATE=0.0', '--gin.STEPS=3',
      ),
      f'--model_dir={light}',
  ])
  assert max(values(light, 'loss')) < 2e-6
  assert np.isfinite(tensors(light)['token_embedder/embedding']).all()


def test_what_cannot_be_matched(tmp_path):
  asked = tiny_run.flags(tmp_path, '--gin_file=losses/matching.gin')
  for more, message in (
      ('--gin.DISTANCE=dot', "DISTANCE.* is 'dot'; .*'cosine', 'l2'"),
      (
          '--gin_file=architectures/sde.gin',
          'Matching trains the query tower alone',
      ),
  ):
    with pytest.raises(UserError, match=message):
      check.main([*asked, more, '--no_compile'])


@pytest.mark.slow
def test_queries_without_passages_are_enough(teacher, tmp_path):
  """The very run that pairs give, whose passages are not looked at."""
  of_pairs, alone = tmp_path / 'of_pairs', tmp_path / 'alone'
  common = flags(tmp_path, teacher, '--gin.STEPS=5', '--gin.DROPOUT_RATE=0.1')
  train.main([*common, f'--model_dir={of_pairs}'])
  queries = [row['query'] for row in rows_of(tmp_path)[0]]
  file = tmp_path / 'queries.tsv'
  file.write_text(''.join(f'{i}\t{q}\n' for i, q in enumerate(queries)))
  given = [*common, '--gin_file=tasks/queries.gin', f'--gin.QUERIES={file}']
  given.append('--gin.TRAIN_FILE=None')
  train.main([*given, f'--model_dir={alone}'])
  assert_same(tensors(of_pairs), tensors(alone))
  with pytest.raises(UserError, match='Contrastive learns from pairs'):
    train.main([
        *given, '--gin_file=architectures/sde.gin',
        '--gin.OBJECTIVE=@objectives.Contrastive()',
        f'--model_dir={tmp_path / "none"}',
    ])
