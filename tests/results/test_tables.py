"""Tables against the papers' own numbers, and their text as LaTeX."""

import re

import pytest
import result_folders

from dualenc_jax.data.readers import beir
from dualenc_jax.evaluation.results import result_files, tables
from dualenc_jax.utils import table as table_lib
from dualenc_jax.utils.table import Cell, Row, Table

# ADE-SPL in SamToNe's table 1: P@1 and MRR of MSMARCO, NQ, SQuAD, TriviaQA and
# SearchQA.
ADE_SPL = {
    'Standard': (15.7, 28.8, 55.3, 67.0, 74.5, 82.1, 41.7, 54.4, 42.3, 59.1),
    'SamToNe': (17.6, 30.4, 55.7, 67.2, 73.8, 81.7, 44.0, 55.9, 48.5, 63.4),
    'PAIR': (16.9, 29.6, 55.7, 67.0, 74.4, 82.0, 45.0, 56.8, 44.1, 60.4),
}
QA_SETS = (
    ('msmarco', None), ('multireqa', 'NaturalQuestions'),
    ('multireqa', 'SQuAD'), ('multireqa', 'TriviaQA'),
    ('multireqa', 'SearchQA'),
)


def qa_model(root, name, values, sets=QA_SETS):
  for (task, dataset), p, mrr in zip(sets, values[::2], values[1::2]):
    metrics = {'P@1': p / 100, 'MRR': mrr / 100}
    result_folders.write(root / name, metrics, task, dataset, 'validation')
  return result_files.read_model(root / name)


def beir_model(root, name, values):
  for dataset, value in values.items():
    metrics = {'nDCG@10': value / 100}
    result_folders.write(root / name, metrics, 'beir', dataset)
  return result_files.read_model(root / name)


def of(name, models):
  """The one table of this name."""
  (found,) = [t for t in tables.paper_tables(models) if t.name == name]
  return found


def texts(table):
  return [[cell.text for cell in row.cells] for row in table.rows]


def bold(table):
  return [[cell.bold for cell in row.cells] for row in table.rows]


def test_table_1_of_samtone(tmp_path):
  models = [qa_model(tmp_path, n, v) for n, v in ADE_SPL.items()]
  table = of('qa-retrieval', models)
  sets = 'MSMARCO', 'NQ', 'SQuAD', 'TriviaQA', 'SearchQA', 'Average'
  assert table.columns == tuple((s, m) for s in sets for m in ('P@1', 'MRR'))
  averages = {'Standard': (45.9, 58.3), 'SamToNe': (47.9, 59.7),
              'PAIR': (47.2, 59.2)}
  assert texts(table) == [
      [str(value) for value in ADE_SPL[name] + own]
      for name, own in averages.items()
  ]
  # NQ's P@1 is best twice.
  assert [row.index(True) for row in bold(table)] == [4, 0, 2]
  assert [sum(row) for row in bold(table)] == [2, 8, 3]
  assert table.notes[-1] == (
      'The average is over MSMARCO, NQ, SQuAD, TriviaQA, SearchQA, which all'
      ' models have.'
  )


def test_the_average_is_over_what_all_rows_have(tmp_path):
  whole = qa_model(tmp_path, 'whole', ADE_SPL['PAIR'])
  part = qa_model(tmp_path, 'part', (50.0, 60.0, 70.0, 80.0), QA_SETS[1:3])
  table = of('qa-retrieval', [whole, part])
  average = ('Average of 2', 'P@1'), ('Average of 2', 'MRR')
  assert table.columns[-2:] == average
  # (55.7 + 74.4) / 2 = 65.05, which as a float is a little more.
  assert texts(table) == [
      '16.9 29.6 55.7 67.0 74.4 82.0 45.0 56.8 44.1 60.4 65.1 74.5'.split(),
      '- - 50.0 60.0 70.0 80.0 - - - - 60.0 70.0'.split(),
  ]
  # A value that none other stands beside is not best.
  assert bold(table)[0] == [False] * 2 + [True] * 4 + [False] * 4 + [True] * 2
  assert table.notes[-1] == (
      'The average is over NQ, SQuAD, which all models have.'
  )
  # Sets beyond the five stand beside the average: Dong 2022 has HotpotQA, too;
  # others are only tested on.
  for dataset, split in (('HotpotQA', 'validation'), ('DuoRC', 'test')):
    result_folders.write(
        tmp_path / 'part', {'MRR': 0.4}, 'multireqa', dataset, split
    )
  table = of('qa-retrieval', [result_files.read_model(tmp_path / 'part')])
  assert [group for group, metric in table.columns if metric == 'MRR'] == (
      ['NQ', 'SQuAD', 'HotpotQA', 'DuoRC', 'Average of 2']
  )
  assert texts(table)[0][-2:] == ['60.0', '70.0']


