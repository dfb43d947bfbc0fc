"""open_nq: DPR's files, their quoting, options, and every kind of bad input."""

import csv
import gzip
import json
import logging
import pathlib
import random
import tracemalloc

import pytest

from dualenc_jax.data.dataset import example
from dualenc_jax.errors import SourceUnavailable, UserError
from dualenc_jax.readers import json_array, Pairs
from dualenc_jax.readers.open_nq import OpenNQ

ROOT = pathlib.Path(__file__).parents[1] / 'data' / 'open_nq'
TRAIN = 'biencoder-nq-train.json'
CORPUS = 'psgs_w100.tsv'

LAKE = (
    'Lake Orlo Lake Orlo ( or ; "Örlo") is a lake in the north of the island.'
    ' It froze over for the last time in 1931.'
)
FERRIES = (
    'Lake Orlo Lake Orlo has three ferries, and the oldest of them has crossed'
    ' it since 1888.'
)
PILOT = (
    'Ferry pilot A ferry pilot needs a licence, which is given by the harbour'
    ' office.'
)
MARKET = 'Tarn The market of Tarn sells wool, salt and clocks.'
CLOCK = 'A clock of Tarn loses a minute a week.'
ALBUM = (
    '"Glass Harbour" (album) The album was sold only at the ferry landing, by'
    ' the singer Íris Vála herself.'
)


def read(split, root=ROOT, **options):
  return list(OpenNQ(root=str(root), **options).examples(split))


def write_rows(folder, *rows, name=TRAIN):
  path = folder / name
  path.write_text(json.dumps(rows), encoding='utf-8')
  return path


def context(text, **more):
  return {'title': 'T', 'text': text, 'passage_id': '1', **more}


def question(**more):
  return {
      'question': 'q',
      'answers': ['a'],
      'positive_ctxs': [context('p')],
      'negative_ctxs': [],
      'hard_negative_ctxs': [context('n')],
      **more,
  }


def test_train(caplog):
  with caplog.at_level(logging.INFO):
    rows = read('train')
  assert rows[0] == example(
      'when did lake orlo freeze over last',
      LAKE,
      negatives=[FERRIES, PILOT],
      passage_id='1',
      name='Lake Orlo',
      location=f'{ROOT / TRAIN}:1',
      answers=['1931'],
  )
  assert [row['passage_id'] for row in rows] == ['1', '5', '6']
  assert rows[2]['query'] == "how many arches does the bridge's side have"
  assert rows[2]['negatives'] == []
  assert rows[2]['location'] == f'{ROOT / TRAIN}:4'
  assert '1 questions without a positive' in caplog.text


def test_all_positives_and_all_negatives():
  rows = read(
      'train',
      positives='all',
      negatives=('hard_negative_ctxs', 'negative_ctxs'),
      max_negatives=2,
  )
  assert [row['passage_id'] for row in rows] == ['1', '5', '4', '6']
  assert rows[0]['negatives'] == [FERRIES, PILOT]
  assert rows[1]['negatives'] == rows[2]['negatives'] == [PILOT, MARKET]
  assert rows[1]['query'] == rows[2]['query']
  assert rows[2]['passage'] == ALBUM
  assert rows[3]['negatives'] == [CLOCK]
  (first, *_) = read('train', negatives=('negative_ctxs',))
  assert first['negatives'] == [MARKET]
  assert all(not row['negatives'] for row in read('train', max_negatives=0))


def test_validation_and_the_questions_of_test():
  rows = read('validation')
  assert [row['passage_id'] for row in rows] == ['6', '2']
  assert [row['relevance'] for row in rows] == [1, 1]
  rows = read('test')
  assert rows[0] == example(
      'when did the bridge of tarn open',
      query_id='test-1',
      answers=['3 June 1907', '3 June, 1907'],
      location=f'{ROOT / "nq-test.qa.csv"}:1',
  )
  assert rows[2]['query'] == "what do they sell on tarn's market"
  assert rows[2]['answers'] == ['"Tarn" clocks', "the shepherds' wool", 'salt']
  # A question may stand there twice.
  assert rows[3]['query'] == rows[0]['query']
  assert rows[3]['query_id'] == 'test-4' and rows[3]['answers'] == ['1908']
  (row,) = read('validation_questions')
  assert row['query_id'] == 'validation_questions-1'


