"""msmarco's reader on files written by hand, in each layout that it knows."""

import csv
import json
import shutil

import pytest
from reading import append, DATA, judged, refused, write

from dualenc_jax.data.readers.msmarco import MsMarco

TOY = DATA / 'msmarco'
PASSAGES = {
    '0': 'The moon pulls the sea twice a day.',
    '1': 'Basalt is a dark volcanic rock.',
    '2': 'Wild yeast raises sourdough.',
    '3': 'Itâ\x80\x99s cold, says "he".',
    '4': 'Granite is a pale rock.',
}
ROCKS = 'which rocks are volcanic'
TRAIN = [
    ('what causes tides', PASSAGES['0'], '100', '0', 1),
    (ROCKS, PASSAGES['1'], '101', '1', 1),
    (ROCKS, PASSAGES['4'], '101', '4', 1),
]


@pytest.fixture
def toy(tmp_path):
  return shutil.copytree(TOY, tmp_path / 'msmarco')


def make(root, **options):
  return MsMarco(root=str(root), **options)


def test_official_files():
  reader = make(TOY)
  assert reader.splits() == ('train', 'validation', 'test', 'corpus')
  assert judged(reader.examples('train')) == TRAIN
  assert judged(reader.examples('validation')) == [
      ('how does sourdough rise', PASSAGES['2'], '200', '2', 1)
  ]
  assert judged(reader.examples('test')) == [
      ('who is cold', PASSAGES['3'], '300', '3', 3),
      ('who is cold', PASSAGES['1'], '300', '1', 0),
  ]
  corpus = list(reader.examples('corpus'))
  assert {e['passage_id']: e['passage'] for e in corpus} == PASSAGES
  assert corpus[2]['location'] == f'{TOY}/collection.tsv:3'
  assert reader.corpus_split('validation') == 'corpus'


def test_first_lines_of_names_decide_the_columns(toy):
  expected = judged(make(toy).examples('validation'))
  for name, names in (('collection', 'text\tpid'),
                      ('queries.dev.small', 'query\tqid')):
    path = toy / f'{name}.tsv'
    cells = [line.split('\t') for line in path.read_text().splitlines()]
    write(path, names, *('\t'.join(row[::-1]) for row in cells))
  assert judged(make(toy).examples('validation')) == expected


@pytest.mark.parametrize('name, line, reason', [
    ('collection.tsv', '5 text', '1 columns, expected 2 (id, text)'),
    ('queries.train.tsv', '5\t ', 'the text is empty'),
])
def test_bad_rows_name_file_and_line(toy, name, line, reason):
  path = append(toy / name, line)
  place = f'{path}:{len(path.read_bytes().splitlines())}'
  refused(lambda: make(toy).examples('train'), f'{place}: {reason}')
  assert judged(make(toy, strict=False).examples('train')) == TRAIN


SPLADE = {
    'collection.tsv': 'val_collection/raw.tsv',
    'queries.dev.small.tsv': 'val_queries/raw.tsv',
}


def cells(path):
  with open(path, encoding='utf-8', newline='\n') as stream:
    return list(csv.reader(stream, delimiter='\t', quoting=csv.QUOTE_NONE))


def test_a_collection_of_splade(shared, tmp_path):
  root = shared / 'data' / 'hardneg_samples' / 'splade_toy'
  for name, source in SPLADE.items():
    shutil.copyfile(root / source, tmp_path / name)
  of_query = json.loads((root / 'qrel' / 'qrel.json').read_text())
  write(tmp_path / 'qrels.dev.small.tsv', *(
      f'{query}\t{passage}\t{grade}'
      for query, grades in of_query.items()
      for passage, grade in grades.items()
  ))
  # One query is there twice.
  strict = make(tmp_path)
  refused(lambda: strict.examples('validation'), "tsv:7: id '1048876'")
  reader = make(tmp_path, strict=False)
  passages = dict(cells(tmp_path / 'collection.tsv'))
  # The first counts.
  queries = dict(reversed(cells(tmp_path / 'queries.dev.small.tsv')))
  found = judged(reader.examples('validation'))
  assert {*found} == {
      (queries[query], passages[passage].strip(), query, passage, grade)
      for query, grades in of_query.items()
      for passage, grade in grades.items()
      if passage in passages
  }
  assert len(found) == 11
  corpus = {e['passage_id']: e['passage'] for e in reader.examples('corpus')}
  assert corpus == {name: text.strip() for name, text in passages.items()}
