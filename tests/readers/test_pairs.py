"""pairs' reader: JSONL and TSV in their forms, and what rows become."""

import csv
import gzip
import json
import logging
import pathlib

import pytest

from dualenc_jax.commands import model_dir
from dualenc_jax.errors import UserError
from dualenc_jax.readers.pairs import Pairs

FOLDER = pathlib.Path(__file__).parents[1] / 'data' / 'pairs'
GOOD = {'query': 'q', 'passage': 'p'}
FLAG_EMBEDDING = {'passage': 'pos', 'negatives': 'neg'}
TRIPLES = {'format': 'tsv', 'columns': ('query', 'passage', 'negatives')}


def write(path, *lines):
  data = b''.join(
      (line if isinstance(line, bytes) else line.encode('utf-8')) + b'\n'
      for line in lines
  )
  path.write_bytes(gzip.compress(data) if path.suffix == '.gz' else data)
  return str(path)


def write_rows(path, *rows):
  return write(path, *map(json.dumps, rows))


def read(path, **options):
  return list(Pairs(train=str(path), **options).examples('train'))


def column(examples, name):
  return [example[name] for example in examples]


@pytest.mark.parametrize('name', ['a.jsonl', 'a.jsonl.gz'])
def test_jsonl(tmp_path, name):
  row = GOOD | {'negatives': ['n1', 'n2'], 'query_id': 7, 'name': 'shown'}
  bare = GOOD | {'query_id': None, 'passage_id': 'p-1'}
  path = write(tmp_path / name, json.dumps(row), '', json.dumps(bare))
  plain = {'query': 'q', 'passage': 'p', 'relevance': 1, 'answers': []}
  assert read(path) == [
      plain
      | {
          'negatives': ['n1', 'n2'],
          'query_id': '7',
          'passage_id': '',
          'name': 'shown',
          'location': f'{path}:1',
      },
      plain
      | {
          'negatives': [],
          'query_id': '',
          'passage_id': 'p-1',
          'name': '',
          'location': f'{path}:3',
      },
  ]


@pytest.mark.parametrize('name', ['ragged.tsv', 'ragged.tsv.gz'])
def test_tsv_with_a_line_of_names(tmp_path, name):
  content = (FOLDER / 'ragged.tsv').read_bytes()
  path = tmp_path / name
  path.write_bytes(gzip.compress(content) if path.suffix == '.gz' else content)
  first, second = read(path)
  assert first['query'] == 'q "1"' and first['passage'] == 'p1'
  assert first['query_id'] == '3' and first['name'] == 'first'
  assert first['negatives'] == ['n1', 'n2'] and second['negatives'] == ['n3']
  assert second['name'] == '' and second['location'] == f'{path}:4'


def test_names_of_a_tsv_may_have_blanks_around_them(tmp_path):
  path = write(tmp_path / 'a.tsv', ' query\tpassage \t', ' q \tp\tx')
  (example,) = read(path)
  assert (example['query'], example['passage']) == (' q ', 'p')


def test_tsv_without_names_and_with_any_file_name():
  path = FOLDER / 'triples'
  with path.open(encoding='utf-8', newline='\n') as stream:
    rows = list(csv.reader(stream, delimiter='\t', quoting=csv.QUOTE_NONE))
  examples = read(path, **TRIPLES)
  assert len(examples) == 3
  assert rows == [[e['query'], e['passage'], *e['negatives']] for e in examples]
  assert column(examples, 'location') == [f'{path}:{n}' for n in (1, 2, 3)]
  # No line breaks: NEL inside of a text, and mojibake left as it is.
  assert '\x85 of 1815' in examples[2]['passage']
  assert 'â\x80\x9cactress' in examples[2]['negatives'][0]


def test_other_column_names(tmp_path):
  row = {'question': 'q', 'context': 'p', 'hard': ['n'], 'qid': 5, 'pid': '6'}
  path = write_rows(tmp_path / 'a.jsonl', row)
  (example,) = read(
      path,
      query='question',
      passage='context',
      negatives='hard',
      query_id='qid',
      passage_id='pid',
      name='qid',
  )
  assert (example['query'], example['passage']) == ('q', 'p')
  assert example['negatives'] == ['n'] and example['name'] == '5'
  assert (example['query_id'], example['passage_id']) == ('5', '6')


def test_columns_that_are_none_are_left_out(tmp_path):
  row = GOOD | {'negatives': 3, 'query_id': [], 'passage_id': [], 'name': []}
  path = write_rows(tmp_path / 'a.jsonl', row)
  options = dict.fromkeys(['negatives', 'query_id', 'passage_id', 'name'])
  (example,) = read(path, **options)
  assert example['negatives'] == [] and example['query_id'] == ''