def test_corpus_is_what_dpr_reads():
  rows = read('corpus')
  with open(ROOT / CORPUS, encoding='utf-8') as stream:
    expected = [
        (name, title, f'{title} {text}'.lstrip(' '))
        for name, text, title in (
            (row[0], row[1].strip('"'), row[2])
            for row in csv.reader(stream, delimiter='\t')
            if row[0] != 'id'
        )
    ]
  assert expected == [
      (row['passage_id'], row['name'], row['passage']) for row in rows
  ]
  assert len(rows) == 12 and rows[0]['passage'] == LAKE
  assert rows[3]['passage'] == ALBUM
  # Quotation marks at the ends of the text are gone, those inside are not.
  assert rows[2]['passage'].startswith('"Glass Harbour" (album) Glass Harbour"')
  assert rows[11]['passage'] == CLOCK and rows[11]['name'] == ''
  assert not any(row['query'] or row['answers'] for row in rows)


def test_quoting_against_csv_on_random_rows(tmp_path):
  rng = random.Random(0)
  texts = [
      'x' + ''.join(rng.choices('ab "\'\\,;\tÖ', k=rng.randrange(12)))
      for _ in range(400)
  ]
  with open(tmp_path / CORPUS, 'w', encoding='utf-8', newline='') as stream:
    writer = csv.writer(stream, delimiter='\t', lineterminator='\n')
    writer.writerow(('id', 'text', 'title'))
    writer.writerows((i, texts[i], texts[-i]) for i in range(400))
  rows = read('corpus', tmp_path)
  assert [(row['passage_id'], row['passage']) for row in rows] == [
      (str(i), f'{texts[-i]} {texts[i].strip(chr(34))}') for i in range(400)
  ]


def test_title_separator_and_where_answers_are_looked_for():
  separated = OpenNQ(root=str(ROOT), title_separator=' . ')
  row = next(separated.examples('corpus'))
  assert row['passage'].startswith('Lake Orlo . Lake Orlo ( or')
  assert separated.answer_text(row['passage'], row['name']).startswith(
      ' . Lake Orlo ( or'
  )
  bare = OpenNQ(root=str(ROOT), title_separator=None)
  row = next(bare.examples('corpus'))
  assert row['passage'].startswith('Lake Orlo ( or')
  assert bare.answer_text(row['passage'], row['name']) == row['passage']


def test_packed_files_and_the_places_of_dprs_download_tool(tmp_path):
  (tmp_path / f'{TRAIN}.gz').write_bytes(
      gzip.compress((ROOT / TRAIN).read_bytes())
  )
  (tmp_path / f'{CORPUS}.gz').write_bytes(
      gzip.compress((ROOT / CORPUS).read_bytes())
  )
  folder = tmp_path / 'data' / 'retriever' / 'qas'
  folder.mkdir(parents=True)
  (folder / 'nq-test.csv').write_bytes((ROOT / 'nq-test.qa.csv').read_bytes())

  def plain(rows):
    return [row | {'location': ''} for row in rows]

  for split in ('train', 'corpus', 'test'):
    assert plain(read(split, tmp_path)) == plain(read(split))
  reader = OpenNQ(root=str(tmp_path))
  assert reader.splits() == ('train', 'test', 'corpus')
  assert reader.fingerprint('test') == OpenNQ(str(ROOT)).fingerprint('test')
  assert reader.fingerprint('train') != OpenNQ(str(ROOT)).fingerprint('train')


def test_as_a_task(tmp_path):
  (tmp_path / 'open_nq').symlink_to(ROOT)
  task = OpenNQ(data_root=str(tmp_path))
  assert task.splits() == (
      'train',
      'validation',
      'validation_questions',
      'test',
      'corpus',
  )
  assert task.corpus_split('train') is None
  for split in ('validation', 'validation_questions', 'test'):
    assert task.corpus_split(split) == 'corpus'
  assert len(list(task.examples('corpus'))) == 12
  assert task.answer_text('Tarn In Tarn.', 'Tarn') == ' In Tarn.'
  assert Pairs().answer_text('Tarn In Tarn.', 'Tarn') == 'Tarn In Tarn.'


