"""What training has changed, by the command itself."""

import json
import logging

import numpy as np
import pytest
import scipy.stats
import tiny_beir
import tiny_run

from dualenc_jax.commands import train
from dualenc_jax.errors import UserError
from dualenc_jax.interop import loading
from dualenc_jax.results.folder import read_per_query

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A run of four steps that watches another task, and what it said."""
  folder = tmp_path_factory.mktemp('run')
  tiny_beir.make(0).write(folder / 'beir')
  said = []
  handler = logging.Handler()
  handler.emit = lambda record: said.append(record.getMessage())
  logging.getLogger('dualenc_jax').addHandler(handler)
  flags = tiny_run.flags(
      folder,
      '--gin.EVAL_EVERY=2',
      '--gin.STEPS=4',
      '--gin.LEARNING_RATE=1e-2',
      f'--gin_file={watch(folder)}',
  )
  train.main([*flags, f'--model_dir={folder / "model"}'])
  logging.getLogger('dualenc_jax').removeHandler(handler)
  return folder / 'model', said, flags


def watch(folder):
  path = folder / 'watch.gin'
  path.write_text(
      'from __gin__ import dynamic_registration\n'
      'from dualenc_jax import readers\n'
      'WATCH_TASKS = [@readers.Beir()]\n'
      f"readers.Beir.folder = {str(folder / 'beir')!r}\n"
  )
  return path


def lines_of(model):
  lines = (model / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


def test_both_are_evaluated_before_the_first_step(run):
  model, _, _ = run
  found = {}
  for line in lines_of(model):
    if line['group'].startswith('validation'):
      found.setdefault(line['group'], {})[line['step']] = line['MRR']
  groups = {'validation', 'validation/beir-folder-beir'}
  assert found.keys() == groups
  for group in groups:
    assert [*found[group]] == [0, 2, 4]
    for name, step in (('before', 0), ('after', 4)):
      values = read_per_query(model / group / f'{name}.tsv').values['MRR']
      assert np.mean(values) == pytest.approx(found[group][step], abs=1e-8)


def test_the_end_tells_before_and_after(run):
  model, said, _ = run
  (line,) = [s for s in said if s.startswith('validation, 23 queries, before')]
  before, after = (
      read_per_query(model / 'validation' / f'{name}.tsv').values['MRR']
      for name in ('before', 'after')
  )
  assert f'MRR {before.mean():.4f} -> {after.mean():.4f} (p' in line
  p = float(line.partition('(p ')[2].partition(',')[0])
  reference = scipy.stats.permutation_test(
      (after, before),
      lambda a, b, axis: np.mean(a - b, axis=axis),
      permutation_type='samples',
      n_resamples=20_000,
      random_state=0,
  )
  assert p == pytest.approx(reference.pvalue, abs=0.02)


def test_worse_than_before_is_a_warning(tmp_path, capfd):
  flags = tiny_run.flags(
      tmp_path, '--gin.EVAL_EVERY=2', '--gin.LEARNING_RATE=3.0'
  )
  train.main([*flags, f'--model_dir={tmp_path / "model"}'])
  said = capfd.readouterr().err
  assert 'WARNING: validation is worse than before training' in said


def test_a_cross_encoder_orders_hits_of_bm25(tmp_path, capfd):
  flags = tiny_run.flags(
      tmp_path,
      '--gin.STEPS=30',
      '--gin.EVAL_EVERY=30',
      '--gin.LEARNING_RATE=1e-2',
      '--gin_file=architectures/cross_encoder.gin',
      f'--model_dir={tmp_path / "model"}',
  )
  train.main(flags)
  said = capfd.readouterr().err
  assert 're-ranks the 20 best hits of BM25' in said
  assert 'validation, 23 queries, before training and after: MRR' in said
  (line,) = [s for s in said.splitlines() if 'BM25 and re-ranked: MRR' in s]
  worse = float(line.split()[-6]) <= float(line.split()[-8])
  assert worse == ('WARNING: it does not beat BM25' in said)
  rows = [r for r in lines_of(tmp_path / 'model') if r['group'] == 'validation']
  assert [row['step'] for row in rows] == [0, 30]
  # All relevant passages are among what BM25 finds of 24 passages.
  assert all(0 < row['MRR'] <= 1 and row['Recall@100'] == 1 for row in rows)
  # Of 23 questions, 20 hits each.
  found = loading.load_teacher(tmp_path / 'model').calibration
  assert found.step == 30 and found.slope > 0
  assert found.pairs == 23 * 20 and 0 < found.positives <= 24
  assert found.probabilities(-1e9) == 0 and found.probabilities(1e9) == 1


def test_pairs_of_validation_that_are_trained_on_are_told(tmp_path, capfd):
  flags = tiny_run.flags(tmp_path, '--gin.EVAL_EVERY=2')
  train_file, dev = tmp_path / 'train.jsonl', tmp_path / 'dev.jsonl'
  own = (tmp_path / 'test.jsonl').read_text().splitlines()
  dev.write_text('\n'.join(train_file.read_text().splitlines()[:5] + own[:7]))
  flags = [*flags, f'--gin.VALIDATION_FILE={dev}']
  train.main([*flags, f'--model_dir={tmp_path / "model"}'])
  said = capfd.readouterr().err
  assert '5 of the 12 pairs of split validation are in the training' in said
  # A run whose splits are apart is not told so.
  flags[-1] = f'--gin.VALIDATION_FILE={tmp_path / "test.jsonl"}'
  train.main([*flags, f'--model_dir={tmp_path / "other"}'])
  assert 'of split validation are in the training' not in capfd.readouterr().err


def test_what_is_no_task_cannot_be_watched(tmp_path):
  flags = tiny_run.flags(tmp_path, "--gin.WATCH_TASKS=['beir']")
  with pytest.raises(UserError, match='watch_tasks.*expected a reader'):
    train.main([*flags, f'--model_dir={tmp_path / "model"}'])
