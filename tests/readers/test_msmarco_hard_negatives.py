"""Hard negatives of msmarco in the forms that they are passed on in."""

import gzip
import json
import logging
import pathlib
import shutil

import pytest

from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.readers import rows
from dualenc_jax.readers.msmarco import MsMarco

TOY = pathlib.Path(__file__).parents[1] / 'data' / 'msmarco'
BREAD = 'Wild yeast raises sourdough.'
COLD = 'Itâ\x80\x99s cold, says "he".'
MOON = 'The moon pulls the sea twice a day.'
BASALT = 'Basalt is a dark volcanic rock.'
GRANITE = 'Granite is a pale rock.'


def negatives(path, **options):
  """Hard negatives of the pairs (100, 0), (101, 1) and (101, 4)."""
  reader = MsMarco(
      root=str(TOY), tolerance=1.0, hard_negatives=str(path), **options
  )
  return [e['negatives'] for e in reader.examples('train')]


def write(path, *lines):
  lines = [x if isinstance(x, str) else json.dumps(x) for x in lines]
  path.write_text('\n'.join(lines) + '\n')
  return path


def test_sentence_transformers_form():
  path = TOY / 'hard_negatives_by_system.jsonl'
  assert negatives(path) == [
      [BASALT, BREAD, COLD, GRANITE],
      [MOON, BREAD],
      [MOON, BREAD],
  ]
  assert negatives(path, systems=('dense',))[0] == [BREAD, COLD, GRANITE]
  # In the order of `systems`.
  assert negatives(path, systems=('dense', 'bm25'))[1] == [BREAD, MOON]
  assert negatives(path, max_negatives=1) == [[BASALT], [MOON], [MOON]]


def test_entries_with_scores():
  path = TOY / 'hard_negatives_scored.jsonl'
  assert negatives(path) == [[BASALT, BREAD], [], []]


def test_passages_with_texts_are_those_of_the_collection():
  path = TOY / 'hard_negatives_with_texts.jsonl'
  # The one without an id has the file's own text, title in front.
  assert negatives(path) == [[BASALT, 'Bread It rises.'], [], []]


def test_tsv_form():
  # Two lines of one query, one with two ids.
  assert negatives(TOY / 'hard_negatives.tsv') == [
      [BASALT, COLD],
      [BREAD, MOON],
      [BREAD, MOON],
  ]


def test_gzip(tmp_path):
  path = tmp_path / 'a.jsonl.gz'
  data = (TOY / 'hard_negatives_by_system.jsonl').read_bytes()
  path.write_bytes(gzip.compress(data))
  assert negatives(path)[1] == [MOON, BREAD]


@pytest.mark.parametrize(
    'line',
    [
        # A positive of the judgements, of another row of the query, and one
        # that only the file calls positive.
        {'qid': '100', 'pos': [], 'neg': {'bm25': ['2', '0']}},
        {'qid': '101', 'pos': [], 'neg': {'bm25': ['2', '4']}},
        {'qid': '100', 'pos': ['3'], 'neg': {'bm25': ['2', '3']}},
        {
            'query_id': '100',
            'positive_passages': [{'docid': '3', 'text': 'x'}],
            'negative_passages': [
                {'docid': '2', 'text': 'x'},
                {'docid': '3', 'text': 'x'},
            ],
        },
        '100\t2,0',
    ],
)
def test_a_positive_among_the_negatives(tmp_path, caplog, line):
  path = write(tmp_path / 'a', '102\t1', line)
  with pytest.raises(UserError) as error:
    negatives(path)
  assert str(error.value).startswith(f'{path}:2: query ')
  assert 'one of its positives among its hard neg' in str(error.value)
  with caplog.at_level(logging.WARNING):
    found = negatives(path, strict=False)
  assert [BREAD] in found and all(kept in ([BREAD], []) for kept in found)
  assert f'{path}: skipped 1 hard negatives: 1 a positive' in caplog.text
  with rows.collecting() as bad:
    negatives(path)
  (found,) = bad.values()
  assert found.places == [f'{path}:2']


