"""`dualenc compare`: what it reads, writes and refuses."""

import csv
import json
import math
import re
import shutil
import struct
import sys
import xml.etree.ElementTree

import pytest
import result_folders

from dualenc_jax.commands import cli, compare
from dualenc_jax.errors import UserError

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


def differences_of(folder):
  return json.loads((folder / 'comparison.json').read_text())['differences']


def test_two_models(tmp_path, capsys):
  two_models(tmp_path)
  before = sorted(tmp_path.rglob('*'))
  assert run(capsys, tmp_path, 'a', 'b')[0] == 'b against a (%)'
  assert sorted(tmp_path.rglob('*')) == before
  output = tmp_path / 'out'
  flags = '--wide', f'--output_dir={output}'
  printed = run(capsys, tmp_path, 'a', 'b', *flags)
  assert printed[0] == 'b against a (%)'
  assert printed[1].split()[:5] == ['Task', 'Split', 'Metric', 'a', 'b']
  assert printed[1].endswith(
      't-test p  t-test Holm  randomization p  randomization Holm'
  )
  # Equal steps up of 10 queries: 2 of 2^10 flips are as good; twice, as there
  # are two tests.
  assert printed[2].split() == (
      'pairs test MRR 50.00 100.00 +50.00 +100.0% 10/0/0 - - 0.0020 0.0039'
  ).split()
  # 5 of 10 down by .1: t = -.05 / (.0527 / sqrt(10)) = -3 with 9 degrees of
  # freedom; of the 2^5 flips 2 are as good.
  assert printed[3].split() == (
      'pairs validation MRR 50.00 45.00 -5.00 -10.0% 0/5/5'
      ' 0.0150 0.0299 0.0625 0.0625'
  ).split()
  assert 'does not apply (-) where all queries differ by the same' in printed[5]
  files = files_of(output)
  assert {*files} == {
      *(f'comparison.{kind}' for kind in ('json', 'csv', 'md', 'tex')),
      *(f'{FIGURE}.{kind}' for kind in ('png', 'svg', 'csv')),
      'tables.md',
      'tables.tex',
  }
  assert f'Written to {output}: comparison.json' in printed[-1]
  run(capsys, tmp_path, 'a', 'b', *flags)
  assert files_of(output) == files

  content = json.loads(files['comparison.json'])
  assert content['baseline']['name'] == 'a'
  provenance = content['models'][0]['results']['pairs test']
  assert provenance['source'] == 'of the queries'
  assert provenance['checkpoint_step'] == 20_000
  options = {'metrics': None, 'common_queries': False}
  assert content['options'] == options | {'permutations': 10_000, 'seed': 0}
  first = content['differences'][0]
  assert (first['split'], first['better'], first['queries']) == ('test', 10, 10)
  assert first['relative_improvement'] == 1.0
  assert first['randomization_p'] == 2 / 2**10
  assert first['t_test_p'] is first['t_test_p_holm'] is None

  test, validation = csv.DictReader(
      files['comparison.csv'].decode().splitlines()
  )
  assert float(test['value']) == 1.0
  assert test['t_test_p'] == ''
  assert float(validation['randomization_p_holm']) == 2 / 2**5

  markdown = files['comparison.md'].decode()
  assert '| pairs | test       | MRR    |     50.00 | **100.00** |' in markdown
  tex = files['comparison.tex'].decode()
  assert r'\multicolumn{2}{c}{t-test}' in tex
  assert r'validation & MRR & \textbf{50.00} & 45.00 & $-$5.00' in tex

  # The figure: sorted, the best first.
  rows = [*csv.DictReader(files[f'{FIGURE}.csv'].decode().splitlines())]
  assert [row['set'] for row in rows] == ['pairs test', 'pairs validation']
  percents = [float(row['relative_improvement_percent']) for row in rows]
  assert percents == [100, -10]
  data = files[f'{FIGURE}.png']
  assert data[:8] == b'\x89PNG\r\n\x1a\n'
  width, height = struct.unpack('>II', data[16:24])
  assert width > 1000 and height > 250
  svg = files[f'{FIGURE}.svg'].decode()
  assert xml.etree.ElementTree.fromstring(svg).tag.endswith('svg')
  assert '<dc:date>' not in svg


