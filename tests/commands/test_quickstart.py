"""The shipped quickstart, shrunk: less code, the tiny model, fewer steps."""

import json
import sysconfig

import numpy as np
import pytest
from test_commands import events

from dualenc_jax.commands import quickstart
from dualenc_jax.errors import UserError

PACKAGES = ('asyncio', 'email', 'json', 'logging', 'multiprocessing')


def flags(folder):
  stdlib = sysconfig.get_path('stdlib')
  roots = tuple(f'{stdlib}/{package}' for package in PACKAGES)
  return [
      f'--model_dir={folder / "model"}',
      f'--gin.ROOTS={roots}',
      '--gin_file=models/tiny.gin',
      '--gin.STEPS=24',
      '--gin.BATCH_SIZE=32',
      '--gin.PASSAGE_LENGTH=32',
      '--gin.EVAL_EVERY=24',
  ]


@pytest.mark.slow
def test_quickstart_trains_compares_searches_and_resumes(tmp_path, capsys):
  quickstart.main(flags(tmp_path))
  out = capsys.readouterr().out
  systems = 'untrained model', 'BM25', 'trained model', 'both (hybrid)'
  for line in (*systems, *quickstart.QUERIES, 'by a paired randomization test'):
    assert line in out
  losses = [v for _, v in events(tmp_path / 'model')['train/loss']]
  assert np.mean(losses[-4:]) < 0.7 * np.mean(losses[:4])
  rows = json.loads((tmp_path / 'model' / 'quickstart.json').read_text())
  assert rows['trained model']['MRR'] > 0
  assert rows['BM25']['MRR'] > 0.1
  assert [*rows] == [*systems]

  quickstart.main(flags(tmp_path))
  again = capsys.readouterr()
  assert 'Resuming from step 24' in again.err
  assert json.loads(
      (tmp_path / 'model' / 'quickstart.json').read_text()
  ) == rows


def test_an_unknown_reader_gets_did_you_mean(tmp_path):
  argv = [*flags(tmp_path), '--gin.TASK=@readers.PythonCod()']
  with pytest.raises(UserError, match='Did you mean .*PythonCode'):
    quickstart.main(argv)
