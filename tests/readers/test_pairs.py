"""pairs' reader: JSONL and TSV in their forms, and every kind of bad row."""

import csv
import json

import pytest
from reading import column, DATA, objects, refused, write

from dualenc_jax.cli import saved_run
from dualenc_jax.data.dataset import example
from dualenc_jax.data.readers.pairs import Pairs
from dualenc_jax.utils.errors import SourceUnavailable

FOLDER = DATA / 'pairs'
GOOD = {'query': 'q', 'passage': 'p'}
FLAG_EMBEDDING = {'passage': 'pos', 'negatives': 'neg'}
TRIPLES = {'format': 'tsv', 'columns': ('query', 'passage', 'negatives')}


def read(path, **options):
  return list(Pairs(train=str(path), **options).examples('train'))


def texts(examples):
  return [[e['query'], e['passage'], *e['negatives']] for e in examples]


@pytest.mark.parametrize('name', ['a.jsonl', 'a.jsonl.gz'])
def test_jsonl(tmp_path, name):
  row = GOOD | {'negatives': ['n1', 'n2'], 'query_id': 7, 'name': 'shown'}
  bare = GOOD | {'query_id': None, 'passage_id': 'p-1'}
  path = write(tmp_path / name, row, '', bare)
  expected = row | {'query_id': '7', 'location': f'{path}:1'}
  assert read(path) == [
      example(**expected),
      example('q', 'p', passage_id='p-1', location=f'{path}:3'),
  ]


def test_tsv_with_a_line_of_names(tmp_path):
  path = FOLDER / 'ragged.tsv'
  first, second = read(path)
  assert texts([first, second])[0] == ['q "1"', 'p1', 'n1', 'n2']
  assert first['query_id'] == '3' and first['name'] == 'first'
  assert second['negatives'] == ['n3'] and second['name'] == ''
  assert second['location'] == f'{path}:4'
  # Names may have blanks around them.
  path = write(tmp_path / 'a.tsv', ' query\tpassage \t', ' q \tp\tx')
  assert texts(read(path)) == [[' q ', 'p']]


def test_tsv_without_names_and_with_any_file_name():
  path = FOLDER / 'triples'
  with path.open(encoding='utf-8', newline='\n') as stream:
    rows = list(csv.reader(stream, delimiter='\t', quoting=csv.QUOTE_NONE))
  examples = read(path, **TRIPLES)
  assert texts(examples) == rows and len(examples) == 3
  assert column(examples, 'location') == [f'{path}:{n}' for n in (1, 2, 3)]
  # No line breaks: NEL inside of a text, and mojibake left as it is.
  assert '\x85 of 1815' in examples[2]['passage']
  assert 'â\x80\x9cactress' in examples[2]['negatives'][0]


def test_a_list_of_passages_is_an_example_each(tmp_path):
  path = FOLDER / 'flagembedding.jsonl'
  examples = read(path, **FLAG_EMBEDDING)
  assert texts(examples) == [
      [row['query'], passage, *row['neg']]
      for row in objects(path) for passage in row['pos']
  ]
  assert column(examples, 'location') == [f'{path}:{n}' for n in (1, 1, 2, 3)]
  row = {
      'query': 'q', 'query_id': 1, 'passage': ['p1', 'p2', 'p3'],
      'passage_id': [7, '8', None], 'name': ['a', 'b', 'c'],
      'title': ['T1', ' ', None],
  }
  examples = read(write(tmp_path / 'a.jsonl', row), title='title')
  assert column(examples, 'passage') == ['T1 p1', 'p2', 'p3']
  assert column(examples, 'passage_id') == ['7', '8', '']
  assert column(examples, 'name') == ['a', 'b', 'c']
  assert column(examples, 'query_id') == ['1'] * 3


