"""Charts of quality over a number: the numbers, the lines, the axis."""

import csv
import json

import matplotlib.figure
import pytest
import result_folders

from dualenc_jax.cli import compare
from dualenc_jax.evaluation.results import quality_over
from dualenc_jax.evaluation.results.quality_over import Point
from dualenc_jax.utils.errors import UserError


def folders(root):
  """Two losses at two sizes, on two sets, with the facts of an evaluation."""
  for loss, values in (('de', (0.25, 0.5)), ('samtone', (0.375, 0.75))):
    for size, value in zip(('small', 'large'), values):
      for task in ('pairs', 'msmarco'):
        result_folders.of_column(
            root / f'{loss}-{size}', 'MRR', [value - 0.125 * (task == 'pairs')],
            task=task, parameters=10**6 if size == 'small' else 3 * 10**7,
        )
  return [
      f'{loss}-{size}' for loss in ('de', 'samtone')
      for size in ('large', 'small')
  ]


def run(root, *args):
  args = [arg if arg.startswith('-') else str(root / arg) for arg in args]
  compare.main([*args, f'--output_dir={root / "out"}'])


def rows(path):
  with path.open(newline='') as file:
    return list(csv.DictReader(file))


def test_a_line_of_each_loss_over_parameters(tmp_path):
  names = folders(tmp_path)
  run(tmp_path, *names, '--over=parameters', '--lines=DE,DE,SamToNe,SamToNe')
  for name, less in (('msmarco_test', 0), ('pairs_test', 0.125)):
    stem = f'mrr_over_parameters_{name}'
    assert rows(tmp_path / 'out' / f'{stem}.csv') == [
        {
            'line': line, 'model': model, 'parameters': size,
            'MRR': f'{value - less:.6g}',
        }
        for line, model, size, value in (
            ('DE', 'de-small', '1000000', 0.25),
            ('DE', 'de-large', '30000000', 0.5),
            ('SamToNe', 'samtone-small', '1000000', 0.375),
            ('SamToNe', 'samtone-large', '30000000', 0.75),
        )
    ]
    drawn = (tmp_path / 'out' / f'{stem}.svg').read_text()
    assert (tmp_path / 'out' / f'{stem}.png').stat().st_size > 5000
    assert '<svg' in drawn


def test_over_the_milliseconds_of_latency(tmp_path):
  names = folders(tmp_path)[:2]
  measured = [
      {'model': name, 'tokens_mean': tokens, 'with_tokenizer': {'p50': ms}}
      for name, tokens, ms in (
          ('de-large', 8, 2.0), ('de-small', 8, 1.0), ('de-large', 16, 4.0),
          ('de-small', 16, 1.5),
      )
  ]
  path = tmp_path / 'latency.json'
  path.write_text(json.dumps({'measured': measured}))
  run(tmp_path, *names, f'--over={path}')
  found = rows(tmp_path / 'out' / 'mrr_over_milliseconds_msmarco_test.csv')
  assert [(row['model'], float(row['milliseconds'])) for row in found] == [
      ('de-small', 1.25), ('de-large', 3.0)
  ]
  over = quality_over.parse(str(path))
  assert over.label == 'ms of a query at p50 (mean over 8, 16 tokens)'
  path.write_text(json.dumps({'measured': measured[::2]}))
  with pytest.raises(UserError, match='de-small has no number for .*json. Giv'):
    run(tmp_path, *names, f'--over={path}')


@pytest.mark.parametrize('numbers, scale', [
    ([1, 20], 'linear'), ([1, 21], 'log'), ([0, 500], 'linear'),
    ([5, 5], 'linear'),
])
def test_the_axis_is_logarithmic_where_numbers_are_far_apart(numbers, scale):
  canvas = matplotlib.figure.Figure()
  points = [Point('', f'm{n}', n, 0.5) for n in numbers]
  quality_over._draw(canvas, points, 'MRR', 'bytes')
  (axis,) = canvas.axes
  assert axis.get_xscale() == scale
  drawn = {tuple(map(float, xy)) for xy in axis.lines[0].get_xydata()}
  assert drawn == {(n, 0.5) for n in numbers}
  assert [text.get_text() for text in axis.texts] == [f'm{n}' for n in numbers]
  assert axis.get_xlabel() == 'bytes' + ', log scale' * (scale == 'log')


@pytest.mark.parametrize('flags, message', [
    (['--over=bytes'], 'bytes: de-large has no number for msmarco test in .*'),
    (['--over=candidates'], '"candidates".*Evaluate it again, or leave it out'),
    (['--over=parameter'], "no file and no number. Did you mean 'parameters'"),
    (['--over=steps', '--lines=a'], '--lines has 1 names for 4 systems'),
    (['--lines=a,b,c,d'], '--lines needs --over'),
])
def test_what_is_refused(tmp_path, flags, message):
  names = folders(tmp_path)
  with pytest.raises(UserError, match=message):
    run(tmp_path, *names, *flags)
  with pytest.raises(UserError, match='--over draws .* give .*--output_dir'):
    compare.main([*(str(tmp_path / name) for name in names), '--over=steps'])
  assert not (tmp_path / 'out').exists()
