"""The shipped quickstart, shrunk: less code, a smaller bag, fewer steps."""

import json
import re
import shlex
import sysconfig

import numpy as np
import pytest
import tiny_run

from dualenc_jax.cli import main as cli, quickstart

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
def test_both_losses_a_map_and_a_search(tmp_path, capsys):
  quickstart.main(flags(tmp_path))
  out = capsys.readouterr().out
  folder = tmp_path / 'model'
  rows = json.loads((folder / 'quickstart.json').read_text())
  systems = [
      'BM25', 'untrained', 'in-batch softmax', 'SamToNe', 'SamToNe, BM25'
  ]
  assert [*rows] == systems
  assert all(line in out for line in (*systems, *quickstart.QUERIES))
  for run in folder, folder / 'softmax':
    losses = [line['loss'] for line in tiny_run.logged(run, 'train')]
    assert np.mean(losses[-4:]) < 0.7 * np.mean(losses[:4])
  assert rows['SamToNe'] != rows['in-batch softmax']
  assert rows['SamToNe']['MRR'] > rows['untrained']['MRR']
  # A loss is compared with the other, too.
  assert re.search(r'SamToNe: .* in-batch softmax', out)
  assert (folder / 'embedding_space/tsne.svg').stat().st_size > 10_000
  # What comes next can be typed.
  (search,) = [
      shlex.split(line)[1:]
      for line in out.splitlines() if line.startswith('  dualenc search')
  ]
  cli.main(search)
  assert capsys.readouterr().out.startswith('your own words\n')

  quickstart.main(flags(tmp_path))
  assert 'Resuming from step 24' in capsys.readouterr().err
  assert json.loads((folder / 'quickstart.json').read_text()) == rows
