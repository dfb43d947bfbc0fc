"""A query tower aligned to a frozen one, or matching it, against NumPy."""

import json

from interrupted import stopped_at
import numpy as np
import pytest
from run_files import assert_same, logged, rows_of, tensors
import scipy.special
import tiny_run

import dualenc_jax
from dualenc_jax.commands import check, cli, train
from dualenc_jax.errors import UserError
from dualenc_jax.interop import model_dirs, opening
from dualenc_jax.objectives import passage_states

DEEP = ['--gin.models.T5Encoder.num_layers=2', '--gin.DROPOUT_RATE=0.1']
TEMPERATURE = 0.05


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
  folder = tmp_path_factory.mktemp('teacher')
  flags = tiny_run.flags(folder, *DEEP, '--gin.STEPS=20')
  train.main([*flags, f'--model_dir={folder / "model"}'])
  return folder / 'model'


def flags(folder, teacher, *more, loss='alignment'):
  return tiny_run.flags(
      folder, *DEEP, f'--gin_file=losses/{loss}.gin', '--gin.QUERY_LAYERS=1',
      f'--gin.INITIAL_CHECKPOINT_PATH={teacher}', *more,
  )


def aligned(folder, teacher, *more):
  temperature = f'--gin.TEMPERATURE={TEMPERATURE}'
  return flags(folder, teacher, temperature, *more)


def matching(folder, teacher, *more):
  return flags(folder, teacher, *more, loss='matching')


def values(folder, name):
  return [row[name] for row in logged(folder)]


def over_corpus(model, rows, corpus):
  """The mean over all pairs, dense, in float64."""
  queries = model.encode_queries([row['query'] for row in rows])
  passages = np.asarray(model.encode_passages(corpus), np.float64)
  scores = np.asarray(queries, np.float64) @ passages.T / TEMPERATURE
  own = [corpus.index(row['passage']) for row in rows]
  for i, row in enumerate(rows):
    # What is another labelled passage of the query is none of its negatives.
    for j, other in enumerate(rows):
      if other['query'] == row['query'] and own[j] != own[i]:
        scores[i, own[j]] = -np.inf
  positive = scores[np.arange(len(rows)), own]
  losses = scipy.special.logsumexp(scores, axis=1) - positive
  return losses.mean(), np.mean(positive >= scores.max(axis=1))


@pytest.mark.slow
@pytest.mark.parametrize('trained', [False, True])
def test_the_loss_is_the_softmax_over_the_whole_corpus(
    teacher, tmp_path, trained
):
  """One batch of all the pairs, at rate 0; two of them share a query."""
  light = tmp_path / 'light'
  given = aligned(
      tmp_path, teacher, '--gin.STEPS=1', '--gin.LEARNING_RATE=0.0',
      '--gin.BATCH_SIZE=96', '--gin.MICRO_BATCH_SIZE=32',
      '--gin.DROPOUT_RATE=0.0', f'--gin.TRAIN_PROJECTION={trained}',
  )
  path = tmp_path / 'train.jsonl'
  lines = path.read_text().splitlines()
  first, second = json.loads(lines[0]), json.loads(lines[1])
  lines[1] = json.dumps({**second, 'query': first['query']})
  path.write_text('\n'.join(lines))
  train.main([*given, f'--model_dir={light}'])
  rows, corpus = rows_of(tmp_path)
  model = dualenc_jax.Retriever.from_dir(light)
  expected, accuracy = over_corpus(model, rows, corpus)
  (found,) = logged(light)
  assert found['loss'] == pytest.approx(expected, 1e-6)
  assert found['accuracy'] == pytest.approx(accuracy, abs=1e-6)
  # The passage tower and what was encoded of it are the teacher's.
  assert over_corpus(
      dualenc_jax.Retriever.from_dir(teacher), rows, corpus
  )[0] != pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    'loss, trained',
    [('alignment', True), ('matching', False)],
)
def test_the_tower_learns_and_what_is_frozen_stays_bit_for_bit(
    teacher, tmp_path, loss, trained
):
  light = tmp_path / 'light'
  more = '--gin.STEPS=60', '--gin.LEARNING_RATE=1e-2'
  given = matching(tmp_path, teacher, *more)
  if loss == 'alignment':
    given = aligned(
        tmp_path, teacher, *more, f'--gin.TRAIN_PROJECTION={trained}'
    )
  train.main([*given, f'--model_dir={light}'])
  if loss == 'matching':
    found = values(light, 'cosine')
    assert found[-1] > 0.85 > found[0]
  else:
    losses = values(light, 'loss')
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.3
  after, before = tensors(light), tensors(teacher)
  for name, value in before.items():
    same = after[name if 'projection' in name else f'passage_{name}']
    is_frozen = not (trained and 'projection' in name)
    assert (same.tobytes() == value.tobytes()) == is_frozen, name
  assert np.any(
      after['token_embedder/embedding'] != before['token_embedder/embedding']
  )
  if not trained:
    # Passages are embedded as before: an index of theirs stays what it is.
    texts = ['array byte cache', 'zone']
    one, other = (
        dualenc_jax.Retriever.from_dir(folder).encode_passages(texts)
        for folder in (light, teacher)
    )
    np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_run_killed_at_the_switch_ends_as_it_would_have(teacher, tmp_path):
  """Killed after the decision and before it is saved, it decides again."""
  given = aligned(
      tmp_path, teacher, '--gin.STEPS=200', '--gin.LEARNING_RATE=1e-2',
      '--gin.EVAL_EVERY=4', '--gin.CHECKPOINT_EVERY=4',
      '--gin.UNTIL=@run.UntilAligned()', '--gin.run.UntilAligned.patience=2',
      '--gin.KEEP_BEST=nDCG@10',
  )
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  train.main([*given, f'--model_dir={whole}'])
  end = model_dirs.steps(whole)[-1]
  assert 4 < end < 200
  kls = {row['step']: row['kl'] for row in logged(whole, 'alignment')}
  assert [*kls] == list(range(0, end + 1, 4))
  # Patience: the last two are no lower than the lowest before them.
  before = [kls[step] for step in range(0, end - 7, 4)]
  assert min(kls[end - 4], kls[end]) >= min(before)

  with stopped_at(end, saved=False):
    train.main([*given, f'--model_dir={killed}'])
  assert model_dirs.steps(killed)[-1] == end - 4
  train.main([*given, f'--model_dir={killed}'])
  assert model_dirs.steps(killed)[-1] == end
  assert_same(tensors(whole), tensors(killed))
  assert logged(killed, 'alignment') == logged(whole, 'alignment')
  # Run again, it trains no more.
  count = len(logged(killed))
  train.main([*given, f'--model_dir={killed}'])
  assert model_dirs.steps(killed)[-1] == end and len(logged(killed)) == count


