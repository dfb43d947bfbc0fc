"""`dualenc latency` on tiny models: what is said, not how long it takes."""

import json
import os
import re

import pytest
import sentencepiece
import tiny_evaluation
import tiny_towers

from dualenc_jax.cli import latency, main as cli
from dualenc_jax.data.text.tokenizer import SHIPPED
from dualenc_jax.retriever import Retriever

QUERIES = ['parse a date', 'find the key of a map', 'sort']
# By hand: table, layers, bias of relative positions, norm, projection.
LAYER = 4 * 128 * 128 + 3 * 128 * 256 + 2 * 128
SIZES = {n: 8064 * 128 + n * LAYER + 4 * 32 + 128 + 128 * 128 for n in (1, 2)}


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  """A model_dir of one layer, a checkpoint of two, and an artifact."""
  folder = tmp_path_factory.mktemp('models')
  tiny_evaluation.link_model(folder)
  tiny_evaluation.write_random(folder / 'deep', layers=2)
  Retriever(tiny_towers.loaded()).save(folder / 'saved')
  return folder


def run(models, *names_and_flags: str) -> None:
  names = [str(models / n) for n in names_and_flags if n[0] != '-']
  flags = [flag for flag in names_and_flags if flag[0] == '-']
  latency.main([*names, '--count=3', *flags])


def test_models_side_by_side_at_lengths(models, tmp_path, capsys):
  run(
      models, 'model', 'deep', '--lengths=4,8',
      f'--output_dir={tmp_path / "out"}',
  )
  found = json.loads((tmp_path / 'out' / 'latency.json').read_text())
  expected = {'threads': len(os.sched_getaffinity(0)), 'batch': 1, 'count': 3}
  assert expected.items() <= found['settings'].items()
  rows = found['measured']
  assert [(row['tokens_mean'], row['model']) for row in rows] == [
      (4, 'model'), (4, 'deep'), (8, 'model'), (8, 'deep')
  ]
  for row in rows:
    length, layers = row['tokens_mean'], {'model': 1, 'deep': 2}[row['model']]
    assert row['tokens_p95'] == length and row['warm_up'] == 20
    assert (row['layers'], row['dtype']) == (layers, 'float32')
    assert row['parameters'] == SIZES[layers]
    assert row['megabytes'] == pytest.approx(4 * SIZES[layers] / 1e6)
    token = 2 * (4 * 128 * 128 + 3 * 128 * 256) + 4 * length * 128
    operations = layers * length * token + 2 * 128 * 128
    assert row['gflop'] == pytest.approx(operations / 1e9)
    for times in (row['tower'], row['with_tokenizer']):
      assert 0 < times['p50'] <= times['p95'] and times['mean'] > 0
      assert (times['speedup'] == 1) == (row['model'] == 'model')
  out = capsys.readouterr().out
  for name, mark in (('latency.md', ' | '), ('latency.tex', ' & ')):
    written = (tmp_path / 'out' / name).read_text()
    times = rows[3]['with_tokenizer']
    shown = [f'{times[key]:.2f}' for key in ('p50', 'p95', 'mean')]
    assert mark.join(shown) in re.sub(' +', ' ', written)
    assert all(number in out for number in shown)


def test_an_artifact_beside_the_model_by_default_lengths(models, capsys):
  run(models, 'saved', 'model', '--names=served,trained')
  lines = capsys.readouterr().out.splitlines()
  served, trained = (
      [line.split() for line in lines if f' {name} ' in line]
      for name in ('served', 'trained')
  )
  # Queries of the one have 12 tokens at most, of the other 8.
  assert [row[0] for row in served] == [row[0] for row in trained] == ['8']
  # No program tells its layers.
  assert served[0][2] == '-'
  assert trained[0][2:4] == ['1', f'{SIZES[1]:,}']
  assert 'times as fast as served' in '\n'.join(lines)


def test_queries_of_a_file(models, tmp_path):
  file = tmp_path / 'queries.txt'
  file.write_text('\n'.join(QUERIES) + '\n\n')
  out = tmp_path / 'out'
  run(models, 'deep', f'--queries={file}', f'--output_dir={out}')
  own = sentencepiece.SentencePieceProcessor()
  own.load(str(SHIPPED / 'python_code_8k.model'))
  # The model has 8 tokens for a query and its EOS.
  lengths = [min(len(own.encode(text)) + 1, 8) for text in QUERIES]
  (row,) = json.loads((out / 'latency.json').read_text())['measured']
  assert len({*lengths}) > 1
  assert row['tokens_mean'] == pytest.approx(sum(lengths) / 3)


@pytest.mark.parametrize(
    'flags, told',
    [
        (['--lengths=4,12'], 'has 12; model cuts queries to 8 tokens'),
        (['--queries=EMPTY'], 'has no text'),
        (['--queries=EMPTY', '--lengths=4'], 'either --queries or --lengths'),
        (['--names=a,a'], 'expected different ones'),
    ],
)
def test_what_is_wrong_is_one_line(models, tmp_path, capsys, flags, told):
  empty = tmp_path / 'empty.txt'
  empty.write_text('\n \n')
  flags = [flag.replace('EMPTY', str(empty)) for flag in flags]
  both = [str(models / 'saved'), str(models / 'model')]
  assert cli.main(['latency', *both, *flags]) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert error.startswith('error: ') and told in error
