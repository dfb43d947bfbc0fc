"""The shipped quickstart, shrunk: less code, a smaller bag, fewer steps."""

import json
import shlex
import sysconfig

import numpy as np
import pytest
import tiny_run

from dualenc_jax.cli import main as cli, quickstart
from dualenc_jax.evaluation.results.result_files import read_per_query

PACKAGES = ('asyncio', 'email', 'json', 'logging')


def flags(folder):
  stdlib = sysconfig.get_path('stdlib')
  roots = tuple(f'{stdlib}/{package}' for package in PACKAGES)
  return [
      f'--model_dir={folder / "model"}', f'--gin.ROOTS={roots}',
      '--gin.STEPS=24', '--gin.BATCH_SIZE=32', '--gin.PASSAGE_LENGTH=32',
      '--gin.EVAL_EVERY=24', '--gin.models.TokenEmbedder.features=128',
      '--gin.models.T5Encoder.mlp_dim=64',
  ]


@pytest.mark.slow
def test_a_bag_and_a_t5_grown_on_it(tmp_path, capsys):
  quickstart.main(flags(tmp_path))
  out = capsys.readouterr()
  folder = tmp_path / 'model'
  rows = json.loads((folder / 'quickstart.json').read_text())
  systems = [
      'untrained', 'BM25', 'bag of pieces', 'T5, grown on it', 'bag and BM25'
  ]
  assert [*rows] == systems
  assert all(line in out.out for line in (*systems, *quickstart.QUERIES))
  losses = [line['loss'] for line in tiny_run.logged(folder, 'train')]
  assert np.mean(losses[-4:]) < 0.7 * np.mean(losses[:4])
  assert rows['bag of pieces']['MRR'] > 0 and rows['BM25']['MRR'] > 0.1
  assert 'fresh: encoder/layers_0/' in out.err
  # It starts as good as the bag was at its end.
  after, start = (
      np.mean(read_per_query(path).values['MRR'])
      for path in (
          folder / 'validation' / 'after.tsv',
          folder / 't5' / 'validation' / 'before.tsv',
      )
  )
  assert start == pytest.approx(after, rel=0.1)
  # What comes next can be typed.
  (search,) = [
      shlex.split(line)[1:]
      for line in out.out.splitlines()
      if line.startswith('  dualenc search')
  ]
  cli.main(search)
  assert capsys.readouterr().out.startswith('your own words\n')

  quickstart.main(flags(tmp_path))
  assert 'Resuming from step 24' in capsys.readouterr().err
  assert json.loads((folder / 'quickstart.json').read_text()) == rows

