"""beir's reader on a folder written by hand, and what is wrong in folders."""

import gzip
import logging
import pathlib
import shutil

import pytest

from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.readers import rows
from dualenc_jax.readers.beir import Beir

TOY = pathlib.Path(__file__).parents[1] / 'data' / 'beir' / 'toy'
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


def pairs(examples):
  return [
      (e['query'], e['passage'], e['relevance'], e['negatives'])
      for e in examples
  ]


def append(path, *lines):
  with open(path, 'ab') as stream:
    for line in lines:
      stream.write(line if isinstance(line, bytes) else line.encode())
      stream.write(b'\n')
  return path


def error_of(folder, split, **options):
  with pytest.raises(UserError) as error:
    read(folder, split, **options)
  return str(error.value)


def test_test_has_every_judged_row_with_its_grade():
  found = read(TOY, 'test')
  assert pairs(found) == [
      (QUERIES['q2'], PASSAGES['d2'], 2, []),
      (QUERIES['q2'], PASSAGES['d1'], 0, []),
      (QUERIES['q2'], PASSAGES['d4'], -1, []),
      (QUERIES['q3'], PASSAGES['5'], 1, []),
  ]
  assert [(e['query_id'], e['passage_id']) for e in found[2:]] == [
      ('q2', 'd4'),
      ('q3', '5'),
  ]
  assert found[0]['location'] == f'{TOY}/qrels/test.tsv:2'


def test_train_has_relevant_rows_only():
  assert pairs(read(TOY, 'train')) == [
      (QUERIES['q1'], PASSAGES['d1'], 1, []),
      (QUERIES['q3'], PASSAGES['d3'], 2, []),
  ]


def test_validation_is_dev_and_needs_no_header():
  assert [e['query_id'] for e in read(TOY, 'validation')] == ['q2', 'q3']


def test_corpus():
  found = read(TOY, 'corpus')
  assert {e['passage_id']: e['passage'] for e in found} == PASSAGES
  assert [e['name'] for e in found[:2]] == ['Tides', '']
  assert found[3]['location'] == f'{TOY}/corpus.jsonl:4'
  assert not any(e['query'] or e['query_id'] for e in found)


def test_splits_are_those_of_the_files(toy):
  reader = Beir(folder=str(toy))
  assert reader.splits() == ('train', 'validation', 'test', 'corpus')
  assert reader.corpus_split('test') == 'corpus'
  assert reader.corpus_split('corpus') is None
  (toy / 'qrels' / 'dev.tsv').unlink()
  assert reader.splits() == ('train', 'test', 'corpus')
  with pytest.raises(
      SourceUnavailable,
      match='no file .*dev.tsv.* Its splits: train, test, corpus',
  ):
    reader.check_split('validation')
  with pytest.raises(UserError, match="no split 'tset'. Did you mean 'test'"):
    reader.check_split('tset')


def test_gzip_files_hold_the_same(toy):
  for name in ('corpus.jsonl', 'queries.jsonl', 'qrels/test.tsv'):
    data = (toy / name).read_bytes()
    (toy / name).unlink()
    (toy / f'{name}.gz').write_bytes(gzip.compress(data))
  assert pairs(read(toy, 'test')) == pairs(read(TOY, 'test'))


def test_generated_queries_and_hard_negatives_by_system():
  options = {
      'prefix': 'qgen',
      'hard_negatives': str(TOY / 'hard-negatives.jsonl'),
  }
  first, second = read(TOY, 'train', **options)
  assert first['query'] == 'why does the sea rise'
  # The best of each system, then the second best of each; none twice.
  assert first['negatives'] == [PASSAGES[i] for i in ('d2', 'd3', 'd4', '5')]
  assert second['negatives'] == [PASSAGES[i] for i in ('d3', 'd1')]
  found = read(TOY, 'train', **options, systems=('dense',), max_negatives=2)
  assert found[0]['negatives'] == [PASSAGES[i] for i in ('d3', 'd4')]
  message = error_of(TOY, 'train', **options, systems=('bm52',))
  assert "no hard negatives of a system 'bm52'. Did you mean 'bm25'" in message