def test_several_models_have_a_table_of_all(tmp_path, capsys):
  """With the bytes of those whose passages are codes, of each set."""
  for name, value, sizes in (
      ('a', 0.5, (0, 0)), ('b', 1.0, (64, 0)), ('c', 0.4, (64, 2048))
  ):
    for split, size in zip(('test', 'validation'), sizes):
      result_folders.of_column(
          tmp_path / name, 'MRR', [value] * 10, split=split,
          bytes_per_passage=size,
      )
  printed = run(capsys, tmp_path, 'a', 'b', 'c', '--wide')
  assert printed[0] == 'All against a (%)'
  heads = 'Model bytes pairs test MRR pairs test p, Holm'
  assert printed[1].split()[:9] == heads.split()
  rows = [re.split(r'\s{2,}', line) for line in printed[2:5]]
  # 2 of 2^10 flips, of two models on two sets.
  assert rows == [
      ['a', '-', '50.00', '-', '50.00', '-'],
      ['b', '- / 64', *['100.00', '0.0078'] * 2],
      ['c', '64 / 2,048', *['40.00', '0.0078'] * 2],
  ]


def test_other_embeddings_and_checkpoints_are_told(tmp_path, capsys):
  fields = {
      'test': {'embedding_dtype': 'float16', 'checkpoint_step': 1_000},
      'validation': {'embedding_dtype': 'float32'},
  }
  for split, own in fields.items():
    result_folders.of_column(tmp_path / 'a', 'MRR', [0.5], split=split)
    result_folders.of_column(tmp_path / 'b', 'MRR', [0.5], split=split, **own)
  notes = run(capsys, tmp_path, 'a', 'b', f'--output_dir={tmp_path}')
  note = (
      'Passages are ranked by float32 embeddings of a and float16 ones of b on'
      ' pairs test.'
  )
  assert note in notes
  assert 'Figures of b are of steps 1,000 and 20,000.' in notes
  assert note in (tmp_path / 'comparison.md').read_text()
  printed = run(capsys, tmp_path, 'a', 'a', '--names=a,b')
  assert 'embeddings' not in ' '.join(printed)


def test_several_models_are_all_compared_with_the_first(tmp_path, capsys):
  two_models(tmp_path)
  for split in ('test', 'validation'):
    result_folders.of_column(tmp_path / 'c', 'MRR', [0.75] * 10, split=split)
  output = tmp_path / 'out'
  flags = '--names=A,B,C', '--wide', f'--output_dir={output}'
  printed = run(capsys, tmp_path, 'a', 'b', 'c', *flags)
  assert 'B against A (%)' in printed and 'C against A (%)' in printed
  with open(output / f'{FIGURE}.csv', newline='') as f:
    rows = [
        (row['set'], row['model'], float(row['relative_improvement_percent']))
        for row in csv.DictReader(f)
    ]
  assert rows == [
      ('pairs test', 'B', 100.0), ('pairs test', 'C', 50.0),
      ('pairs validation', 'B', -10.0), ('pairs validation', 'C', 50.0),
  ]
  table = (output / 'tables.md').read_text()
  assert '| pairs | test       | B     | **100.0** |' in table


def test_without_matplotlib_all_but_the_pictures(tmp_path, capsys, monkeypatch):
  for name in list(sys.modules):
    if name.split('.')[0] == 'matplotlib':
      monkeypatch.delitem(sys.modules, name)
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  two_models(tmp_path)
  printed = run(capsys, tmp_path, 'a', 'b', f'--output_dir={tmp_path / "out"}')
  assert "pip install 'dualenc-jax[plots]'" in ' '.join(printed)
  assert 'comparison.json' in files_of(tmp_path / 'out')


def test_one_model_at_two_steps_is_told_apart_by_its_paths(tmp_path, capsys):
  for name, value in (('old', 0.25), ('new', 0.5)):
    own = result_folders.of_column(
        tmp_path / name, 'MRR', [value], model_dir='my_model'
    )
    shutil.copytree(own, own / 'bm25')
  printed = run(capsys, tmp_path, 'old', 'new')
  assert printed[0] == 'new against old (%)'
  heads = run(capsys, tmp_path, 'old', 'new', 'old:bm25', 'new:bm25')[1]
  assert heads.endswith('BM25 (old)  BM25 (new)')
  with pytest.raises(UserError, match='one is given twice'):
    run(capsys, tmp_path, 'old', 'old')