@pytest.mark.slow
def test_the_best_checkpoint_stays_and_is_the_model(teacher, tmp_path, capfd):
  light = tmp_path / 'light'
  given = aligned(
      tmp_path, teacher, '--gin.STEPS=12', '--gin.EVAL_EVERY=2',
      '--gin.LEARNING_RATE=3e-2', '--gin.KEEP_BEST=nDCG@10',
      '--gin.CHECKPOINT_EVERY=100', '--gin.run.Experiment.keep_checkpoints=1',
  )
  train.main([*given, f'--model_dir={light}'])
  found = {r['step']: r['nDCG@10'] for r in logged(light, 'validation')}
  best = max(found, key=found.get)
  assert model_dirs.steps(light) == sorted({best, 12})
  wanted = opening.read(light).step
  assert wanted == best
  flag = [f'--model_dir={light}', '--split=validation']
  assert cli.main(['evaluate', *flag, f'--output_dir={tmp_path / "out"}']) == 0
  metrics = json.loads((tmp_path / 'out' / 'metrics.json').read_text())
  assert metrics['checkpoint_step'] == best
  # It goes on from the newest.
  more = '--gin.STEPS=14', '--allow_config_change'
  train.main([*given, *more, f'--model_dir={light}'])
  assert [row['step'] for row in logged(light)] == list(range(1, 15))


@pytest.mark.slow
def test_a_threshold_that_is_never_reached(teacher, tmp_path, capfd):
  light = tmp_path / 'light'
  given = aligned(
      tmp_path, teacher, '--gin.EVAL_EVERY=2', '--gin.STEPS=4',
      '--gin.UNTIL=@run.UntilAligned()',
      '--gin.run.UntilAligned.threshold=-1000.0',
  )
  assert cli.main(['train', *given, f'--model_dir={light}']) == 2
  assert 'All 4 steps' in (said := capfd.readouterr().err)
  assert 'the towers are not yet aligned by UNTIL. Give more' in said
  assert model_dirs.steps(light) == [4]


@pytest.mark.slow
def test_what_cannot_be_aligned(teacher, tmp_path):
  until = '--gin.UNTIL=@run.UntilAligned()', '--gin.EVAL_EVERY=2'
  for more, message in (
      (['--gin.QUERY_LAYERS=2', *until], 'the same embedding, so that there'),
      (
          [*until, '--gin.run.UntilAligned.k=12'],
          'has 23 different queries; expected at least 26',
      ),
      ([until[0]], 'UNTIL is given, but EVAL_EVERY is 0'),
      (
          [*until, '--gin.VALIDATION_FILE=None'],
          'UNTIL is given, and the task pairs has no validation split',
      ),
      (['--gin.KEEP_BEST=nDCG@9', until[1], '--gin.STEPS=2'], 'have P@1'),
      (['--gin.PATIENCE=2'], 'PATIENCE needs KEEP_BEST'),
      ([until[0][:-2], until[1]], 'UNTIL is .*; expected @run.UntilAligned'),
      (
          ['--gin.INITIAL_CHECKPOINT_PATH=None'],
          'Alignment learns from a trained passage tower, but INITIAL',
      ),
  ):
    with pytest.raises(UserError, match=message):
      train.main([
          *aligned(tmp_path, teacher, *more), f'--model_dir={tmp_path / "new"}'
      ])


