"""beir's reader on a folder written by hand, and what is wrong in folders."""

import shutil

import pytest
from reading import append, column, DATA, pack, refused, write

from dualenc_jax.data.readers.beir import Beir
from dualenc_jax.utils.errors import SourceUnavailable

TOY = DATA / 'beir' / 'toy'
PASSAGES = {
    'd1': 'Tides The moon pulls the sea twice a day.',
    'd2': 'Basalt is a dark volcanic rock.',
    'd3': 'Bread, "sourdough" Wild yeast raises it.',
    'd4': 'Only a title',
    '5': 'A passage with a number for an id and no title: 北京.',
}
QUERIES = {
    'q1': 'what causes tides',
    'q2': 'which rocks are volcanic',
    'q3': 'how does sourdough rise',
}


@pytest.fixture
def toy(tmp_path):
  return shutil.copytree(TOY, tmp_path / 'toy')


def read(folder, split, **options):
  return list(Beir(folder=str(folder), **options).examples(split))


def error_of(folder, split, *parts, **options):
  return refused(lambda: read(folder, split, **options), *parts)


def pairs(examples):
  """As QUERIES and PASSAGES are numbered; hard negatives too."""
  queries = {text: name for name, text in QUERIES.items()}
  passages = {text: name for name, text in PASSAGES.items()}
  return [
      (queries[e['query']], passages[e['passage']], e['relevance'],
       *(passages[text] for text in e['negatives']))
      for e in examples
  ]


TRAIN = [('q1', 'd1', 1), ('q3', 'd3', 2)]
TEST = [('q2', 'd2', 2), ('q2', 'd1', 0), ('q2', 'd4', -1), ('q3', '5', 1)]


def test_splits_of_judgements():
  found = read(TOY, 'test')
  # Every judged row with its grade; to train on, relevant rows only.
  assert pairs(found) == TEST and pairs(read(TOY, 'train')) == TRAIN
  assert column(found, 'query_id') == [row[0] for row in TEST]
  assert column(found, 'passage_id') == [row[1] for row in TEST]
  assert found[0]['location'] == f'{TOY}/qrels/test.tsv:2'
  # Validation is dev, and needs no header.
  assert column(read(TOY, 'validation'), 'query_id') == ['q2', 'q3']


def test_corpus():
  found = read(TOY, 'corpus')
  assert {e['passage_id']: e['passage'] for e in found} == PASSAGES
  assert column(found[:2], 'name') == ['Tides', '']
  assert found[3]['location'] == f'{TOY}/corpus.jsonl:4'
  assert not any(e['query'] or e['query_id'] for e in found)


def test_splits_are_those_of_the_files(toy):
  reader = Beir(folder=str(toy))
  assert reader.splits() == ('train', 'validation', 'test', 'corpus')
  assert reader.corpus_split('test') == 'corpus'
  assert reader.corpus_split('corpus') is None
  (toy / 'qrels' / 'dev.tsv').rename(toy / 'qrels' / 'val.tsv')
  assert reader.splits() == ('train', 'test', 'corpus')
  refused(lambda: reader.check_split('validation'), 'dev.tsv',
          'Its splits: train, test, corpus.', error=SourceUnavailable)
  refused(lambda: reader.check_split('tset'), "Did you mean 'test'")
  for name in ('corpus.jsonl', 'queries.jsonl', 'qrels/test.tsv'):
    pack(toy / name)
  assert pairs(read(toy, 'test')) == TEST


def test_generated_queries_and_hard_negatives_by_system():
  mined = str(TOY / 'hard-negatives.jsonl')
  options = {'prefix': 'qgen', 'hard_negatives': mined}

  def negatives(**more):
    found = column(read(TOY, 'train', **options, **more), 'negatives')
    return [[k for t in row for k in PASSAGES if PASSAGES[k] == t]
            for row in found]

  # The best of each system, then the second best of each; none twice.
  assert negatives() == [['d2', 'd3', 'd4', '5'], ['d3', 'd1']]
  assert read(TOY, 'train', **options)[0]['query'] == 'why does the sea rise'
  assert negatives(max_negatives=2)[0] == ['d2', 'd3']


def test_unknown_ids_are_counted(toy, caplog):
  append(toy / 'qrels' / 'test.tsv', 'q9\td1\t1', 'q1\td9\t1')
  first = f"{toy}/qrels/test.tsv:6: query 'q9' does not exist"
  error_of(toy, 'test', first, '.STRICT=False')
  assert pairs(read(toy, 'test', strict=False)) == TEST
  assert 'skipped 2 judgements: 1 the query does not exist' in caplog.text
  mined = write(toy / 'mined', {'qid': 'q1', 'neg': ['d2', 'x', 'y']})
  first = "hard negative 'x' is no passage"
  options = {'hard_negatives': str(mined)}
  error_of(toy, 'train', first, **options)
  found = read(toy, 'train', strict=False, **options)
  assert pairs(found)[0] == ('q1', 'd1', 1, 'd2')
  assert 'skipped 2 hard negatives' in caplog.text


@pytest.mark.parametrize('name, id_', [('corpus', 'd1'), ('queries', 'q1')])
def test_duplicate_ids(toy, caplog, name, id_):
  path = toy / f'{name}.jsonl'
  first, *others = path.read_text().splitlines()
  append(path, first.replace('The moon', 'Nobody').replace('what', 'who'))
  where = f'{path}:{len(others) + 2}: id {id_!r} is also that of {path}:1'
  error_of(toy, 'train', where)
  assert pairs(read(toy, 'train', strict=False)) == TRAIN
  assert 'skipped 1 rows: 1 the id of an earlier row' in caplog.text


@pytest.mark.parametrize('name, line, reason', [
    ('corpus.jsonl', {'_id': 'd6', 'title': 'x'}, 'no column of texts (text, '),
    ('corpus.jsonl', {'_id': 'x', 'text': 'x', 'title': 3}, "'title' holds"),
    ('corpus.jsonl', {'title': 'x', 'text': 'x'}, 'no column of ids (_id, '),
])
def test_bad_rows_name_file_and_line(toy, name, line, reason):
  path = append(toy / name, line)
  place = f'{path}:{len(path.read_bytes().splitlines())}'
  assert error_of(toy, 'train', reason).startswith(f'{place}: ')
  assert pairs(read(toy, 'train', strict=False)) == TRAIN


def test_empty_passages_are_evaluated_but_not_learnt(toy, caplog):
  append(toy / 'corpus.jsonl', '{"_id": "d0", "title": "", "text": ""}')
  append(toy / 'qrels' / 'train.tsv', 'q1\td0\t1')
  append(toy / 'qrels' / 'test.tsv', 'q1\td0\t1')
  error_of(toy, 'train', 'train.tsv:5: passage ')
  assert len(read(toy, 'train', strict=False)) == 2
  assert 'skipped 1 judgements: 1 the passage is blank' in caplog.text
  assert read(toy, 'test')[-1]['passage_id'] == 'd0'
  assert len(read(toy, 'corpus')) == 6


def test_a_set_has_nothing_of_a_folder_in_its_place():
  trained_on = Beir(
      folder=str(TOY), prefix='qgen', hard_negatives='mined.jsonl',
      scores=True, root='sets',
  )
  assert trained_on.select_datasets() == [trained_on]
  (found,) = trained_on.select_datasets('scifact')
  assert found == Beir(dataset='scifact', root='sets')
  # Flags of a set are its own.
  generated = Beir(prefix='qgen', root='sets')
  assert generated.select_datasets('scifact')[0].prefix == 'qgen'
