"""The shipped quickstart, shrunk: less code, the tiny model, fewer steps."""

import json
import shlex
import sysconfig

import numpy as np
import pytest
from test_commands import events

from dualenc_jax.commands import cli, quickstart
from dualenc_jax.errors import UserError
from dualenc_jax.results.folder import read_per_query

PACKAGES = ('asyncio', 'email', 'json', 'logging', 'multiprocessing')


def flags(folder, model='tiny'):
  stdlib = sysconfig.get_path('stdlib')
  roots = tuple(f'{stdlib}/{package}' for package in PACKAGES)
  return [
      f'--model_dir={folder / "model"}', f'--gin.ROOTS={roots}',
      f'--gin_file=models/{model}.gin', '--gin.STEPS=24', '--gin.BATCH_SIZE=32',
      '--gin.PASSAGE_LENGTH=32', '--gin.EVAL_EVERY=24',
  ]


@pytest.mark.slow
def test_quickstart_trains_compares_searches_and_resumes(tmp_path, capsys):
  quickstart.main(flags(tmp_path))
  out = capsys.readouterr().out
  systems = 'untrained', 'BM25', 'trained model', 'hybrid'
  for line in (*systems, *quickstart.QUERIES, 'of a paired randomization test'):
    assert line in out
  losses = [v for _, v in events(tmp_path / 'model')['train/loss']]
  assert np.mean(losses[-4:]) < 0.7 * np.mean(losses[:4])
  rows = json.loads((tmp_path / 'model' / 'quickstart.json').read_text())
  assert rows['trained model']['MRR'] > 0
  assert rows['BM25']['MRR'] > 0.1
  assert [*rows] == [*systems]
  assert not (tmp_path / 'model' / 't5').exists()

  quickstart.main(flags(tmp_path))
  again = capsys.readouterr()
  assert 'Resuming from step 24' in again.err
  assert json.loads(
      (tmp_path / 'model' / 'quickstart.json').read_text()
  ) == rows


@pytest.mark.slow
def test_on_a_bag_grows_a_t5(tmp_path, capsys):
  small = [
      '--gin.models.TokenEmbedder.features=128',
      '--gin.models.T5Encoder.mlp_dim=64',
  ]
  quickstart.main([*flags(tmp_path, 'bag'), *small])
  out = capsys.readouterr()
  rows = json.loads((tmp_path / 'model' / 'quickstart.json').read_text())
  bag, t5, both = [*rows][2:]
  assert (bag, t5, both) == ('bag of pieces', 'T5, grown on it', 'bag and BM25')
  assert 'fresh: encoder/layers_0/' in out.err
  # It starts as good as the bag was at its end.
  folder = tmp_path / 'model'
  after, start = (
      np.mean(read_per_query(path).values['MRR'])
      for path in (
          folder / 'validation' / 'after.tsv',
          folder / 't5' / 'validation' / 'before.tsv',
      )
  )
  assert start == pytest.approx(after, rel=0.1)
  # What is printed is what the tests beside it say.
  for name in (bag, t5, both):
    (line,) = [
        line
        for line in out.out.splitlines()
        if line.startswith(f'  {name} ') and ' p ' in line
    ]
    change = rows[name]['MRR'] - rows['BM25']['MRR']
    assert f'{change:+.4f}' in line
  # What comes next can be typed.
  (search,) = [
      shlex.split(line)[1:]
      for line in out.out.splitlines()
      if line.startswith('  dualenc search')
  ]
  cli.main(search)
  assert capsys.readouterr().out.startswith('your own words\n')


def test_an_unknown_reader_gets_did_you_mean(tmp_path):
  argv = [*flags(tmp_path), '--gin.TASK=@readers.PythonCod()']
  with pytest.raises(UserError, match='Did you mean .*PythonCode'):
    quickstart.main(argv)
