"""`dualenc data check`: the command line, the report and the exit status."""

import json

import pytest

from dualenc_jax.cli import config, data_command, main as cli
from dualenc_jax.data.readers import Beir, Documents, Pairs
from dualenc_jax.utils.errors import UserError

GOOD = [
    {'query': 'how do whales sleep', 'passage': 'Half of the brain rests.'},
    {'query': 'what do whales eat', 'passage': 'Krill, fish and squid.'},
]


def write(path, rows):
  lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
  path.write_text('\n'.join(lines), 'utf-8')
  return str(path)


def run(tmp_path, *argv):
  """Exit status of the command and its report as JSON, None if none."""
  status = cli.main(['data', 'check', *argv, f'--output_dir={tmp_path}/out'])
  path = tmp_path / 'out/report.json'
  return status, json.loads(path.read_text('utf-8')) if path.exists() else None


def test_a_bad_file_is_explained_and_usable_without_its_rows(tmp_path, capsys):
  train = write(tmp_path / 'train.jsonl', [
      *GOOD,
      GOOD[0],
      'no json',
      {'query': ' ', 'passage': 'x'},
      {'query': 'q', 'passage': 'p', 'negatives': ['p']},
      {'query': 'why', 'passage': 'It\xe2\x80\x99s', 'negatives': ['n']},
      {'query': 'long', 'passage': 'word ' * 400},
  ])
  validation = tmp_path / 'dev.tsv'
  validation.write_text('query\tpassage\n' + '\t'.join(GOOD[1].values()))
  status, report = run(
      tmp_path, train, str(validation), '--gin.STRICT=False'
  )
  assert status == 0
  first, second = report['splits']
  assert [first['name'], second['name']] == ['train', 'validation']
  assert (first['rows'], first['pairs'], first['distinct_pairs']) == (6, 6, 5)
  refused = {k: (v['count'], v['places']) for k, v in first['refused'].items()}
  assert refused['not JSON'] == (1, [f'{train}:4'])
  assert refused["'query' is empty"] == (1, [f'{train}:5'])
  assert len(refused) == 3 and all(n == 1 for n, _ in refused.values())
  assert [f'{train}:6'] in [places for _, places in refused.values()]
  assert first['passages']['found']['garbled']['count'] == 1
  assert first['passages']['lengths']['truncated'] == 1 / 6
  assert report['overlaps'][0]['pairs']['count'] == 1
  levels = [finding['level'] for finding in report['findings']]
  assert levels.count('wrong') == 3 and levels.count('suspicious') == 6
  told = capsys.readouterr().out
  written = (tmp_path / 'out/report.md').read_text('utf-8')
  assert told.startswith(written)
  assert 'report.md, report.json.' in told
  assert '16.7% of passages are cut to 256 tokens' in written
  # Training would end at the first bad row.
  status, report = run(tmp_path, train, str(validation))
  assert status == 2
  levels = [finding['level'] for finding in report['findings']]
  assert levels.count('cannot be used') == 3 and 'wrong' not in levels


def test_rows_without_a_column_are_counted_together(tmp_path, capsys):
  # What else a row has is no reason of its own.
  rows = [{'query': 'a', 'text': f'b {i}', f'extra_{i}': 1} for i in range(30)]
  train = write(tmp_path / 'train.jsonl', rows)
  status, report = run(tmp_path, train)
  assert status == 2
  (split,), (finding,) = report['splits'], report['findings']
  assert split['rows'] == 0 and finding['places'][0] == f'{train}:1'
  assert [found['count'] for found in split['refused'].values()] == [30]
  told = capsys.readouterr()
  assert 'Unusable' in told.err
  assert "no column 'passage'. Give the right names with" in told.out
  assert run(tmp_path, train, '--gin.PASSAGE_COLUMN=text')[0] == 0
  # Some rows have it: the others may be left out.
  write(tmp_path / 'train.jsonl', [*rows, *GOOD])
  status, report = run(tmp_path, train)
  assert status == 2
  flag = '--gin.STRICT=False'
  assert any(flag in f['advice'] for f in report['findings'])
  status, report = run(tmp_path, train, flag)
  assert status == 0
  assert report['findings'][0]['advice'] == 'Repair the files.'