def test_files_of_other_names(toy):
  (toy / 'judged.txt').write_text('q1 Q0 d4 3\n')
  (found,) = read(toy, 'test', files={'test': 'judged.txt'})
  assert (found['passage'], found['relevance']) == (PASSAGES['d4'], 3)
  with pytest.raises(UserError, match="'quries'. Did you mean 'queries'"):
    read(toy, 'test', files={'quries': 'judged.txt'})


def test_unknown_ids_are_counted(toy, caplog):
  append(toy / 'qrels' / 'test.tsv', 'q9\td1\t1', 'q1\td9\t1')
  message = error_of(toy, 'test')
  assert '2 judgements name queries or passages that are not' in message
  assert f"query 'q9' at {toy}/qrels/test.tsv:6" in message
  assert '--gin.STRICT=False' in message
  with caplog.at_level(logging.WARNING):
    assert len(read(toy, 'test', strict=False)) == 4
  assert '2 judgements name' in caplog.text


def test_unknown_hard_negatives_are_counted(toy, caplog):
  path = toy / 'mined.jsonl'
  path.write_text('{"qid": "q1", "neg": ["d2", "x", "y"]}\n')
  message = error_of(toy, 'train', hard_negatives=str(path))
  assert "2 hard negatives name" in message
  assert "the first passage 'x' of query 'q1'" in message
  with caplog.at_level(logging.WARNING):
    first, _ = read(
        toy, 'train', hard_negatives=str(path), strict=False
    )
  assert first['negatives'] == [PASSAGES['d2']]
  assert '2 hard negatives' in caplog.text


@pytest.mark.parametrize('name', ['corpus', 'queries'])
def test_duplicate_ids(toy, caplog, name):
  path = toy / f'{name}.jsonl'
  first = path.read_text().splitlines()[0]
  count = len(path.read_text().splitlines())
  append(path, first.replace('The moon', 'Nobody').replace('what', 'who'))
  identifier = {'corpus': 'd1', 'queries': 'q1'}[name]
  message = error_of(toy, 'train')
  assert message.startswith(
      f'{path}:{count + 1}: id {identifier!r} is the one of {path}:1, too'
  )
  with caplog.at_level(logging.WARNING):
    found = read(toy, 'train', strict=False)
  assert pairs(found) == pairs(read(TOY, 'train'))
  assert 'Skipped 1 rows of ids that came before' in caplog.text


BAD = [
    ('corpus.jsonl', '{"_id": "d6", "title": "x"}', "'text' is missing"),
    ('corpus.jsonl', '{"text": "x"}', "'_id' is missing or empty"),
    ('corpus.jsonl', '{"_id": "x", "text": "x", "title": 3}', "'title' holds"),
    ('corpus.jsonl', 'text', 'not JSON'),
    ('corpus.jsonl', b'{"_id": "x", "text": "\xff"}', 'not UTF-8'),
    ('queries.jsonl', '{"_id": "q6", "text": " "}', "'text' is empty"),
    ('queries.jsonl', '[]', 'not a JSON object'),
    ('qrels/train.tsv', 'q1\td4', '2 columns, expected'),
    ('qrels/train.tsv', 'q1\td4\tyes', "grade 'yes' is not an integer"),
    ('qrels/train.tsv', 'q1\td4\t0.5', "grade '0.5' is not an integer"),
    ('qrels/train.tsv', '\td4\t1', 'the query id or the passage id is empty'),
    ('qrels/train.tsv', b'q1\t\xff\t1', 'not UTF-8'),
]


@pytest.mark.parametrize('name, line, reason', BAD)
def test_bad_rows_name_file_and_line(toy, name, line, reason):
  path = append(toy / name, line)
  number = len(path.read_bytes().splitlines())
  message = error_of(toy, 'train')
  assert message.startswith(f'{path}:{number}: ') and reason in message
  assert pairs(read(toy, 'train', strict=False)) == pairs(
      read(TOY, 'train')
  )
  with rows.collecting() as bad:
    read(toy, 'train')
  assert [found.places for found in bad.values()] == [[f'{path}:{number}']]


def test_two_grades_for_one_pair(toy):
  path = append(toy / 'qrels' / 'test.tsv', 'q2\td2\t2')
  assert len(read(toy, 'test')) == 4  # The same once more is no harm.
  append(path, 'q2\td2\t1')
  message = error_of(toy, 'test')
  assert message.startswith(f'{path}:7: grade 1 for') and 'line 2' in message