# SDE and SDE with SamToNe in SamToNe's table 2, in its order.
BEIR = {
    'arguana': (40.2, 39.8), 'bioasq': (40.2, 39.7),
    'climate-fever': (31.1, 32), 'cqadupstack': (40.7, 41.4),
    'dbpedia-entity': (45.7, 45.9), 'fever': (68.3, 70), 'fiqa': (41.8, 42.6),
    'hotpotqa': (66.9, 66.4), 'nfcorpus': (37.2, 36.5), 'nq': (42.9, 47),
    'quora': (88.8, 88.7), 'robust04': (53.5, 55.5), 'scidocs': (22.3, 22.4),
    'scifact': (68, 67.7), 'signal1m': (31.8, 31.1), 'trec-covid': (53.1, 61.2),
    'trec-news': (49.2, 48.4), 'webis-touche2020': (22, 32.4),
}


def beir_values(column, parts=beir.CQADUPSTACK_PARTS):
  values = {name: row[column] for name, row in BEIR.items()}
  mean = values.pop('cqadupstack')
  # Parts around their mean: -5.5 to 5.5.
  spread = {part: mean + i - 5.5 for i, part in enumerate(parts)}
  return values | spread


def test_table_2_of_samtone(tmp_path):
  assert {*BEIR} == {*beir.NAMES} - {'msmarco'}
  models = [
      beir_model(tmp_path, name, beir_values(i))
      for i, name in enumerate(['SDE', 'SamToNe'])
  ]
  table = of('beir', models)
  rows = {row.heads[0]: [cell.text for cell in row.cells] for row in table.rows}
  assert ' '.join(rows) == (
      'ArguAna BioASQ Climate-Fever CQADupStack DBpedia-entity Fever FiQA-2018'
      ' HotpotQA NFCorpus NQ Quora Robust04 SCIDOCS SciFact Signal-1M'
      ' Trec-Covid Trec-News Touché-2020 Average'
  )
  assert rows['CQADupStack'] == ['40.7', '41.4']
  assert rows['Touché-2020'] == ['22.0', '32.4']
  # As in the paper.
  assert rows['Average'] == ['46.9', '48.3']
  assert bold(table)[0] == [True, False]
  assert bold(table)[-1] == [False, True]
  assert table.notes[1].startswith('The average is over ArguAna, BioASQ, Cli')
  assert table.notes[2:] == ('CQADupStack is the mean of its 12 parts.',)
  assert not [t for t in tables.paper_tables(models) if t.name == 'other']


def test_rankings_of_documents_are_in_none_of_the_papers_tables(tmp_path):
  beir_model(tmp_path, 'm', {'nq': 40, 'fiqa': 50})
  ways = {
      ('beir', 'nq', 'test'): 'documents',
      ('multireqa', 'NaturalQuestions', 'validation'): 'equal-texts',
      ('open_nq', None, 'test'): 'documents',
  }
  labels = []
  for (task, dataset, split), way in ways.items():
    labels.append('-'.join(filter(None, (task, dataset, way))))
    result_folders.write(
        tmp_path / 'm', {'nDCG@10': 0.9, 'MRR': 0.8, 'Top-5': 0.7}, task,
        dataset, split, label=labels[-1], document_separator='#',
    )
  model = result_files.read_model(tmp_path / 'm')
  beir, other = tables.paper_tables([model])
  heads = [row.heads[0] for row in beir.rows]
  assert heads == ['FiQA-2018', 'NQ', 'Average of 2']
  assert texts(beir)[-1] == ['45.0']
  heads = [row.heads[0] for row in other.rows]
  assert heads == labels
  sizes = '; '.join(f'{key}, 4 queries over 9 passages' for key in sorted(
      f'{label} {split}' for label, (*_, split) in zip(labels, ways)
  ))
  assert other.notes == (f'Measured: {sizes}.',)


