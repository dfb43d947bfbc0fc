"""MRQA's files: questions, spans of their answers, every kind of bad line."""

import gzip
import json
import logging
import pathlib

import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.readers import multireqa_join as mrqa

FIXTURE = (
    pathlib.Path(__file__).parents[1] / 'data' / 'multireqa' / 'contexts.jsonl'
)


def context(**changes):
  question = {
      'qid': 'q',
      'question': 'Who?',
      'detected_answers': [{'text': 'Ada', 'char_spans': [[0, 2]]}],
  }
  return {'context': 'Ada wrote.', 'qas': [question]} | changes


def write(path, *rows):
  data = ''.join(json.dumps(row) + '\n' for row in rows).encode()
  path.write_bytes(gzip.compress(data) if path.suffix == '.gz' else data)
  return path


def test_fixture():
  rows = list(mrqa.contexts(FIXTURE))
  assert [line for line, _ in rows] == [2, 3, 4, 5]
  first = rows[0][1]
  assert first.text.startswith('Ada wrote notes.')
  assert first.questions == (
      mrqa.Question('a1', 'Who wrote notes?', ((0, 3),)),
      mrqa.Question('a2', 'What ends, who begins?', ((55, 64), (17, 24))),
      mrqa.Question('a3', 'Which answer is in two sentences?', ((34, 44),)),
  )


def test_spans_count_characters_beyond_the_basic_plane_once():
  octopus = list(mrqa.contexts(FIXTURE))[1][1]
  texts = [
      [octopus.text[start:end] for start, end in question.spans]
      for question in octopus.questions
  ]
  assert texts == [['🐙', '🐙', '🐙', '16'], ['é']]


def test_real_lines(shared):
  """The spans cut out what the file says that the answers are."""
  path = shared / 'data' / 'hardneg_samples' / 'mrqa' / 'NewsQA_sample.jsonl'
  raw = [json.loads(line) for line in path.read_text('utf-8').splitlines()]
  read = [context for _, context in mrqa.contexts(path)]
  assert [len(context.questions) for context in read] == [7, 5, 5]
  for row, found in zip(raw, read, strict=True):
    for qa, question in zip(row['qas'], found.questions, strict=True):
      assert (question.id, question.text) == (qa['qid'], qa['question'])
      expected = {answer['text'] for answer in qa['detected_answers']}
      spans = {found.text[start:end] for start, end in question.spans}
      assert spans == expected


@pytest.mark.parametrize('name', ['a.jsonl', 'a.jsonl.gz'])
def test_header_is_optional_and_id_stands_in_for_qid(tmp_path, name):
  row = context()
  row['qas'][0]['id'] = row['qas'][0].pop('qid')
  for rows in ([row], [{'header': {'dataset': 'SQuAD'}}, row]):
    (_, found), = mrqa.contexts(write(tmp_path / name, *rows))
    assert found.questions == (mrqa.Question('q', 'Who?', ((0, 3),)),)


def with_question(**changes):
  row = context()
  row['qas'][0].update(changes)
  return row


def with_span(*span):
  return with_question(detected_answers=[{'char_spans': [list(span)]}])


@pytest.mark.parametrize(
    'row, reason',
    [
        ({'qas': []}, "column 'context' is missing"),
        (context(context=' '), "'context' is empty"),
        (context(qas=None), "'qas' is missing or not a list"),
        (context(qas=['q']), "'qas' is not a list of objects"),
        (with_question(qid=None), "a question has no 'qid'"),
        (with_question(qid=1.5), "'qid' is neither a string nor an integer"),
        (with_question(question=''), "'question' is empty"),
        (with_question(detected_answers=None), "'detected_answers' is missing"),
        (
            with_question(detected_answers=[{'char_spans': 'no'}]),
            "'char_spans' is missing or not a list",
        ),
        (with_span(0, 10), 'not [first, last] characters'),
        (with_span(-1, 2), 'not [first, last] characters'),
        (with_span(3, 2), 'not [first, last] characters'),
        (with_span(0, 1.5), 'not [first, last] characters'),
        (with_span(0, 1, 2), 'not [first, last] characters'),
    ],
)
def test_bad_lines(tmp_path, caplog, row, reason):
  path = write(tmp_path / 'a.jsonl', context(), row, context())
  with pytest.raises(UserError) as error:
    list(mrqa.contexts(path))
  assert f'{path}:2: ' in str(error.value) and reason in str(error.value)
  with caplog.at_level(logging.WARNING):
    assert [line for line, _ in mrqa.contexts(path, False)] == [1, 3]
  assert reason in caplog.text


def test_the_last_character_can_be_an_answer(tmp_path):
  path = write(tmp_path / 'a.jsonl', with_span(9, 9))
  (_, found), = mrqa.contexts(path)
  assert found.questions[0].spans == ((9, 10),)


def test_truncated_gzip(tmp_path):
  path = write(tmp_path / 'a.jsonl.gz', *[context()] * 100)
  path.write_bytes(path.read_bytes()[:-20])
  with pytest.raises(UserError, match='a.jsonl.gz is a damaged gzip file'):
    list(mrqa.contexts(path))