def test_missing_files(tmp_path):
  with pytest.raises(SourceUnavailable, match='DATA_ROOT.*4.7 GB'):
    OpenNQ().check_split('corpus')
  with pytest.raises(
      SourceUnavailable, match='psgs_w100.tsv.gz.*https://.*21,015,324'
  ):
    OpenNQ(data_root=str(tmp_path)).check_split('corpus')
  with pytest.raises(UserError, match="no split 'dev'.*Splits: train"):
    OpenNQ(root=str(ROOT)).check_split('dev')
  assert len(OpenNQ(root=str(tmp_path)).splits()) == 5


@pytest.mark.parametrize(
    'options, message',
    [
        ({'positives': 'frist'}, "positives is 'frist'.*Did you mean 'first'"),
        ({'negatives': 'negative_ctxs'}, "negatives is 'negative_ctxs'"),
        ({'negatives': ('hard',)}, "negatives is .'hard',."),
        ({'max_negatives': -1}, 'max_negatives is -1'),
        ({'strict': 0}, 'is 0; expected True or False'),
    ],
)
def test_bad_options(options, message):
  with pytest.raises(UserError, match=message):
    OpenNQ(**options)


@pytest.mark.parametrize(
    'row, message',
    [
        ('text', 'not a JSON object'),
        (question(question=' '), "'question' is empty"),
        (question(question=None), "'question' holds NoneType"),
        (question(answers='a'), "'answers' is not a list of strings"),
        (question(answers=[1]), "'answers' is not a list of strings"),
        (question(positive_ctxs='p'), "'positive_ctxs' is not a list of obj"),
        (question(hard_negative_ctxs=['n']), "'hard_negative_ctxs' is not a"),
        (question(positive_ctxs=[{'title': 'T'}]), "'text' is missing"),
        (question(positive_ctxs=[context(' ')]), "'text' is empty"),
        (
            question(positive_ctxs=[context('p', passage_id=[1])]),
            "'passage_id' is neither",
        ),
    ],
)
def test_bad_rows_of_json(tmp_path, caplog, row, message):
  path = write_rows(tmp_path, question(), row, question())
  with pytest.raises(UserError, match=f'{path}:2: .*{message}'):
    read('train', tmp_path)
  with caplog.at_level(logging.WARNING):
    rows = read('train', tmp_path, strict=False)
  assert [r['location'] for r in rows] == [f'{path}:1', f'{path}:3']
  assert 'skipped 1 bad rows of 3' in caplog.text


def test_a_positive_in_negatives_is_dropped_there(tmp_path, caplog):
  write_rows(
      tmp_path,
      question(
          positive_ctxs=[context('p'), context('second')],
          hard_negative_ctxs=[context('second'), context('n')],
      ),
  )
  with pytest.raises(UserError, match=':1: a positive passage is among'):
    read('train', tmp_path)
  with caplog.at_level(logging.INFO):
    (row,) = read('train', tmp_path, strict=False)
  assert row['negatives'] == ['T n']
  assert 'left out 1 negatives' in caplog.text


@pytest.mark.parametrize(
    'line, message',
    [
        (b'2\ttext', '2 columns, expected 3 .id, text, title'),
        (b'2\t"text without an end\ttitle', '2 columns, expected 3'),
        (b'\ttext\ttitle', "'id' is empty"),
        (b'2\t\xff\ttitle', 'not UTF-8'),
    ],
)
def test_bad_rows_of_the_corpus(tmp_path, line, message):
  data = b'id\ttext\ttitle\n1\tone\tT\n' + line + b'\n'
  (tmp_path / CORPUS).write_bytes(data)
  with pytest.raises(UserError, match=f'psgs_w100.tsv:3: {message}'):
    read('corpus', tmp_path)
  (row,) = read('corpus', tmp_path, strict=False)
  assert row['passage'] == 'T one'