@pytest.mark.slow
def test_states_are_kept_for_the_same_passage_tower(
    teacher, tmp_path, monkeypatch
):
  kept = tmp_path / 'kept'
  given = aligned(
      tmp_path, teacher, '--gin.STEPS=3', f'--gin.STATES_DIR={kept}',
      '--gin.TRAIN_PROJECTION=True',
  )
  first, second = tmp_path / 'first', tmp_path / 'second'
  train.main([*given, f'--model_dir={first}'])
  _, corpus = rows_of(tmp_path)
  assert np.load(kept / 'states.npy').shape == (len(corpus), 128)

  def encode(*_):
    raise AssertionError('encoded again')

  with monkeypatch.context() as patched:
    patched.setattr(passage_states.Passages, 'encode', encode)
    train.main([*given, f'--model_dir={second}'])
  assert [r['loss'] for r in logged(first)] == [
      r['loss'] for r in logged(second)
  ]
  # Another passage tower, whose first layer is the teacher's last.
  rule = "(('passage_encoder/layers_0/(.*)', r'encoder/layers_1/\\1'),)"
  drop = "('encoder/layers_0/.*',)"
  with pytest.raises(UserError, match='encoder_sha256.* changed since they'):
    train.main([
        *given, f'--gin.INITIAL_CHECKPOINT_RULES={rule}',
        f'--gin.INITIAL_CHECKPOINT_DROP={drop}', '--gin.QUERY_LAYERS_FROM=last',
        f'--model_dir={tmp_path / "third"}',
    ])
  (kept / 'states.npy').write_bytes(b'damage')
  with pytest.raises(UserError, match='states.npy cannot be read'):
    train.main([*given, f'--model_dir={tmp_path / "fourth"}'])


@pytest.mark.slow
@pytest.mark.parametrize('distance', ['cosine', 'l2'])
def test_the_loss_is_the_distance_of_all_queries(teacher, tmp_path, distance):
  """One batch of all the queries, at rate 0."""
  light = tmp_path / 'light'
  train.main([
      *matching(
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
def test_a_copy_has_nothing_to_learn(teacher, tmp_path):
  light = tmp_path / 'light'
  train.main([
      *matching(
          tmp_path, teacher, '--gin.QUERY_LAYERS=2', '--gin.DISTANCE=l2',
          '--gin.DROPOUT_RATE=0.0', '--gin.STEPS=3',
      ),
      f'--model_dir={light}',
  ])
  assert max(values(light, 'loss')) < 2e-6
  assert np.isfinite(tensors(light)['token_embedder/embedding']).all()


@pytest.mark.parametrize(
    'loss, more, message',
    [
        (
            'alignment', '--gin.passage/models.TokenEmbedder.features=64',
            'features is 128 .* share the projection, so they must agree',
        ),
        (
            'matching', '--gin.DISTANCE=dot',
            "DISTANCE.* is 'dot'; .*'cosine', 'l2'",
        ),
        (
            'matching', '--gin_file=architectures/sde.gin',
            'Matching trains the query tower alone',
        ),
    ],
)
def test_what_cannot_be(tmp_path, loss, more, message):
  given = tiny_run.flags(tmp_path, f'--gin_file=losses/{loss}.gin', more)
  with pytest.raises(UserError, match=message):
    check.main([*given, '--no_compile'])


@pytest.mark.slow
def test_queries_without_passages_are_enough(teacher, tmp_path):
  """The very run that pairs give, whose passages are not looked at."""
  of_pairs, alone = tmp_path / 'of_pairs', tmp_path / 'alone'
  given = '--gin.STEPS=5', '--gin.DROPOUT_RATE=0.1'
  common = matching(tmp_path, teacher, *given)
  train.main([*common, f'--model_dir={of_pairs}'])
  queries = [row['query'] for row in rows_of(tmp_path)[0]]
  file = tmp_path / 'queries.tsv'
  file.write_text(''.join(f'{i}\t{q}\n' for i, q in enumerate(queries)))
  given = [*common, '--gin_file=tasks/queries.gin', f'--gin.QUERIES={file}']
  given.append('--gin.TRAIN_FILE=None')
  train.main([*given, f'--model_dir={alone}'])
  assert_same(tensors(of_pairs), tensors(alone))
  given.remove('--gin.QUERY_LAYERS=1')
  with pytest.raises(UserError, match='Contrastive learns from pairs'):
    train.main([
        *given, '--gin_file=architectures/sde.gin',
        '--gin.OBJECTIVE=@objectives.Contrastive()',
        f'--model_dir={tmp_path / "none"}',
    ])
