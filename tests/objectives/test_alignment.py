"""A query tower aligned to a frozen one, or matching it, against NumPy."""

import json
import re

from interrupted import stopped_at
import jax
import numpy as np
import pytest
from run_files import assert_same, logged, rows_of, tensors
import scipy.special
import tiny_run
import tiny_training

import dualenc_jax
from dualenc_jax.checkpoints import checkpoint_reader, formats
from dualenc_jax.cli import check, train
from dualenc_jax.losses import Similarity
from dualenc_jax.models import model_params
from dualenc_jax.objectives import Alignment, frozen_passages, Matching
from dualenc_jax.utils.errors import UserError

DEEP = ['--gin.models.T5Encoder.num_layers=2', '--gin.DROPOUT_RATE=0.1']
TEMPERATURE = 0.05
SIZE, ROWS, THERE = 8, 24, 21


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
  folder = tmp_path_factory.mktemp('teacher')
  flags = tiny_run.flags(folder, *DEEP, '--gin.STEPS=20')
  train.main([*flags, f'--model_dir={folder / "model"}'])
  return folder / 'model'


def flags(folder, teacher, *more, loss='alignment'):
  return tiny_run.flags(
      folder, *DEEP, f'--gin_file=objectives/{loss}.gin',
      '--gin.QUERY_LAYERS=1',
      f'--gin.INITIAL_CHECKPOINT_PATH={teacher}', *more,
  )


def aligned(folder, teacher, *more):
  temperature = f'--gin.TEMPERATURE={TEMPERATURE}'
  return flags(folder, teacher, temperature, *more)


def values(folder, name):
  return [row[name] for row in logged(folder)]


def softmax(queries, passages, own, excluded):
  """Losses and hits of all queries; `excluded` are pairs that do not count."""
  scores = np.asarray(queries, np.float64) @ np.asarray(passages, np.float64).T
  scores /= TEMPERATURE
  scores[tuple(np.array(excluded).T)] = -np.inf
  positive = scores[np.arange(len(own)), own]
  losses = scipy.special.logsumexp(scores, axis=1) - positive
  return losses, positive >= scores.max(axis=1)


def towers(**options):
  """Two towers, their parameters, and a batch of queries."""
  model = tiny_training.make_model(separate_towers=True, **options)
  params = tiny_training.init_params(model)
  del params['loss']
  batch = tiny_training.make_batch(SIZE)
  batch = {'queries': batch['queries'], 'query_ids': batch['query_ids']}
  return model, params, {**batch, 'numbers': np.arange(SIZE, dtype=np.uint32)}


def apply(model, params, method, x):
  return model.apply({'params': model_params(params)}, x, method=method)


def embed(model, params, batch, tower):
  """float64 [B, D], of queries by either tower, without dropout."""
  tokens = batch['queries'].tokens[:, 0]
  found = apply(model, params, f'encode_{tower}', tokens)
  return np.asarray(found, np.float64)


@pytest.mark.parametrize('trained', [False, True])
def test_alignment_is_the_softmax_over_all_passages(trained):
  """Of which some are padding, and one more is of the query 1."""
  model, params, batch = towers()
  rng = np.random.default_rng(0)
  states = rng.normal(size=(ROWS, 32 if trained else 16)).astype(np.float32)
  passages = states
  if trained:
    passages = np.asarray(apply(model, params, 'project_passage', states))
  else:
    states /= np.linalg.norm(states, axis=1, keepdims=True)
  own = rng.permutation(THERE)[:SIZE]
  ids = np.stack([np.arange(ROWS), np.arange(ROWS) + 50], 1).astype(np.uint32)
  others = own.copy()
  others[1] = excluded = np.setdiff1d(np.arange(THERE), own)[0]
  weights = np.linspace(0.5, 2, SIZE).astype(np.float32)
  batch |= {
      'states': states, 'state_valid': np.arange(ROWS) < THERE,
      'state_ids': ids, 'targets': own[:, None].astype(np.int32),
      'passage_ids': ids[own], 'positive_ids': ids[others][:, None],
      'weights': weights,
  }
  objective = Alignment(model, Similarity(TEMPERATURE), trained)
  frozen = [re.fullmatch(x, 'projection/kernel') for x in objective.frozen]
  assert any(frozen) != trained
  value, metrics = jax.jit(objective)(params, batch)
  queries = embed(model, params, batch, 'query')
  losses, hits = softmax(queries, passages[:THERE], own, [(1, excluded)])
  assert value == pytest.approx(np.average(losses, weights=weights), 1e-5)
  hits = np.average(hits, weights=weights)
  assert metrics['accuracy'] == pytest.approx(hits, abs=1e-6)