def test_empty_passages_are_evaluated_but_not_learnt(toy, caplog):
  append(toy / 'corpus.jsonl', '{"_id": "d0", "title": "", "text": ""}')
  append(toy / 'qrels' / 'train.tsv', 'q1\td0\t1')
  append(toy / 'qrels' / 'test.tsv', 'q1\td0\t1')
  assert 'train.tsv:5: passage ' in error_of(toy, 'train')
  with caplog.at_level(logging.WARNING):
    assert len(read(toy, 'train', strict=False)) == 2
  assert 'skipped 1 judgements: 1 the passage is blank' in caplog.text
  assert read(toy, 'test')[-1]['passage_id'] == 'd0'
  assert len(read(toy, 'corpus')) == 6


def test_truncated_gzip(toy):
  data = gzip.compress((toy / 'corpus.jsonl').read_bytes())
  (toy / 'corpus.jsonl').unlink()
  (toy / 'corpus.jsonl.gz').write_bytes(data[:-12])
  message = error_of(toy, 'test')
  assert 'corpus.jsonl.gz is a damaged gzip file' in message


def test_everything_wrong_is_collected_for_a_report(toy):
  append(toy / 'qrels' / 'train.tsv', 'q9\td1\t1', 'q1\td1\t2')
  append(toy / 'corpus.jsonl', '{"_id": "d1", "text": "again"}')
  mined = toy / 'mined.jsonl'
  mined.write_text('{"qid": "q1", "neg": ["d1", "d2", "d8"]}\n')
  with rows.collecting() as bad:
    found = read(toy, 'train', hard_negatives=str(mined))
  assert {reason: f.places for reason, f in bad.items()} == {
      'another grade than in a row before': [f'{toy}/qrels/train.tsv:6'],
      'a positive is among the hard negatives': [f'{mined}:1'],
      'the id of a row before': [f'{toy}/corpus.jsonl:6'],
      'judgements name what is not there': [
          f"query 'q9' at {toy}/qrels/train.tsv:5"
      ],
      'hard negatives name what is not there': [
          "passage 'd8' of query 'q1'"
      ],
  }
  assert found[0]['negatives'] == [PASSAGES['d2']]


def test_fingerprint_is_of_the_files_of_the_split(toy):
  reader = Beir(folder=str(toy))
  assert reader.fingerprint('test') == Beir(folder=str(TOY)).fingerprint('test')
  train, test = reader.fingerprint('train'), reader.fingerprint('test')
  append(toy / 'qrels' / 'test.tsv', 'q1\td1\t1')
  assert reader.fingerprint('train') == train
  assert reader.fingerprint('test') != test


def test_bad_options():
  for options, message in (
      ({}, 'BEIR_SET=scifact'),
      ({'dataset': 'scifact', 'folder': 'x'}, 'Expected one of the two'),
      ({'folder': 'x', 'strict': 'ignore'}, 'strict'),
      ({'folder': 'x', 'max_negatives': 0}, 'at least 1'),
      ({'folder': 'x', 'systems': 'bm25'}, "such as ('bm25',)"),
      ({'folder': 'x', 'tolerance': -0.1}, '0.0 or more'),
  ):
    with pytest.raises(UserError, match='.*' + message.replace('(', r'\(')
                       .replace(')', r'\)')):
      Beir(**options).source()


def test_as_a_task_by_name():
  task = Beir(folder=str(TOY))
  assert pairs(task.examples('train')) == pairs(read(TOY, 'train'))
  assert task.corpus_split('test') == 'corpus'


def test_a_set_has_nothing_of_a_folder_in_its_place():
  trained_on = Beir(
      folder=str(TOY), prefix='qgen', hard_negatives='mined.jsonl',
      scores=True, root='sets',
  )
  assert trained_on.of_datasets() == [trained_on]
  (found,) = trained_on.of_datasets('scifact')
  assert found == Beir(dataset='scifact', root='sets')
  # Flags of a set are its own.
  generated = Beir(prefix='qgen', root='sets')
  assert generated.of_datasets('scifact')[0].prefix == 'qgen'