def test_a_part_of_cqadupstack_that_is_missing_is_told(tmp_path):
  parts = beir.CQADUPSTACK_PARTS
  whole = beir_model(tmp_path, 'whole', {p: 10.0 for p in parts} | {'nq': 30})
  part = beir_model(
      tmp_path, 'part', {p: 20.0 for p in parts[1:]} | {'nq': 40, 'fiqa': 50}
  )
  table = of('beir', [whole, part])
  heads = [row.heads[0] for row in table.rows]
  assert heads == ['CQADupStack', 'FiQA-2018', 'NQ']
  # Of two sets in common there is only one, so there is no average.
  assert texts(table) == [['10.0', '-'], ['-', '50.0'], ['30.0', '40.0']]
  other = of('other', [whole, part])
  shown = [row.heads[0] for row in other.rows if row.heads[-1] == 'part']
  assert shown == [f'beir-{p}' for p in sorted(parts[1:])]


def test_table_3_of_dong(tmp_path):
  accuracies = {'SDE': (62.2, 77.0, 84.6), 'ADE-SPL': (62.7, 76.4, 84.4)}
  for name, values in accuracies.items():
    metrics = {f'Top-{k}': v / 100 for k, v in zip((5, 20, 100), values)}
    result_folders.write(
        tmp_path / name, metrics, 'open_nq', split='validation'
    )
  models = [result_files.read_model(tmp_path / name) for name in accuracies]
  (table,) = tables.paper_tables(models)
  assert table_lib.markdown(table) == (
      '## Retrieval accuracy (%) on open-domain Natural Questions'
      ' (validation)\n'
      '\n'
      '| Model   | Open NQ Top-5 | Open NQ Top-20 | Open NQ Top-100 |\n'
      '| ------- | ------------: | -------------: | --------------: |\n'
      '| SDE     |          62.2 |       **77.0** |        **84.6** |\n'
      '| ADE-SPL |      **62.7** |           76.4 |            84.4 |\n'
      '\n'
      'The best are in bold.\n'
  )


def test_all_else_is_in_one_table(tmp_path):
  """Also splits that the papers do not measure, and BEIR's MS MARCO."""
  metrics = {'P@1': 0.5, 'MRR': 0.625, 'MRR@10': 0.6, 'nDCG@10': 0.7}
  more = metrics | {'Recall@1': 0.5, 'Recall@100': 1.0}
  for name, own in (('a', metrics), ('b', more)):
    result_folders.write(tmp_path / name, own, split='test')
    result_folders.write(tmp_path / name, own, 'msmarco', split='test')
  result_folders.write(tmp_path / 'a', metrics, 'beir', 'msmarco', 'validation')
  models = [result_files.read_model(tmp_path / name) for name in 'ab']
  (table,) = tables.paper_tables(models)
  columns = ['P@1', 'MRR', 'MRR@10', 'nDCG@10', 'Recall@100']
  assert [name for _, name in table.columns] == columns
  assert [(row.heads, row.ruled) for row in table.rows] == [
      (('beir-msmarco', 'validation', 'a'), False),
      (('msmarco', 'test', 'a'), True),
      (('msmarco', 'test', 'b'), False),
      (('pairs', 'test', 'a'), True),
      (('pairs', 'test', 'b'), False),
  ]
  assert texts(table)[3] == ['50.0', '62.5', '60.0', '70.0', '-']
  assert texts(table)[4] == ['50.0', '62.5', '60.0', '70.0', '100.0']


def columns_of(line):
  """How many columns a line of a LaTeX table fills."""
  spans = sum(int(n) - 1 for n in re.findall(r'\\multicolumn\{(\d+)\}', line))
  return len(re.findall(r'(?<!\\)&', line)) + 1 + spans