def test_matching_is_the_distance_of_queries():
  model, params, batch = towers(dropout_rate=0.3)
  objective = jax.jit(Matching(model))
  value, metrics = objective(params, batch)
  own, there = (embed(model, params, batch, x) for x in ('query', 'passage'))
  cosines = np.sum(own * there, axis=1)
  assert value == metrics['loss'] == pytest.approx(np.mean(1 - cosines), 1e-5)
  assert metrics['cosine'] == pytest.approx(cosines.mean(), 1e-5)
  # Dropout is of the query tower alone.
  _, other = objective(params, batch, jax.random.key(0))
  for name, vectors in (('query', own), ('passage', there)):
    powers = np.linalg.svd(vectors, compute_uv=False) ** 2
    rank = powers.sum() ** 2 / np.sum(powers**2)
    assert metrics[f'{name}_rank'] == pytest.approx(rank, 1e-4)
    same = other[f'{name}_rank'] == pytest.approx(rank, 1e-4)
    assert same == (name == 'passage')


def test_a_copy_has_nothing_to_learn():
  model, params, batch = towers()
  for part in ('token_embedder', 'encoder'):
    params[part] = params[f'passage_{part}']
  objective = Matching(model)
  function = jax.jit(jax.value_and_grad(lambda p: objective(p, batch)[0]))
  value, gradients = function(params)
  assert value < 2e-6
  assert all(map(np.all, map(np.isfinite, jax.tree.leaves(gradients))))


@pytest.mark.nightly
def test_states_of_all_passages_are_encoded_once(
    teacher, tmp_path, monkeypatch
):
  """One batch of all the pairs, at rate 0; two of them share a query."""
  kept = tmp_path / 'kept'
  given = aligned(
      tmp_path, teacher, '--gin.STEPS=1', '--gin.LEARNING_RATE=0.0',
      '--gin.BATCH_SIZE=96', '--gin.MICRO_BATCH_SIZE=32',
      '--gin.DROPOUT_RATE=0.0', '--gin.TRAIN_PROJECTION=True',
      f'--gin.STATES_DIR={kept}',
  )
  path = tmp_path / 'train.jsonl'
  lines = path.read_text().splitlines()
  query = json.loads(lines[0])['query']
  lines[1] = json.dumps({**json.loads(lines[1]), 'query': query})
  path.write_text('\n'.join(lines))
  first, second = tmp_path / 'first', tmp_path / 'second'
  train.main([*given, f'--model_dir={first}'])
  rows, corpus = rows_of(tmp_path)
  own = [corpus.index(row['passage']) for row in rows]
  # What is another labelled passage of the query is none of its negatives.
  excluded = [
      (i, own[j])
      for i, row in enumerate(rows) for j, other in enumerate(rows)
      if other['query'] == row['query'] and own[j] != own[i]
  ]
  assert (0, own[1]) in excluded
  model = dualenc_jax.Retriever.from_dir(first)
  losses, hits = softmax(
      model.encode_queries([row['query'] for row in rows]),
      model.encode_passages(corpus), own, excluded,
  )
  (found,) = logged(first)
  assert found['loss'] == pytest.approx(losses.mean(), 1e-6)
  assert found['accuracy'] == pytest.approx(hits.mean(), abs=1e-6)
  assert np.load(kept / 'states.npy').shape == (len(corpus), 128)

  def encode(*_):
    raise AssertionError('encoded again')

  with monkeypatch.context() as patched:
    patched.setattr(frozen_passages.Passages, 'encode', encode)
    train.main([*given, f'--model_dir={second}'])
  assert values(first, 'loss') == values(second, 'loss')
  # Another passage tower, whose first layer is the teacher's last.
  rule = "(('passage_encoder/layers_0/(.*)', r'encoder/layers_1/\\1'),)"
  drop = "('encoder/layers_0/.*',)"
  with pytest.raises(UserError, match='encoder_sha256.* changed since they'):
    train.main([
        *given, f'--gin.INITIAL_CHECKPOINT_RULES={rule}',
        f'--gin.INITIAL_CHECKPOINT_DROP={drop}', '--gin.QUERY_LAYERS_FROM=(1,)',
        f'--model_dir={tmp_path / "third"}',
    ])


