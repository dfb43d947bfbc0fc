"""`dualenc compare`: what it reads, writes and refuses."""

import csv
import json
import shutil
import xml.etree.ElementTree

import pytest
import report_folder
import result_folders

from dualenc_jax.cli import compare
from dualenc_jax.utils.errors import UserError

FIGURE = 'relative_improvement_mrr'


def two_models(root):
  """Two splits: on one b is better, on the other worse."""
  for name, test, validation in (
      ('a', [0.5] * 10, [0.5] * 10),
      ('b', [1.0] * 10, [0.4, 0.5] * 5),
  ):
    for split, values in (('test', test), ('validation', validation)):
      result_folders.of_column(root / name, 'MRR', values, split=split)
  return [str(root / 'a'), str(root / 'b')]


def files_of(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def run(capsys, root, *args):
  """The lines that are printed of systems in a folder, by name, and flags."""
  args = [arg if arg.startswith('-') else str(root / arg) for arg in args]
  compare.main(args)
  return capsys.readouterr().out.splitlines()


def test_two_models(tmp_path, capsys):
  two_models(tmp_path)
  before = sorted(tmp_path.rglob('*'))
  assert run(capsys, tmp_path, 'a', 'b')[0] == 'b against a (%)'
  assert sorted(tmp_path.rglob('*')) == before
  output = tmp_path / 'out'
  flags = [f'--output_dir={output}']
  printed = run(capsys, tmp_path, 'a', 'b', *flags)
  assert printed[0] == 'b against a (%)'
  assert printed[1].split() == 'Task Metric a b difference p'.split()
  # Equal steps up of 10 queries: 2 of 2^10 flips are as good; twice, as there
  # are two tests.
  row = 'pairs test MRR 50.00 100.00 +50.00 0.0039'
  assert printed[2].split() == row.split()
  # 5 of 10 down by .1: of the 2^5 flips 2 are as good.
  row = 'pairs validation MRR 50.00 45.00 -5.00 0.0625'
  assert printed[3].split() == row.split()
  files = files_of(output)
  assert {*files} == {
      *(f'comparison.{kind}' for kind in ('json', 'md', 'tex')),
      *(f'{FIGURE}.{kind}' for kind in ('png', 'svg', 'csv')),
      'tables.md',
      'tables.tex',
  }
  run(capsys, tmp_path, 'a', 'b', *flags)
  assert files_of(output) == files

  content = json.loads(files['comparison.json'])
  assert content['baseline']['name'] == 'a'
  first = content['differences'][0]
  assert (first['p'], first['value']) == (2 / 2**10, 1.0)


def test_several_models_have_columns_side_by_side(tmp_path, capsys):
  systems = ('a', 0.5, ''), ('b', 1.0, ''), ('c', 0.4, 'pq:64')
  for name, value, codec in systems:
    for split in ('test', 'validation'):
      result_folders.of_column(
          tmp_path / name, 'MRR', [value] * 10, split=split, codec=codec
      )
  output = tmp_path / 'out'
  flags = '--names={codec},B,C+{codec}', f'--output_dir={output}'
  printed = run(capsys, tmp_path, 'a', 'b', 'c', *flags)
  assert printed[0] == 'All against fp32 (%)'
  assert printed[1].split() == 'Task Metric fp32 B C+pq:64'.split()
  # 2 of 2^10 flips, of two models on two sets.
  row = 'pairs test MRR 50.00 100.00* 40.00*'
  assert printed[2].split() == row.split()
  with (output / f'{FIGURE}.csv').open(newline='') as file:
    assert [
        (row['task'], row['model'], float(row['relative_improvement']))
        for row in csv.DictReader(file)
    ] == [
        (f'pairs {split}', model, share)
        for split in ('test', 'validation')
        for model, share in (('B', 1.0), ('C+pq:64', pytest.approx(-0.2)))
    ]


def grid(root):
  """Folders of two losses on two sets, a model of its own for each."""
  for loss, values in (('softmax', (0.5, 0.2)), ('samtone', (1.0, 0.4))):
    for task, value in zip(('msmarco', 'nq'), values):
      key = ('multireqa', 'NaturalQuestions') if task == 'nq' else (task, None)
      result_folders.of_column(
          root / f'{loss}-{task}', 'MRR', [value] * 10, task=key[0],
          dataset=key[1], split='validation', run_id=f'{loss} {task}',
      )
  return 'softmax-msmarco', 'samtone-msmarco', 'softmax-nq', 'samtone-nq'


def test_models_of_a_set_each_are_a_row_by_their_name(tmp_path, capsys):
  cells = grid(tmp_path)
  flags = '--names=DE,SamToNe,DE,SamToNe', f'--output_dir={tmp_path / "out"}'
  printed = run(capsys, tmp_path, *cells, *flags)
  assert printed[0] == 'SamToNe against DE (%)'
  rows = [line.split()[2:6] for line in printed[2:4]]
  assert rows == [
      ['MRR', '50.00', '100.00', '+50.00'], ['MRR', '20.00', '40.00', '+20.00']
  ]
  assert 'Trained anew for each set: DE, SamToNe.' in printed
  assert 'training runs' not in '\n'.join(printed)
  table = (tmp_path / 'out' / 'tables.md').read_text()
  assert table.count('| DE ') == table.count('| SamToNe ') == 1
  with pytest.raises(UserError, match='results on msmarco validation, of'):
    run(capsys, tmp_path, *cells, '--names=A,A,B,B')
  lines = '--over=steps', '--lines=x,y,z,y'
  with pytest.raises(UserError, match='--lines has DE on x and z; expected on'):
    run(capsys, tmp_path, *cells, *flags, *lines)
  with pytest.raises(UserError, match='--names calls all systems A'):
    run(capsys, tmp_path, cells[0], cells[2], '--names=A,A')


def test_cells_without_results_are_left_out_and_told(tmp_path, capsys):
  cells = [*grid(tmp_path), 'pair-msmarco', 'pair-nq']
  (tmp_path / 'pair-nq' / 'evaluation').mkdir(parents=True)
  names = '--names=DE,SamToNe,DE,SamToNe,PAIR,PAIR'
  with pytest.raises(UserError, match='pair-msmarco does not exist'):
    run(capsys, tmp_path, *cells, names)
  flags = names, '--skip_missing', f'--output_dir={tmp_path / "out"}'
  printed = run(capsys, tmp_path, *cells, *flags)
  assert printed[0] == 'SamToNe against DE (%)'
  gone = [f'PAIR ({tmp_path / name})' for name in cells[-2:]]
  said = f'No results: {", ".join(gone)}.'
  assert said in printed
  out = tmp_path / 'out'
  assert said in (out / 'comparison.md').read_text().replace('\\_', '_')
  assert json.loads((out / 'comparison.json').read_text())['missing'] == gone
  # One cell of a row: its set is not compared, and both are told.
  shutil.rmtree(tmp_path / 'samtone-nq')
  printed = ' '.join(run(capsys, tmp_path, *cells[:4], names[:29], flags[1]))
  assert f'No results: SamToNe ({tmp_path / "samtone-nq"}).' in printed
  assert 'Left out, since not all have them or these metrics: multireqa' in (
      printed
  )
  with pytest.raises(UserError, match='Only .*softmax-nq has results; ex'):
    run(capsys, tmp_path, 'softmax-nq', 'samtone-nq', flags[1])
  with pytest.raises(UserError, match='baseline, .*samtone-nq, has no r'):
    run(capsys, tmp_path, 'samtone-nq', *cells[:2], flags[1])


def test_results_of_older_steps_are_told(tmp_path, capsys):
  result_folders.of_column(tmp_path / 'a', 'MRR', [0.5])
  report_folder.checkpoint(report_folder.new(tmp_path / 'a'), 40_000)
  result_folders.of_column(tmp_path / 'b', 'MRR', [0.5])
  notes = ' '.join(run(capsys, tmp_path, 'a', 'b'))
  said = 'a on pairs test is of step 20,000, the newest checkpoint of step 40,0'
  assert said in notes


def test_one_model_at_two_steps_is_told_apart_by_its_paths(tmp_path, capsys):
  for name, value in (('old', 0.25), ('new', 0.5)):
    own = result_folders.of_column(
        tmp_path / name, 'MRR', [value], model_dir='my_model'
    )
    shutil.copytree(own, own / 'bm25')
  printed = run(capsys, tmp_path, 'old', 'new')
  assert printed[0] == 'my_model (new) against my_model (old) (%)'
  heads = run(capsys, tmp_path, 'old', 'new', 'old:bm25', 'new:bm25')[1]
  assert heads.endswith('BM25 (old)  BM25 (new)')
  for same in ('old', 'old/evaluation/pairs-test'):
    with pytest.raises(UserError, match='one is given twice'):
      run(capsys, tmp_path, 'old', same)
  # Within another, as `evaluate --prompt` leaves them.
  result_folders.of_column(
      tmp_path / 'new/prompt-x', 'MRR', [1.0], model_dir='my_model'
  )
  printed = run(capsys, tmp_path, 'new', 'new/prompt-x')
  assert printed[0] == 'my_model (new/prompt-x) against my_model (new) (%)'


def test_names_are_no_formulas_and_a_terminal_does_not_obey_them(
    tmp_path, capsys
):
  output = tmp_path / 'out'
  names = r'a$\frac$', 'b\x1b[2J\u202egpj.exe$c$'
  flags = f'--names={",".join(names)}', f'--output_dir={output}'
  compare.main([*two_models(tmp_path), *flags])
  printed = capsys.readouterr().out
  assert r'b\x1b[2J\u202egpj.exe$c$ against a$\frac$' in printed
  drawing = (output / f'{FIGURE}.svg').read_text()
  xml.etree.ElementTree.fromstring(drawing)
  assert not {'\x1b', '\u202e'} & {*printed + drawing}