QRELS = """q1 0 d1 1
q1 0 d2 0
q2 0 d3 2
q2 0 d4 1
q3 0 d5 1
q4 0 d6 0
"""
# q1: d1 first; q2: d4 first, d3 second; q3: nothing found.
GOOD = """q1 Q0 d1 1 3 x
q1 Q0 d2 2 2 x
q2 Q0 d4 1 3 x
q2 Q0 d3 2 2 x
q3 Q0 d9 1 1 x
q4 Q0 d6 1 1 x
"""
# q1 by a tie, of which d2 is first; q2 is not ranked.
BAD = """q1 Q0 d1 1 2 x
q1 Q0 d2 2 2 x
q3 Q0 d5 1 1 x
"""


@pytest.fixture
def runs(tmp_path):
  """Two runs and their qrels."""
  paths = {}
  for name, text in (('good', GOOD), ('bad', BAD), ('qrels', QRELS)):
    paths[name] = tmp_path / f'{name}.trec'
    paths[name].write_text(text)
  return paths


def test_run_files_by_hand(tmp_path, runs, capsys):
  """With TREC's qrels and the same in BEIR's form."""
  rows = [line.split() for line in QRELS.splitlines()]
  lines = ['query-id\tcorpus-id\tscore']
  lines += ['\t'.join([query, passage, g]) for query, _, passage, g in rows]
  (tmp_path / 'qrels.tsv').write_text('\n'.join(lines) + '\n')
  found = []
  for name in ('qrels.tsv', 'qrels.trec'):
    run(
        capsys, tmp_path, 'bad.trec', 'good.trec',
        f'--qrels={tmp_path / name}', '--metrics=P@1,MRR,Recall@1,nDCG@10',
        f'--output_dir={tmp_path}',
    )
    found.append(differences_of(tmp_path))
  rows = found[0]
  values = {r['metric']: (r['baseline_value'], r['value']) for r in rows}
  assert found[0] == found[1]
  # q4 has no relevant passage, and counts as 0.
  assert values['P@1'] == pytest.approx((1 / 4, 2 / 4))
  assert values['MRR'] == pytest.approx((1.5 / 4, 2 / 4))
  assert values['Recall@1'] == pytest.approx((1 / 4, 1.5 / 4))
  log = 1 / math.log2(3)
  ideal = 2 + log
  expected = ((log + 1) / 4, (1 + (1 + 2 * log) / ideal) / 4)
  assert values['nDCG@10'] == pytest.approx(expected)
  assert [(r['better'], r['equal'], r['worse']) for r in rows][:2] == [
      (2, 1, 1),
      (2, 1, 1),
  ]


def test_run_files_fused_by_hand(tmp_path):
  for name, hits in (('one', 'abc'), ('two', 'dca')):
    lines = [f'q Q0 {hit} 0 {3 - i} x\n' for i, hit in enumerate(hits)]
    (tmp_path / name).write_text(''.join(lines))
  # 1/61 + 1/63 of a is above 1/63 + 1/62 of c, then d of the second; b is the
  # fourth, and the runs have three.
  one, two = str(tmp_path / 'one'), str(tmp_path / 'two')
  for gold, value in zip('acdb', (1, 1 / 2, 1 / 3, 0)):
    (tmp_path / 'qrels').write_text(f'q 0 {gold} 1\n')
    compare.main([
        one, f'{one}+{two}', f'--qrels={tmp_path / "qrels"}',
        '--metrics=MRR', f'--output_dir={tmp_path / gold}',
    ])
    (row,) = differences_of(tmp_path / gold)
    assert row['model'] == 'one+two'
    assert row['value'] == pytest.approx(value)
  (tmp_path / 'other').write_text('other Q0 d 0 1 x\n')
  with pytest.raises(UserError, match='no query in common'):
    compare.main([
        one, f'{one}+{tmp_path / "other"}', f'--qrels={tmp_path / "qrels"}'
    ])


def test_what_is_not_ranked_is_told_of_each_run(runs, caplog):
  other = runs['bad'].with_name('other.trec')
  other.write_text('q1 Q0 d1 1 2 x\n')
  args = [str(runs['bad']), str(other), f'--qrels={runs["qrels"]}', '--k=1']
  compare.main(args)
  told = [m for m in caplog.messages if 'were not ranked' in m]
  assert told == [
      f'{runs["bad"]}: 2 of the 4 judged queries were not ranked and count as'
      ' 0.',
      f'{other}: 3 of the 4 judged queries were not ranked and count as 0.',
  ]