def test_strict_and_split(tmp_path, capsys):
  rows = [*GOOD, {'query': 'a', 'passage': 'a'}]
  odd = write(tmp_path / 'odd.jsonl', rows)
  assert run(tmp_path, odd)[0] == 0
  assert run(tmp_path, odd, '--strict')[0] == 2
  assert '2 findings are wrong or suspicious' in capsys.readouterr().err
  _, report = run(tmp_path, odd, odd, odd, '--split=test')
  (split,) = report['splits']
  assert (split['name'], split['rows']) == ('test', 3)


def test_a_report_replaces_an_older_one(tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  good = write(tmp_path / 'good.jsonl', GOOD)
  for _ in range(2):
    assert cli.main(['data', 'check', good]) == 0
    told = capsys.readouterr().out
    assert 'Written to data_check: ' in told
    assert (tmp_path / 'data_check' / 'report.json').exists()


@pytest.mark.parametrize('argv, message', [
    ([], 'Give a task'),
    (['python_cod'], "Did you mean 'python_code'"),
    (['multireqa/Trivia'], "Did you mean 'TriviaQA'"),
    (['SQuAD'], "There is no task, file or folder with a corpus.jsonl 'SQuAD'"),
    (['a.jsonl', '--gin.QUERY_COLUM=x'], 'QUERY_COLUMN'),
    (['good.jsonl', '--gin.VOCABULARY=no'], "'no' is neither a file"),
    (['good.jsonl', '--output_dir=good.jsonl'], '--output_dir'),
])
def test_bad_input(argv, message, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  write(tmp_path / 'good.jsonl', GOOD)
  assert cli.main(['data', 'check', *argv]) == 2
  assert message in capsys.readouterr().err
  assert not (tmp_path / 'data_check').exists()


def build(*argv):
  parser = config.make_parser('data check', '')
  data_command.add_flags(parser)
  return data_command.build(config.parse_args(parser, list(argv)))


def test_inputs_are_those_of_the_training_command(tmp_path, monkeypatch):
  monkeypatch.setenv('DUALENC_CACHE', str(tmp_path))
  inputs = build('a.jsonl', 'b.tsv', '--gin.QUERY_LENGTH=9')
  assert inputs.task == Pairs(train='a.jsonl', validation='b.tsv')
  assert inputs.tokenizer.query_length == 9
  assert inputs.tokenizer.vocabulary.path == 'python_code_8k'
  assert inputs.folder == tmp_path / 'tokens'
  write(tmp_path / 'corpus.jsonl', [{'_id': 'a', 'text': 'b'}])
  assert build(str(tmp_path)).task == Documents(str(tmp_path))
  (tmp_path / 'qrels').mkdir()
  assert build(str(tmp_path)).task == Beir(folder=str(tmp_path))
  # The names of --tasks.
  folder = f'--gin.DATA_ROOT={tmp_path}'
  assert build('beir/scifact', folder).task.label == 'beir-scifact'
  assert build('multireqa/TriviaQA', folder).task.dataset == 'TriviaQA'
  flags = ['--gin_file=runs/finetune.gin', '--gin.TRAIN_FILE=t.jsonl']
  with pytest.raises(UserError, match='VOCABULARY must be given'):
    build(*flags)
  # What is of the model has no effect, and is no error.
  inputs = build(
      *flags, '--gin.VOCABULARY=v.model', '--gin.STEPS=5', '--gin.MODEL_DIR=m',
      '--gin.models.T5Encoder.num_layers=2',
  )
  assert inputs.task.options['train'] == 't.jsonl'
  assert inputs.tokenizer.vocabulary.path == 'v.model'