def test_hard_negatives_in_numbered_columns_of_any_format(tmp_path):
  row = GOOD | {'neg_scores': 1.0, 'neg': ['a', 'b'], 'neg_2': 'c', 'neg_1': ''}
  path = write(tmp_path / 'a.jsonl', row, GOOD | {'neg_10': None})
  found = column(read(path, negatives='neg'), 'negatives')
  assert found == [['a', 'b', 'c'], []]
  titles = {'title_1': 'T', 'title_2': 'U', 'title': ['A', 'B']}
  path = write(tmp_path / 'a.jsonl', row | titles)
  (found,) = read(path, negatives='neg', negative_titles='title')
  assert found['negatives'] == ['A a', 'B b', 'U c']


@pytest.mark.parametrize('row, options', [
    ({'passage': 'p', 'negatives': ['n', ' p\n']}, {}),
    ({'passage': ['x', 'p'], 'negatives': ['p', 'n', 'x', 'x']}, {}),
    ({'passage': 'p', 'negatives': ['n', 'p'], 't': 'T'}, {'title': 't'}),
    # The same text under another title is another passage.
    ({'passage': 'n', 'negatives': ['n', 'n'], 't': 'T', 'u': ['', 'T']},
     {'title': 't', 'negative_titles': 'u'}),
])
def test_a_positive_among_the_hard_negatives(tmp_path, caplog, row, options):
  path = write(tmp_path / 'a.jsonl', GOOD, row | {'query': 'r'})
  refused(lambda: read(path, **options), f"{path}:2: 'passage' is among its")
  examples = read(path, strict=False, **options)[1:]
  assert column(examples, 'negatives') == [['n']] * len(examples)
  assert f'skipped {len(row["negatives"]) - 1} hard negatives' in caplog.text


def test_splits_are_files_of_which_the_content_counts(tmp_path):
  row = GOOD | {'negatives': ['n', 'n']}
  one, two = (write(tmp_path / f'{n}.jsonl', row, row) for n in 'ab')
  # Repeated rows are left as they are.
  assert column(read(one), 'negatives') == [['n', 'n']] * 2
  same = Pairs(train=str(one), test=str(two))
  assert same.splits() == ('train', 'test')
  assert same.corpus_split('test') is None
  assert same.fingerprint('train') == same.fingerprint('test')
  write(two, GOOD | {'query': 'r'})
  assert same.fingerprint('train') != same.fingerprint('test')
  assert column(same.examples('test'), 'query') == ['r']


def test_the_gin_file_names_files_columns_and_policies():
  names = {'QUERY': 'q', 'PASSAGE': 'p', 'NEGATIVES': 'n', 'TITLE': 't',
           'NEGATIVE_TITLES': 'u', 'NAME': 't', 'QUERY_ID': 'label',
           'PASSAGE_ID': 'p'}
  task = saved_run.build_experiment(
      ['runs/finetune.gin', 'tasks/pairs.gin'],
      [
          'MODEL_DIR = "x"', 'VOCABULARY = "python_code_8k"',
          'VOCAB_SIZE = 8064', 'FORMAT = "tsv"', 'STRICT = False',
          f'TRAIN_FILE = {str(FOLDER / "titles.tsv")!r}',
          f'VALIDATION_FILE = {str(FOLDER / "triples")!r}',
          'COLUMNS = ("q", "t", "p", "u", "n", "label")',
          *(f'{k}_COLUMN = {v!r}' for k, v in names.items()),
      ],
      [],
  ).task
  assert isinstance(task, Pairs) and task.splits() == ('train', 'validation')
  assert next(task.examples('train')) == example(
      'what is a tuple',
      'Data types A tuple is an immutable sequence.',
      negatives=['Control flow A loop repeats its body.'],
      query_id='0',
      passage_id='A tuple is an immutable sequence.',
      name='Data types',
      location=f'{FOLDER / "titles.tsv"}:1',
  )
  # All rows have three columns instead of six.
  message = 'no good row, 3 bad: 3 3 columns'
  refused(lambda: task.examples('validation'), message)


