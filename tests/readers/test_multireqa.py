"""The reader of MultiReQA: pairs, corpus, files, options, and their errors."""

import gzip
import logging
import math
import pathlib
import shutil

import pytest

from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.readers.multireqa import MultiReQA

FIXTURES = pathlib.Path(__file__).parents[1] / 'data' / 'multireqa'
MRQA = 'mrqa/dev/SQuAD.jsonl.gz'
CANDIDATES = 'multireqa/dev/SQuAD/candidates.json.gz'
OCTOPUS = '🐙 has 8 arms.'
PAIRS = [
    ('a1', 'SQuAD_a1/a2/a3/_0', 'Ada wrote notes.'),
    ('a2', 'SQuAD_a1/a2/a3/_1', 'Babbage built an engine.'),
    ('a2', 'SQuAD_a1/a2/a3/_2', 'It was never finished.'),
    ('b1', 'SQuAD_b2/b1/_0', OCTOPUS),
    ('b1', 'SQuAD_b2/b1/_2', '🐙🐙 have 16'),
    ('b2', 'SQuAD_b2/b1/_1', '𝒳 is a letter; so is é.'),
    ('c1', 'SQuAD_c1/c2/_0_0', 'The Po is long.'),
    ('c2', 'SQuAD_c1/c2/_1_0', 'Salt 🌊 in them.'),
]


def pack(root, name, source):
  path = root / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(gzip.compress((FIXTURES / source).read_bytes()))


@pytest.fixture
def root(tmp_path):
  pack(tmp_path, MRQA, 'contexts.jsonl')
  pack(tmp_path, CANDIDATES, 'candidates.json')
  return tmp_path


def reader(root, **options):
  options = {'dataset': 'SQuAD', 'tolerance': math.inf} | options
  return MultiReQA(root=str(root), **options)


def test_pairs(root):
  """Answers at a sentence's first and last character, several of a question,
  one in two sentences, one in a title, and a question without candidates.
  """
  rows = list(reader(root).examples('validation'))
  assert [
      (row['query_id'], row['passage_id'], row['passage']) for row in rows
  ] == PAIRS
  assert rows[0] == {
      'query': 'Who wrote notes?',
      'passage': 'Ada wrote notes.',
      'negatives': [],
      'query_id': 'a1',
      'passage_id': 'SQuAD_a1/a2/a3/_0',
      'name': '',
      'location': f'{root / MRQA}:2',
      'relevance': 1,
      'answers': [],
  }


def test_corpus(root):
  rows = list(reader(root).examples('corpus'))
  assert [row['passage_id'] for row in rows] == [
      'SQuAD_a1/a2/a3/_0',
      'SQuAD_a1/a2/a3/_1',
      'SQuAD_a1/a2/a3/_2',
      'SQuAD_b2/b1/_0',
      'SQuAD_b2/b1/_1',
      'SQuAD_b2/b1/_2',
      'SQuAD_c1/c2/_0_0',
      'SQuAD_c1/c2/_0_1',
      'SQuAD_c1/c2/_1_0',
  ]
  assert rows[7]['passage'] == 'It ends near Venice.'
  assert all(row['query'] == row['query_id'] == '' for row in rows)
  passages = {row['passage_id']: row['passage'] for row in rows}
  assert {(name, text) for _, name, text in PAIRS} <= set(passages.items())


def test_train_is_of_its_own_files(root):
  pack(root, MRQA.replace('dev', 'train'), 'contexts.jsonl')
  pack(root, CANDIDATES.replace('dev', 'train'), 'candidates.json')
  (root / MRQA).unlink()
  rows = list(reader(root).examples('train'))
  assert [(row['query_id'], row['passage_id']) for row in rows] == [
      pair[:2] for pair in PAIRS
  ]
  with pytest.raises(SourceUnavailable):
    reader(root).check_split('validation')


def test_context_beside_the_sentence(root):
  rows = reader(root, context_separator=' || ').examples('validation')
  assert next(rows)['passage'] == (
      'Ada wrote notes. || Ada wrote notes. Babbage built an engine. It was'
      ' never finished.'
  )


def test_splits():
  known = MultiReQA('TriviaQA')
  assert known.splits() == ('train', 'validation', 'corpus')
  assert known.corpus_split('validation') == 'corpus'
  assert known.corpus_split('train') is None
  assert known.corpus_split('corpus') is None
  tested = MultiReQA('BioASQ')
  assert tested.splits() == ('test', 'corpus')
  assert tested.corpus_split('test') == 'corpus'


def test_through_the_task(root):
  options = {'dataset': 'SQuAD', 'root': str(root), 'tolerance': math.inf}
  task = MultiReQA(**options)
  rows = list(task.examples('validation'))
  assert [row['query_id'] for row in rows] == [pair[0] for pair in PAIRS]
  assert task.corpus_split('validation') == 'corpus'
  assert len(task.fingerprint('corpus')) == 64