def test_latex_in_the_papers_layout(tmp_path):
  models = [qa_model(tmp_path, n, v) for n, v in ADE_SPL.items()]
  tables.write_tables(tmp_path, models)
  assert (tmp_path / 'tables.md').read_text().startswith('## Precision at 1')
  tex = table_lib.latex(of('qa-retrieval', models))
  assert tex in (tmp_path / 'tables.tex').read_text()
  lines = tex.splitlines()
  assert lines[:5] == [
      r'\begin{table*}[t]', r'\centering', r'\small',
      r'\begin{tabular}{@{}lrrrrrrrrrrrr@{}}', r'\toprule',
  ]
  assert lines[5].startswith(r' & \multicolumn{2}{c}{MSMARCO} & ')
  assert lines[6].startswith(r'\cmidrule(lr){2-3} \cmidrule(lr){4-5} ')
  assert lines[6].endswith(r'\cmidrule(lr){12-13}')
  assert lines[10] == (
      r'SamToNe & \textbf{17.6} & \textbf{30.4} & \textbf{55.7} & \textbf{67.2}'
      r' & 73.8 & 81.7 & 44.0 & 55.9 & \textbf{48.5} & \textbf{63.4} &'
      r' \textbf{47.9} & \textbf{59.7} \\'
  )
  rows = [line for line in lines if line.endswith(r'\\')]
  assert [columns_of(row) for row in rows] == [13] * 5


@pytest.mark.parametrize(
    'name, in_latex, in_markdown',
    [
        ('my_model 50%', r'my\_model 50\%', 'my_model 50%'),
        ('__init__ _x', r'\_\_init\_\_ \_x', r'\_\_init\_\_ \_x'),
        ('a&b #1 {x} $y$', r'a\&b \#1 \{x\} \$y\$', 'a&b #1 {x} $y$'),
        ('~/runs^2', r'\textasciitilde{}/runs\textasciicircum{}2', '~/runs^2'),
        ('a|b*c`d', r'a\textbar{}b{*}c`d', r'a\|b\*c\`d'),
        ('a--b---c', r'a-{}-b-{}-{}-c', 'a--b---c'),
        # After \\ either would be read as its argument.
        ('[best](y)', r'{[}best](y)', r'\[best](y)'),
    ],
)
def test_names_are_escaped(name, in_latex, in_markdown):
  assert table_lib.escape_latex(name) == in_latex
  table = Table('t', name, ('Model',), (('', name),), (Row((name,), ()),))
  assert table_lib.latex(table).count(in_latex) == 3
  assert table_lib.escape_markdown(name) == in_markdown


def test_signs_and_missing_values_in_latex():
  cells = (Cell('-0.5', bold=True), Cell('-'), Cell('+12.5%'), Cell('<0.001'))
  table = Table('t', 'T', ('M',), (('', 'x'),) * 4, (Row(('m',), cells, True),))
  assert table_lib.latex(table).splitlines()[-7:-5] == [
      r'\midrule', r'm & \textbf{$-$0.5} & -- & +12.5\% & \textless{}0.001 \\'
  ]


def note_of(name, *models):
  """That of the one table of this name on figures that differ, or none."""
  notes = of(name, models).notes
  return [note for note in notes if note.startswith('Figures')]


def test_figures_of_other_steps_or_runs_are_noted(tmp_path):
  for model, dataset, facts in (
      ('m', 'nq', {'checkpoint_step': 1_000, 'run_id': 'x'}),
      ('m', 'fiqa', {'checkpoint_step': 20_000, 'run_id': 'x'}),
      # Of BEIR, but without what its table shows; and below of another table.
      ('m', 'arguana', {'checkpoint_step': 7, 'metric': 'MRR'}),
      ('runs', 'nq', {'run_id': 'x'}),
      ('runs', 'fiqa', {'run_id': 'y'}),
      # Of results without one nobody knows.
      ('runs', 'scifact', {'checkpoint_step': None}),
      ('same', 'nq', {'run_id': 'x'}),
      ('same', 'fiqa', {'run_id': 'x'}),
  ):
    metrics = {facts.pop('metric', 'nDCG@10'): 0.5}
    result_folders.write(tmp_path / model, metrics, 'beir', dataset, **facts)
  result_folders.write(tmp_path / 'm', {'MRR': 0.5}, checkpoint_step=5)
  m, runs, same = (
      result_files.read_model(tmp_path / name) for name in ('m', 'runs', 'same')
  )
  assert note_of('beir', m) == ['Figures are of steps 1,000, 20,000.']
  assert note_of('other', m) == note_of('beir', same) == []
  assert note_of('beir', runs, same) == [
      'Figures of runs are of 2 training runs.'
  ]
