"""Files of hard negatives in each form, joined to the toy of msmarco."""

import pytest
from reading import column, DATA, pack, refused, write

from dualenc_jax.data.readers import rows
from dualenc_jax.data.readers.msmarco import MsMarco

TOY = DATA / 'msmarco'
BREAD = 'Wild yeast raises sourdough.'
COLD = 'Itâ\x80\x99s cold, says "he".'
MOON = 'The moon pulls the sea twice a day.'
BASALT = 'Basalt is a dark volcanic rock.'
GRANITE = 'Granite is a pale rock.'


def negatives(path, **options):
  """Hard negatives of the pairs (100, 0), (101, 1) and (101, 4)."""
  options = {'root': str(TOY), **options}
  reader = MsMarco(hard_negatives=str(path), **options)
  return column(reader.examples('train'), 'negatives')


def test_sentence_transformers_form(tmp_path):
  path = TOY / 'hard_negatives_by_system.jsonl'
  all_systems = [[BASALT, BREAD, COLD, GRANITE], *[[MOON, BREAD]] * 2]
  assert negatives(path) == all_systems
  assert negatives(pack(path, tmp_path / 'a.jsonl.gz')) == all_systems
  assert negatives(path, max_negatives=1) == [[BASALT], [MOON], [MOON]]
  scored = TOY / 'hard_negatives_scored.jsonl'
  assert negatives(scored) == [[BASALT, BREAD], [], []]


def test_ids_of_passages_that_have_texts_too(tmp_path, caplog):
  entries = [{'docid': str(i), 'text': 'x'} for i in (1, 2)]
  row = {'query_id': 100, 'negative_passages': entries}
  assert negatives(write(tmp_path / 'a', row))[0] == [BASALT, BREAD]
  row = {'query_id': 100, 'negative_passages': [{'text': MOON}]}
  refused(lambda: negatives(write(tmp_path / 'a', row)), 'has no id')


def test_tsv_form():
  # Two lines of one query, one with two ids.
  path = TOY / 'hard_negatives.tsv'
  assert negatives(path) == [[BASALT, COLD], *[[BREAD, MOON]] * 2]
  assert negatives(path, max_negatives=1) == [[BASALT], [BREAD], [BREAD]]


@pytest.mark.parametrize('line', [
    # A positive of another row of the query, and one that only the file calls
    # positive.
    {'qid': '101', 'pos': [], 'neg': {'bm25': ['2', '4']}},
    {'qid': '100', 'pos': ['3'], 'neg': {'bm25': ['2', '3']}},
    {'query_id': '100', 'positive_passages': [{'docid': '3', 'text': 'x'}],
     'negative_passages': [{'docid': i, 'text': 'x'} for i in '23']},
    '100\t2,0',
])
def test_a_positive_among_the_negatives(tmp_path, caplog, line):
  path = write(tmp_path / 'a', '102\t1', line)
  message = 'one of its positives among its hard neg'
  refused(lambda: negatives(path), f'{path}:2: query ', message)
  found = negatives(path, strict=False)
  assert [BREAD] in found and all(kept in ([BREAD], []) for kept in found)
  assert f'{path}: skipped 1 hard negatives: 1 a positive' in caplog.text
  with rows.collecting() as bad:
    negatives(path)
  assert [f.places for f in bad.values()] == [[f'{path}:2']]


@pytest.mark.parametrize('line, reason', [
    ({'qid': 1}, "nor 'negative_passages' exists. Expected hard"),
    ({'neg': {'a': ['1']}}, 'the query id is missing or empty'),
    ({'qid': '100', 'neg': {'a': '1'}}, 'are str, not a list'),
    ({'qid': '100', 'neg': {'a': [None]}}, 'has no id'),
    ('100', '1 columns, expected 2'),
    ('100 Q0 1 1 0.5 bm25', '1 columns, expected 2'),
])
def test_bad_rows(tmp_path, line, reason):
  path = write(tmp_path / 'a', '101\t2', line)
  refused(lambda: negatives(path), f'{path}:2: ', reason)
  assert negatives(path, strict=False) == [[], [BREAD], [BREAD]]


def test_fingerprint_covers_the_file(tmp_path):
  path = write(tmp_path / 'a', '100\t1')
  reader = MsMarco(root=str(TOY), hard_negatives=str(path))
  train, validation = map(reader.fingerprint, ('train', 'validation'))
  write(path, '100\t2')
  assert reader.fingerprint('train') != train
  assert reader.fingerprint('validation') == validation