def test_runs_of_different_depths_need_k(tmp_path, runs):
  deeper = tmp_path / 'deeper.trec'
  deeper.write_text(GOOD + 'q1 Q0 d7 3 1 x\n')
  args = [str(runs['good']), str(deeper), f'--qrels={runs["qrels"]}']
  with pytest.raises(UserError, match='"depth": 2 and 3. --k=2 uses'):
    compare.main(args)
  compare.main([*args, '--k=2'])
  # Of the tie in q1 only d2 is left, as trec_eval's order has it.
  output = tmp_path / 'out'
  args[1] = str(runs['bad'])
  flags = '--k=1', '--metrics=Recall@10', f'--output_dir={output}'
  compare.main([*args, *flags])
  (row,) = differences_of(output)
  assert row['value'] == pytest.approx(1 / 4)
  assert row['baseline_value'] == pytest.approx(1.5 / 4)


def test_what_is_refused(tmp_path, runs):
  a, b = two_models(tmp_path)
  good, bad, qrels = (str(runs[name]) for name in ('good', 'bad', 'qrels'))
  other = tmp_path / 'other_qrels'
  other.write_text('x 0 d1 1\n')
  for args, message in (
      ([a], 'two or more systems'),
      ([a, str(tmp_path / 'nothing')], 'nothing does not exist'),
      ([a, str(tmp_path)], 'has no results'),
      ([good, a, f'--qrels={qrels}'], 'a has no run.trec with queries of'),
      ([a, f'{a}+{b}'], 'is fused of runs: give --qrels'),
      ([a, good], 'good.trec is a run file: give --qrels'),
      ([good, bad], 'good.trec is a run file: give --qrels'),
      ([good, bad, '--qrels=none'], '--qrels: none is not a file'),
      (
          [good, bad, f'--qrels={good}'],
          f'^--qrels: {good}:1: 6 columns as a run file has, expected query id',
      ),
      ([good, bad, f'--qrels={other}'], 'good.trec with --qrels .*other_qrels'),
      ([a, b, '--k=5'], '--k and --relevance_level need --qrels'),
      ([a, b, '--relevance_level=2'], '--relevance_level need --qrels'),
      ([good, bad, f'--qrels={qrels}', '--relevance_level=9'], 'above 2'),
      ([a, b, '--k=0'], '--k is 0; expected at least 1'),
      ([a, b, '--permutations=0'], '--permutations is 0'),
      ([a, b, '--names=x'], '--names has 1 names for 2 systems'),
      ([a, b, '--names=x,x'], '--names=x,x has a name twice'),
      ([a, b, '--metrics=MMR'], "no result has 'MMR'. Did you mean 'MRR'"),
      ([a, b, f'--output_dir={good}'], 'cannot be written'),
  ):
    with pytest.raises(UserError, match=message):
      compare.main(args)


def test_bad_input_is_a_message(tmp_path, capsys):
  folder = result_folders.of_column(tmp_path / 'a', 'MRR', [0.5])
  result_folders.of_column(tmp_path / 'b', 'MRR', [0.5])
  (folder / 'per_query.tsv').write_text('query_id\tMRR\nq0\t0.5\textra\n')
  argv = [str(tmp_path / 'a'), str(tmp_path / 'b')]
  assert cli.run(compare.main, argv) == 2
  error = capsys.readouterr().err
  assert error.startswith('error: ') and 'per_query.tsv:2: 3 cells' in error


def test_names_are_no_formulas_and_a_terminal_does_not_obey_them(
    tmp_path, capsys
):
  output = tmp_path / 'out'
  names = r'a$\frac$', 'b\x1b[2J\u202egpj.exe$c$'
  compare.main([
      *two_models(tmp_path),
      f'--names={",".join(names)}',
      f'--output_dir={output}',
  ])
  printed = capsys.readouterr().out
  assert r'b\x1b[2J\u202egpj.exe$c$ against a$\frac$' in printed
  drawing = (output / f'{FIGURE}.svg').read_text()
  xml.etree.ElementTree.fromstring(drawing)
  assert not {'\x1b', '\u202e'} & {*printed + drawing}
