"""What training has changed, by the command itself."""

import logging

import numpy as np
import pytest
import scipy.stats
import shared_runs
import tiny_beir
import tiny_run

from dualenc_jax.checkpoints import loading
from dualenc_jax.cli import train
from dualenc_jax.evaluation.results import comparison
from dualenc_jax.evaluation.results.result_files import read_per_query


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A run that gets worse, watches another task, and has seen five pairs."""
  folder = tmp_path_factory.mktemp('run')
  tiny_beir.make(0).write(folder / 'beir')
  (folder / 'watch.gin').write_text(
      'from __gin__ import dynamic_registration\n'
      'from dualenc_jax.data import readers\n'
      'WATCH_TASKS = [@readers.Beir()]\n'
      f"readers.Beir.folder = {str(folder / 'beir')!r}\n"
  )
  flags = tiny_run.flags(
      folder, '--gin.EVAL_EVERY=2', '--gin.STEPS=4', '--gin.LEARNING_RATE=3.0',
      f'--gin.VALIDATION_FILE={folder / "dev.jsonl"}',
      f'--gin_file={folder / "watch.gin"}',
  )
  seen, own = (
      (folder / f'{name}.jsonl').read_text().splitlines()
      for name in ('train', 'test')
  )
  (folder / 'dev.jsonl').write_text('\n'.join(seen[:5] + own))
  said = []
  handler = logging.Handler()
  handler.emit = lambda record: said.append(record.getMessage())
  logger = logging.getLogger('dualenc_jax')
  logger.addHandler(handler)
  train.main([*flags, f'--model_dir={folder / "model"}'])
  logger.removeHandler(handler)
  return folder / 'model', said


def values(folder, name):
  return read_per_query(folder / f'{name}.tsv').values['MRR']


def test_both_are_evaluated_before_the_first_step(run):
  model, _ = run
  for group in ('validation', 'validation/beir-folder-beir'):
    found = {row['step']: row['MRR'] for row in tiny_run.logged(model, group)}
    assert [*found] == [0, 2, 4]
    for name, step in (('before', 0), ('after', 4)):
      mean = np.mean(values(model / group, name))
      assert mean == pytest.approx(found[step], abs=1e-8)


def test_the_end_tells_before_and_after_and_that_it_is_worse(run):
  model, said = run
  (line,) = [s for s in said if s.startswith('validation, 28 queries, before')]
  before, after = (values(model / 'validation', n) for n in ('before', 'after'))
  assert f'MRR {before.mean():.4f} -> {after.mean():.4f} (p' in line
  p = float(line.partition('(p ')[2].partition(',')[0])
  reference = scipy.stats.permutation_test(
      (after, before),
      lambda a, b, axis: np.mean(a - b, axis=axis),
      permutation_type='samples', n_resamples=20_000, random_state=0,
  )
  assert p == pytest.approx(reference.pvalue, abs=0.02)
  worse = [s for s in said if 'validation is worse than before training' in s]
  assert len(worse) == 1 and worse[0].startswith('WARNING')


def test_pairs_of_validation_that_are_trained_on_are_told(run):
  _, said = run
  told = [s for s in said if 'pairs of split validation are in the train' in s]
  assert len(told) == 1 and told[0].startswith('5 of the 29 pairs')


@pytest.mark.slow
def test_a_cross_encoder_orders_hits_of_bm25():
  model = shared_runs.cross_encoder()
  first, beaten, *warned = comparison.verdict_of_training(model)
  assert 'validation, 23 queries, before training and after: MRR' in first
  one, other = (float(beaten.split()[place]) for place in (-8, -6))
  assert 'BM25 and re-ranked: MRR' in beaten
  assert bool(warned) == (other <= one)
  rows = tiny_run.logged(model, 'validation')
  assert [row['step'] for row in rows] == [0, 30]
  # All relevant passages are among what BM25 finds of 24 passages.
  assert all(0 < row['MRR'] <= 1 and row['Recall@100'] == 1 for row in rows)
  found = loading.load_teacher(model).calibration
  assert found.step == 30 and found.slope > 0
  assert found.probabilities(-1e9) == 0 and found.probabilities(1e9) == 1