def test_weights_of_training_alone(tmp_path):
  rows = [GOOD | {'w': 2}, GOOD | {'passage': ['a', 'b'], 'w': 0.5}]
  path = str(write(tmp_path / 'a.jsonl', *rows))
  bare = str(write(tmp_path / 'b.jsonl', GOOD))
  pairs = Pairs(train=path, validation=bare, weight='w')
  assert [c.name for c in pairs.extra_columns] == ['weights']
  assert column(pairs.examples('train'), 'weights') == [2.0, 0.5, 0.5]
  assert 'weights' not in next(pairs.examples('validation'))
  assert not Pairs(train=path).extra_columns
  for value in (-1, 'heavy', float('nan')):
    write(tmp_path / 'a.jsonl', GOOD | {'w': 1}, GOOD | {'w': value})
    refused(lambda: read(path, weight='w'), "a.jsonl:2: 'w' holds", '0 or more')


@pytest.mark.parametrize('line, reason', [
    ('{"query": "q"', 'not JSON'),
    ({'label': 1}, "no column 'query' or 'passage'. "),
    (GOOD | {'passage': ' \n\t'}, "'passage' is empty"),
    (GOOD | {'query': 3}, "'query' holds a whole number, not a string"),
    (b'{"query": "\xff", "passage": "p"}', 'not UTF-8'),
    (GOOD | {'query_id': [1]}, "'query_id' is neither"),
    (GOOD | {'passage': ['p', 'r'], 'passage_id': 1},
     "'passage_id' holds 1 values for 2 texts"),
])
def test_bad_jsonl_rows(tmp_path, caplog, line, reason):
  path = write(tmp_path / 'a.jsonl', GOOD, line, GOOD)
  message = refused(lambda: read(path), reason)
  assert message.startswith(f'{path}:2: ') and '.STRICT=False' in message
  assert len(read(path, strict=False)) == 2
  assert 'skipped 1 bad rows of 3' in caplog.text and reason in caplog.text


def test_a_column_that_was_asked_for_is_missing(tmp_path):
  path = write(tmp_path / 'a.tsv', 'query\tpassage\tnegs', 'q\tp\tn')

  def missing(*parts, **options):
    refused(lambda: read(path, **options), *parts)

  missing("no column 'q' or 'neg'. Did you mean 'negs'? Give ",
          '.QUERY_COLUMN=..., --gin.NEG', query='q', negatives='neg')
  path = write(tmp_path / 'a.jsonl', GOOD | {'negs': ['n']}, GOOD)
  missing("a.jsonl: no column 'neg'. ", 'NEGATIVES_C', negatives='neg')
  # One row that has it will do.
  assert len(read(path, negatives='negs')) == 2


def test_damaged_gzip(tmp_path):
  rows = [GOOD | {'name': str(i * i)} for i in range(5000)]
  path = write(tmp_path / 'a.jsonl.gz', *rows)
  content = path.read_bytes()
  flipped = bytearray(content)
  flipped[len(content) // 2] ^= 0xFF
  for damaged in (content[:-20], bytes(flipped)):
    path.write_bytes(damaged)
    refused(lambda: read(path), 'a.jsonl.gz')
  path.write_bytes(json.dumps(GOOD).encode())
  where = 'damaged gzip file, after line 0'
  refused(lambda: read(path), where, 'Copy or download it again')


def test_missing_files_and_wrong_options(tmp_path):
  path = write(tmp_path / 'a.jsonl', GOOD)
  pairs = Pairs(train=str(path))
  refused(lambda: pairs.examples('validation'), 'train', '.VALIDATION_FILE=')
  refused(lambda: pairs.check_split('dev'), "no split 'dev'", ': train')
  none = tmp_path / 'b.jsonl'
  refused(lambda: read(none), f'no file {none}', '--gin.TRAIN_FILE=',
          error=SourceUnavailable)
  refused(lambda: read(tmp_path), 'is a folder')
  refused(lambda: Pairs(format='jsonlines'), "expected one of 'jsonl', ")