@pytest.mark.parametrize(
    'line, message',
    [
        ('question only', '1 columns, expected 2 .question, answers'),
        ("q\t['a'", "'answers' is not a list of strings"),
        ('q\ta', "'answers' is not a list of strings"),
        ("q\t__import__('os')", "'answers' is not a list of strings"),
        ("q\t('a',)", "'answers' is not a list of strings"),
        ("q\t['a', 1]", "'answers' is not a list of strings"),
        ("\t['a']", "'question' is empty"),
    ],
)
def test_bad_questions(tmp_path, line, message):
  (tmp_path / 'nq-test.qa.csv').write_text(f"q\t['a']\n{line}\n")
  with pytest.raises(UserError, match=f'nq-test.qa.csv:2: {message}'):
    read('test', tmp_path)


@pytest.mark.parametrize('block', [1, 2, 3, 7, 64, 2**20])
def test_an_array_in_blocks_of_any_size(tmp_path, block):
  path = tmp_path / 'a.json'
  values = [
      {'a': [1, {'b': 'ö"\\\u2028]},{'}]},
      12345,
      -0.25e-3,
      True,
      None,
      'text',
      [],
      {},
  ]
  for text in (
      json.dumps(values),
      json.dumps(values, indent=2, ensure_ascii=False) + '\n\n',
      '\ufeff' + json.dumps(values, separators=(',', ':')),
  ):
    path.write_text(text, encoding='utf-8')
    assert list(json_array.elements(path, block)) == list(enumerate(values, 1))
  path.write_text(' [ ] ')
  assert list(json_array.elements(path)) == []


@pytest.mark.parametrize(
    'text, message',
    [
        ('', "after 0 elements: expected '\\[', found ''"),
        ('{"a": 1}', "after 0 elements: expected '\\[', found '{'"),
        ('[{}, {"a": 1', 'after 1 elements: not JSON'),
        ('[{}, ', 'after 1 elements: not JSON'),
        ('[{}', "after 1 elements: expected ',' or '\\]', found ''"),
        ('[{} {}]', "after 1 elements: expected ',' or '\\]', found '{'"),
        ('[{}, {a: 1}]', 'after 1 elements: not JSON'),
        ('[{}] 1', 'after 1 elements: expected nothing after the array'),
    ],
)
def test_what_is_not_an_array(tmp_path, text, message):
  path = tmp_path / 'a.json'
  path.write_text(text)
  with pytest.raises(UserError, match=f'a.json, {message}'):
    list(json_array.elements(path))


def test_a_damaged_array(tmp_path):
  good = json.dumps([question() for _ in range(1000)]).encode()
  path = tmp_path / f'{TRAIN}.gz'
  path.write_bytes(gzip.compress(good)[:-20])
  with pytest.raises(UserError, match='a damaged gzip file'):
    read('train', tmp_path)
  path.write_bytes(good)
  with pytest.raises(UserError, match='a damaged gzip file: Not a gzipped'):
    read('train', tmp_path)
  path.unlink()
  (tmp_path / TRAIN).write_bytes(good.replace(b'"a"', b'"\xff"'))
  with pytest.raises(UserError, match='not UTF-8'):
    read('train', tmp_path)


def test_memory_does_not_grow_with_the_array(tmp_path):
  text = json.dumps(question(question='q' * 5000))
  path = tmp_path / TRAIN
  path.write_text('[' + ','.join([text] * 1000) + ']')
  assert path.stat().st_size > 5_000_000
  tracemalloc.start()
  count = sum(1 for _ in json_array.elements(path, 2**14))
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert count == 1000
  assert peak < 500_000


def test_garbage_is_not_read_to_its_end(tmp_path):
  path = tmp_path / TRAIN
  path.write_text('[{"a": tru, ' + 'x' * 3_000_000)
  tracemalloc.start()
  with pytest.raises(UserError, match='not JSON'):
    list(json_array.elements(path, 2**10, 2**12))
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 500_000