def test_a_positive_beyond_the_limit_is_no_harm(tmp_path):
  path = write(tmp_path / 'a', '100\t2,0')
  assert negatives(path, max_negatives=1)[0] == [BREAD]


def test_a_negative_with_the_text_of_the_positive_is_left_out(tmp_path, caplog):
  entries = [{'text': MOON}, {'title': 'Bread', 'text': 'It rises.'}]
  path = write(
      tmp_path / 'a', {'query_id': 100, 'negative_passages': entries}
  )
  with caplog.at_level(logging.WARNING):
    assert negatives(path)[0] == ['Bread It rises.']
  assert 'left out 1 hard negatives with the text' in caplog.text


BAD = [
    ({'qid': 1}, "neither 'neg' nor 'negative_passages'"),
    ({'neg': {'a': ['1']}}, 'the query id is missing or empty'),
    ({'qid': '100', 'neg': {'a': '1'}}, 'are str, not a list'),
    ({'qid': '100', 'neg': {'a': [1.5]}}, "'pid' is neither a string nor an"),
    ({'qid': '100', 'neg': {'a': [None]}}, 'neither an id nor a text'),
    ({'query_id': '100', 'negative_passages': ['1']}, 'is str, not an object'),
    ({'query_id': '100', 'negative_passages': [{}]}, "'text' is missing"),
    ('100', '1 columns, expected 2'),
    ('100\t1\t2\t3\t4', '5 columns, expected 2'),
    ('{', 'not JSON'),
]


@pytest.mark.parametrize('line, reason', BAD)
def test_bad_rows(tmp_path, line, reason):
  path = write(tmp_path / 'a', '101\t2', line)
  with pytest.raises(UserError) as error:
    negatives(path)
  assert str(error.value).startswith(f'{path}:2: ')
  assert reason in str(error.value)
  assert negatives(path, strict=False) == [[], [BREAD], [BREAD]]


def test_a_query_in_two_places(tmp_path):
  path = write(tmp_path / 'a', '100\t1', '101\t2', '100\t3')
  with pytest.raises(UserError, match=":3: query '100' came before"):
    negatives(path)


def test_a_missing_file(tmp_path):
  with pytest.raises(SourceUnavailable, match='no file of hard negatives'):
    negatives(tmp_path / 'none.jsonl')


def test_a_bare_name_is_looked_up_below_the_data_root(tmp_path):
  shutil.copytree(TOY, tmp_path / 'msmarco')
  of = {'data_root': str(tmp_path), 'tolerance': 1.0}
  reader = MsMarco(hard_negatives='mined.tsv', **of)
  with pytest.raises(SourceUnavailable) as error:
    list(reader.examples('train'))
  for place in (tmp_path, tmp_path / 'msmarco'):
    assert f'{place / "mined.tsv"}' in str(error.value)
  assert 'MSMARCO_HARD_NEGATIVES' in str(error.value)
  write(tmp_path / 'mined.tsv', '100\t1')
  assert [*reader.examples('train')][0]['negatives'] == [BASALT]


@pytest.mark.parametrize(
    'line, reason',
    [
        ('100 Q0 1 1 0.5 bm25', 'a TREC run'),
        ('100\tQ0\t1\t1\t0.5\tbm25', 'a TREC run'),
        ('100\t1\twho is it\tA passage of words.', 'top1000.dev'),
    ],
)
def test_files_that_name_no_negatives(tmp_path, line, reason):
  path = write(tmp_path / 'a', line)
  with pytest.raises(UserError, match='dualenc mine --run') as error:
    negatives(path)
  assert f'{path}:1: ' in str(error.value) and reason in str(error.value)


def test_fingerprint_covers_the_file(tmp_path):
  def fingerprint(split):
    return MsMarco(root=str(TOY), hard_negatives=str(path)).fingerprint(split)

  path = write(tmp_path / 'a', '100\t1')
  train, validation = fingerprint('train'), fingerprint('validation')
  write(path, '100\t2')
  assert fingerprint('train') != train
  assert fingerprint('validation') == validation