def test_a_list_of_passages_is_an_example_each():
  path = FOLDER / 'flagembedding.jsonl'
  rows = [json.loads(line) for line in path.read_text('utf-8').splitlines()]
  examples = read(path, **FLAG_EMBEDDING)
  expected = [
      (row['query'], passage, row['neg'])
      for row in rows
      for passage in row['pos']
  ]
  assert len(expected) == 4
  assert expected == [
      (e['query'], e['passage'], e['negatives']) for e in examples
  ]
  assert column(examples, 'location') == [f'{path}:{n}' for n in (1, 1, 2, 3)]


def test_ids_names_and_titles_of_a_list_of_passages(tmp_path):
  row = {
      'query': 'q',
      'query_id': 1,
      'passage': ['p1', 'p2', 'p3'],
      'passage_id': [7, '8', None],
      'name': ['a', 'b', 'c'],
      'title': ['T1', ' ', None],
  }
  path = write_rows(tmp_path / 'a.jsonl', row)
  examples = read(path, title='title')
  assert column(examples, 'passage') == ['T1 p1', 'p2', 'p3']
  assert column(examples, 'passage_id') == ['7', '8', '']
  assert column(examples, 'name') == ['a', 'b', 'c']
  assert column(examples, 'query_id') == ['1'] * 3


def test_titles_of_passages_and_of_hard_negatives():
  examples = read(
      FOLDER / 'titles.tsv',
      columns=('query', 'title', 'passage', 'their titles', 'negatives', '-'),
      title='title',
      negative_titles='their titles',
  )
  assert [[e['passage'], *e['negatives']] for e in examples] == [
      [
          'Data types A tuple is an immutable sequence.',
          'Control flow A loop repeats its body.',
      ],
      [
          'Data types A tuple is an immutable sequence.',
          'A list is a mutable sequence.',
      ],
      [
          'A loop repeats its body.',
          'Data types A list is a mutable sequence.',
      ],
  ]


def test_hard_negatives_in_numbered_columns_of_any_format(tmp_path):
  row = GOOD | {'neg_scores': 1.0, 'neg': ['a', 'b'], 'neg_2': 'c', 'neg_1': ''}
  path = write_rows(tmp_path / 'a.jsonl', row, GOOD | {'neg_10': None})
  assert column(read(path, negatives='neg'), 'negatives') == [
      ['a', 'b', 'c'],
      [],
  ]
  titles = {'title_1': 'T', 'title_2': 'U', 'title': ['A', 'B']}
  path = write_rows(tmp_path / 'a.jsonl', row | titles)
  (example,) = read(path, negatives='neg', negative_titles='title')
  assert example['negatives'] == ['A a', 'B b', 'U c']


FALSE_NEGATIVES = [
    ({'passage': 'p', 'negatives': ['n', ' p\n']}, {}),
    ({'passage': ['x', 'p'], 'negatives': ['p', 'n', 'x', 'x']}, {}),
    ({'passage': 'p', 'negatives': ['n', 'p'], 't': 'T'}, {'title': 't'}),
    ({'passage': 'p', 'negatives': ['n', 'T p'], 't': 'T'}, {'title': 't'}),
]


@pytest.mark.parametrize('row, options', FALSE_NEGATIVES)
def test_a_positive_among_the_hard_negatives(tmp_path, caplog, row, options):
  path = write_rows(tmp_path / 'a.jsonl', GOOD, row | {'query': 'r'})
  with pytest.raises(UserError) as error:
    read(path, **options)
  assert str(error.value).startswith(f"{path}:2: 'passage' is among its hard")
  with caplog.at_level(logging.WARNING):
    examples = read(path, strict=False, **options)
  assert [e['negatives'] for e in examples if e['query'] == 'r'] == [
      ['n']
  ] * (len(examples) - 1)
  count = len(row['negatives']) - 1
  assert f'dropped {count} hard negatives' in caplog.text


def test_the_same_text_under_another_title_is_another_passage(tmp_path):
  row = GOOD | {'title': 'T', 'negatives': ['p', 'p'], 'titles': ['U', 'V']}
  path = write_rows(tmp_path / 'a.jsonl', row)
  options = {'title': 'title', 'negative_titles': 'titles'}
  assert read(path, **options)[0]['negatives'] == ['U p', 'V p']
  path = write_rows(tmp_path / 'a.jsonl', row | {'titles': ['U', 'T']})
  with pytest.raises(UserError, match='is among its hard negatives'):
    read(path, **options)


def test_repeated_rows_are_left_as_they_are(tmp_path):
  row = GOOD | {'negatives': ['n', 'n']}
  path = write_rows(tmp_path / 'a.jsonl', row, row)
  assert column(read(path), 'negatives') == [['n', 'n']] * 2