@pytest.mark.parametrize('name', [MRQA, CANDIDATES])
def test_fingerprint_is_of_both_files(root, name):
  before = reader(root).fingerprint('validation')
  assert reader(root).fingerprint('validation') == before
  (root / name).write_bytes(gzip.compress(b'{}'))
  assert reader(root).fingerprint('validation') != before


@pytest.mark.parametrize(
    'dataset, split, mrqa, candidates',
    [
        (
            'TriviaQA',
            'train',
            'mrqa/train/TriviaQA-web.jsonl.gz',
            'multireqa/train/TriviaQA/candidates.json.gz',
        ),
        (
            'NaturalQuestions',
            'validation',
            'mrqa/dev/NaturalQuestions.jsonl.gz',
            'MultiReQA/data/dev/NaturalQuestions/candidates.json.gz',
        ),
        (
            'DuoRC',
            'test',
            'mrqa/test/DuoRC.ParaphraseRC.jsonl.gz',
            'multireqa/test/DuoRC/candidates.json.gz',
        ),
        (
            'DuoRC',
            'corpus',
            'mrqa/dev/DuoRC.jsonl.gz',
            'MultiReQA/data/test/DuoRC/candidates.json.gz',
        ),
    ],
)
def test_layouts(tmp_path, dataset, split, mrqa, candidates):
  for name in (mrqa, candidates):
    with pytest.raises(SourceUnavailable):
      reader(tmp_path, dataset=dataset).check_split(split)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
  reader(tmp_path, dataset=dataset).check_split(split)


def test_data_root(root):
  folder = root.parent / 'data_root'
  shutil.copytree(root, folder / 'multireqa')
  MultiReQA('SQuAD', data_root=str(folder)).check_split('validation')


def message(function, error=UserError):
  with pytest.raises(error) as raised:
    function()
  return str(raised.value)


def test_missing_files(root):
  (root / CANDIDATES).unlink()
  known = reader(root)
  text = message(lambda: known.check_split('validation'), SourceUnavailable)
  assert f'there is no file {root / CANDIDATES}' in text
  assert (
      'https://github.com/google-research-datasets/MultiReQA/raw/master/data'
      '/dev/SQuAD/candidates.json.gz (318,262 bytes, 10,642 sentences)'
  ) in text
  tested = reader(root, dataset='DuoRC')
  text = message(lambda: tested.check_split('test'), SourceUnavailable)
  assert f'{root}/mrqa/dev/DuoRC.ParaphraseRC.jsonl.gz' in text
  assert (
      'https://s3.us-east-2.amazonaws.com/mrqa/release/v2/dev/'
      'DuoRC.ParaphraseRC.jsonl.gz (1,197,881 bytes, 1,501 questions)'
  ) in text
  asked = reader(root, dataset='BioASQ')
  text = message(lambda: asked.check_split('test'), SourceUnavailable)
  assert 'http://participants-area.bioasq.org/MRQA2019/' in text
  text = message(lambda: MultiReQA('SQuAD').check_split('train'))
  assert 'DATA_ROOT' in text


@pytest.mark.parametrize(
    'options, expected',
    [
        ({'dataset': 'squad'}, "Did you mean 'SQuAD'"),
        ({'dataset': 'NewsQA'}, 'no set'),
        ({'tolerance': -0.1}, 'tolerance is -0.1; expected 0 or more'),
        ({'tolerance': math.nan}, 'tolerance is nan'),
        ({'strict': 'skip'}, "is 'skip'; expected True or False"),
    ],
)
def test_bad_options(options, expected):
  options = {'dataset': 'SQuAD'} | options
  assert expected in message(lambda: MultiReQA(**options))


@pytest.mark.parametrize(
    'dataset, split', [('SQuAD', 'test'), ('DuoRC', 'train'), ('DuoRC', 'tst')]
)
def test_unknown_splits(root, dataset, split):
  known = reader(root, dataset=dataset)
  text = message(lambda: known.check_split(split))
  assert f'has no split {split!r}' in text and 'corpus' in text


@pytest.mark.parametrize('name', [MRQA, CANDIDATES])
def test_truncated_gzip(root, name):
  (root / name).write_bytes((root / name).read_bytes()[:-12])
  text = message(lambda: list(reader(root).examples('validation')))
  assert f'{root / name} is a damaged gzip file' in text


def test_counts_are_logged_beside_the_published_ones(root, caplog):
  with caplog.at_level(logging.INFO, 'dualenc_jax'):
    list(reader(root).examples('validation'))
  for line in (
      '8 questions, published 10,507',
      '9 candidates, published 10,642',
      '6 questions with a positive, published 10,485',
      '8 pairs.',
  ):
    assert f'multireqa, SQuAD, validation: {line}' in caplog.text


def test_counts_that_differ_are_an_error_at_the_end(root):
  rows = []
  text = message(
      lambda: rows.extend(reader(root, tolerance=0.02).examples('validation'))
  )
  assert len(rows) == len(PAIRS)
  assert '9 candidates, published 10,642' in text
  assert 'tolerance is 0.02' in text and 'MULTIREQA_TOLERANCE' in text
  assert str(root / MRQA) in text and str(root / CANDIDATES) in text