def assert_frozen_and_trained(light, teacher):
  """Passages are embedded as before: an index of theirs stays what it is."""
  after, before = tensors(light), tensors(teacher)
  for name, value in before.items():
    same = after[name if 'projection' in name else f'passage_{name}']
    assert same.tobytes() == value.tobytes(), name
  name = 'token_embedder/embedding'
  assert np.any(after[name] != before[name])


@pytest.mark.nightly
def test_a_run_killed_at_the_switch_ends_as_it_would_have(teacher, tmp_path):
  """Killed after the decision and before it is saved, it decides again."""
  given = aligned(
      tmp_path, teacher, '--gin.STEPS=200', '--gin.LEARNING_RATE=1e-2',
      '--gin.EVAL_EVERY=4', '--gin.CHECKPOINT_EVERY=4',
      '--gin.UNTIL=@training.UntilAligned()',
      '--gin.training.UntilAligned.patience=2',
      '--gin.KEEP_BEST=nDCG@10', '--gin.training.Experiment.keep_checkpoints=1',
  )
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  train.main([*given, f'--model_dir={whole}'])
  end = checkpoint_reader.steps(whole)[-1]
  assert 4 < end < 200
  kls = {row['step']: row['kl'] for row in logged(whole, 'alignment')}
  assert [*kls] == list(range(0, end + 1, 4))
  # Patience: the last two are no lower than the lowest before them.
  before = [kls[step] for step in range(0, end - 7, 4)]
  assert min(kls[end - 4], kls[end]) >= min(before)
  assert values(whole, 'loss')[-1] < values(whole, 'loss')[0] - 0.3
  assert_frozen_and_trained(whole, teacher)
  # The best checkpoint stays, and is the model.
  found = {r['step']: r['nDCG@10'] for r in logged(whole, 'validation')}
  best = max([*found][1:], key=found.get)
  assert checkpoint_reader.steps(whole) == sorted({best, end})
  assert formats.read(whole).step == best

  with stopped_at(end, saved=False):
    train.main([*given, f'--model_dir={killed}'])
  assert checkpoint_reader.steps(killed)[-1] == end - 4
  train.main([*given, f'--model_dir={killed}'])
  assert checkpoint_reader.steps(killed) == checkpoint_reader.steps(whole)
  assert_same(tensors(whole), tensors(killed))
  assert logged(killed, 'alignment') == logged(whole, 'alignment')
  # Run again, it trains no more.
  count = len(logged(killed))
  train.main([*given, f'--model_dir={killed}'])
  assert checkpoint_reader.steps(killed)[-1] == end
  assert len(logged(killed)) == count


@pytest.mark.nightly
def test_what_cannot_be_aligned(teacher, tmp_path):
  for more, message in (
      ('UNTIL=@training.UntilAligned()', 'UNTIL is given, but EVAL_EVERY is 0'),
      ('INITIAL_CHECKPOINT_PATH=None', 'from a trained passage tower'),
  ):
    given = aligned(tmp_path, teacher, f'--gin.{more}')
    with pytest.raises(UserError, match=message):
      train.main([*given, f'--model_dir={tmp_path / "new"}'])


def test_towers_of_other_widths_share_no_projection(tmp_path):
  given = tiny_run.flags(
      tmp_path, '--gin_file=objectives/alignment.gin',
      '--gin.passage/models.TokenEmbedder.features=64',
  )
  with pytest.raises(UserError, match='features is 128 .* so they must agree'):
    check.main([*given, '--no_compile'])


@pytest.mark.nightly
def test_queries_without_passages_are_enough(teacher, tmp_path):
  """The very run that pairs give, whose passages are not looked at."""
  of_pairs, alone = tmp_path / 'of_pairs', tmp_path / 'alone'
  given = flags(
      tmp_path, teacher, '--gin.STEPS=30', '--gin.LEARNING_RATE=1e-2',
      loss='matching',
  )
  train.main([*given, f'--model_dir={of_pairs}'])
  cosines = values(of_pairs, 'cosine')
  assert cosines[-1] > cosines[0] + 0.1
  assert_frozen_and_trained(of_pairs, teacher)
  queries = [row['query'] for row in rows_of(tmp_path)[0]]
  file = tmp_path / 'queries.tsv'
  file.write_text(''.join(f'{i}\t{q}\n' for i, q in enumerate(queries)))
  given += ['--gin_file=tasks/queries.gin', f'--gin.QUERIES={file}']
  given.append('--gin.TRAIN_FILE=None')
  train.main([*given, f'--model_dir={alone}'])
  assert_same(tensors(of_pairs), tensors(alone))