def test_splits_are_separate_files(tmp_path):
  one = write_rows(tmp_path / 'a.jsonl', GOOD)
  two = write_rows(tmp_path / 'b.jsonl', GOOD | {'query': 'r'})
  reader = Pairs(train=one, test=two)
  assert reader.splits() == ('train', 'test')
  assert column(reader.examples('test'), 'query') == ['r']
  assert reader.corpus_split('test') is None


def test_fingerprint_is_of_the_content(tmp_path):
  one = write_rows(tmp_path / 'a.jsonl', GOOD)
  two = write_rows(tmp_path / 'b.jsonl', GOOD)
  assert Pairs(train=one).fingerprint('train') == Pairs(
      train=two
  ).fingerprint('train')
  write_rows(tmp_path / 'b.jsonl', GOOD | {'query': 'r'})
  assert Pairs(train=one).fingerprint('train') != Pairs(
      train=two
  ).fingerprint('train')


def test_the_gin_file_names_files_columns_and_policies(tmp_path):
  task = model_dir.build_experiment(
      ['runs/finetune.gin', 'tasks/pairs.gin'],
      [
          'MODEL_DIR = "x"',
          'VOCABULARY = "python_code_8k"',
          'VOCAB_SIZE = 8064',
          f'TRAIN_FILE = {str(FOLDER / "titles.tsv")!r}',
          f'VALIDATION_FILE = {str(FOLDER / "triples")!r}',
          'FORMAT = "tsv"',
          'COLUMNS = ("q", "t", "p", "u", "n", "label")',
          'QUERY_COLUMN = "q"',
          'PASSAGE_COLUMN = "p"',
          'NEGATIVES_COLUMN = "n"',
          'TITLE_COLUMN = "t"',
          'NEGATIVE_TITLES_COLUMN = "u"',
          'NAME_COLUMN = "t"',
          'QUERY_ID_COLUMN = "label"',
          'PASSAGE_ID_COLUMN = "p"',
          'STRICT = False',
      ],
      [],
  ).task
  assert isinstance(task, Pairs)
  assert task.splits() == ('train', 'validation')
  examples = list(task.examples('train'))
  assert examples[0] == {
      'query': 'what is a tuple',
      'passage': 'Data types A tuple is an immutable sequence.',
      'negatives': ['Control flow A loop repeats its body.'],
      'query_id': '0',
      'passage_id': 'A tuple is an immutable sequence.',
      'name': 'Data types',
      'location': f'{FOLDER / "titles.tsv"}:1',
      'relevance': 1,
      'answers': [],
  }
  # All rows have three columns instead of six.
  with pytest.raises(UserError, match='no good row, 3 bad: 3 3 columns'):
    list(task.examples('validation'))


@pytest.mark.parametrize('name', ['a.jsonl', 'a.tsv'])
def test_columns_that_are_not_read_are_told(tmp_path, name, caplog):
  text = {
      'a.jsonl': '{"query": "q", "passage": "p", "neg": ["n"], "name": "x"}\n',
      'a.tsv': 'query\tpassage\tneg\tname\nq\tp\tn\tx\n',
  }[name]
  path = tmp_path / name
  path.write_text(text)
  assert len(list(Pairs(train=str(path)).examples('train'))) == 1
  assert f'{path}: columns that are not read: neg.' in caplog.text
  caplog.clear()
  list(Pairs(train=str(path), negatives='neg').examples('train'))
  assert 'not read' not in caplog.text


def test_weights_of_training_alone(tmp_path):
  rows = [GOOD | {'w': 2}, GOOD | {'passage': ['a', 'b'], 'w': 0.5}]
  path = write_rows(tmp_path / 'a.jsonl', *rows)
  bare = write_rows(tmp_path / 'b.jsonl', GOOD)
  pairs = Pairs(train=path, validation=bare, weight='w')
  assert [c.name for c in pairs.extra_columns] == ['weights']
  assert column(pairs.examples('train'), 'weights') == [2.0, 0.5, 0.5]
  assert 'weights' not in next(pairs.examples('validation'))
  assert not Pairs(train=path).extra_columns
  tsv = write(tmp_path / 'c.tsv', 'query\tpassage\tw', 'q\tp\t1e-1')
  assert column(read(tsv, weight='w'), 'weights') == [0.1]


@pytest.mark.parametrize(
    'value', [-1, 'heavy', None, True, [1], float('nan'), 1e400]
)
def test_a_bad_weight_is_a_bad_row(tmp_path, value):
  path = write_rows(tmp_path / 'a.jsonl', GOOD | {'w': 1}, GOOD | {'w': value})
  with pytest.raises(UserError, match=r"a.jsonl:2: 'w' holds .*0 or more"):
    read(path, weight='w')


def test_a_column_of_weights_that_is_not_there(tmp_path):
  path = write(tmp_path / 'a.tsv', 'query\tpassage', 'q\tp')
  with pytest.raises(UserError, match=r"'w'.*--gin.WEIGHT_COLUMN"):
    read(path, weight='w')
