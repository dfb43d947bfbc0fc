"""MRQA's contexts and MultiReQA's candidates, bad ones and those that do not
match."""

import pytest
from reading import DATA, refused, write

from dualenc_jax.data.readers import multireqa, rows
from dualenc_jax.data.readers.multireqa import Question

FOLDER = DATA / 'multireqa'


def row(name, start=0, end=5):
  return {'candidate_id': name, 'response_start': start, 'response_end': end}


class Files:
  """A file of contexts and one of candidates, as they are to be joined."""

  def __init__(self, folder):
    self.contexts = folder / 'contexts.jsonl'
    self.candidates = folder / 'candidates.json'
    self.context_lines, self.candidate_lines = (
        (FOLDER / name).read_text('utf-8').splitlines()
        for name in ('contexts.jsonl', 'candidates.json')
    )

  def join(self, strict=True):
    """Ids of the candidates by line of their context."""
    write(self.contexts, *self.context_lines)
    write(self.candidates, *self.candidate_lines)
    joined = multireqa.join(self.contexts, self.candidates, 'SQuAD', strict)
    return {
        line: [candidate.id.removeprefix('SQuAD_') for candidate in found]
        for line, _, found in joined
    }


@pytest.fixture
def files(tmp_path):
  return Files(tmp_path)


A = ['a1/a2/a3/_0', 'a1/a2/a3/_1', 'a1/a2/a3/_2']
B = ['b2/b1/_0', 'b2/b1/_1', 'b2/b1/_2']
C = ['c1/c2/_0_0', 'c1/c2/_0_1', 'c1/c2/_1_0']


def test_join_in_any_order(files):
  assert files.join() == {2: A, 3: B, 4: C, 5: []}
  files.context_lines[1:] = files.context_lines[:0:-1]
  order = [8, 0, 3, 6, 1, 4, 7, 2, 5]
  files.candidate_lines = [files.candidate_lines[i] for i in order]
  assert files.join() == {2: [], 3: [C[2], C[0], C[1]], 4: B, 5: A}
  files.candidate_lines = []
  assert files.join() == {2: [], 3: [], 4: [], 5: []}


def beyond(lines, number, name, start, end):
  """Candidates of which one, the last of its context, reaches too far."""
  changed = [*lines]
  changed[number] = row(f'SQuAD_{name}', start, end)
  return changed


# What is done to lines of contexts and of candidates; the line of the first bad
# candidate and details; how many are skipped, and why; the join.
MISSING = 'the context is missing'
MISMATCHES = [
    (lambda c, s: (c[:3] + c[4:], s), 7, "no context has 'c1'",
     (3, MISSING), {2: A, 3: B, 4: []}),
    (lambda c, s: ([line.replace('b1', 'b3') for line in c], s), 4,
     "no context has 'b2' and the other questions of its id",
     (3, MISSING), {2: A, 3: [], 4: C, 5: []}),
    (lambda c, s: (c, beyond(s, 7, C[1], 41, 101)), 8,
     'it ends after the context in line 4',
     (1, 'beyond the end of the context'),
     {2: A, 3: B, 4: [C[0], C[2]], 5: []}),
]


@pytest.mark.parametrize('change, line, detail, skipped, joined', MISMATCHES)
def test_mismatches(files, caplog, change, line, detail, skipped, joined):
  files.context_lines, files.candidate_lines = change(
      files.context_lines, files.candidate_lines
  )
  place = f'{files.candidates}:{line}'
  refused(
      files.join, f'{place}: the candidate does not match {files.contexts}',
      detail,
  )
  assert files.join(False) == joined
  count, reason = skipped
  text = f'{files.candidates}: skipped {count} candidates: {count} {reason}'
  assert text in caplog.text
  with rows.collecting() as collected:
    assert files.join() == joined
  assert collected[reason].count == count
  assert collected[reason].places[0] == place


@pytest.mark.parametrize('bad, reason', [
    (row('TriviaQA_a/_0'), "'candidate_id' is not of the form 'SQuAD_<"),
    (row('SQuAD_a/_0', 5, 5), 'are no sentence'),
    (row('SQuAD_a1/_0'), 'first question of the id is of another context'),
])
def test_bad_candidate_lines(files, caplog, bad, reason):
  files.candidate_lines.insert(4, bad)
  refused(files.join, f'{files.candidates}:5: ', reason)
  assert files.join(False) == {2: A, 3: B, 4: C, 5: []}
  assert 'skipped 1 bad rows of 10' in caplog.text


def context(question=(), **changes):
  """A row of MRQA with one question."""
  answers = [{'text': 'Ada', 'char_spans': [[0, 2]]}]
  usual = {'qid': 'q', 'question': 'Who?', 'detected_answers': answers}
  return {'context': 'Ada wrote.', 'qas': [usual | dict(question)]} | changes


def with_spans(spans):
  return context({'detected_answers': [{'char_spans': spans}]})


def read(path, *options):
  return list(multireqa.contexts(path, *options))


def test_contexts():
  found = read(FOLDER / 'contexts.jsonl')
  assert [line for line, _ in found] == [2, 3, 4, 5]
  (_, first), (_, octopus), *_ = found
  assert first.text.startswith('Ada wrote notes.')
  assert first.questions == (
      Question('a1', 'Who wrote notes?', ((0, 3),)),
      Question('a2', 'What ends, who begins?', ((55, 64), (17, 24))),
      Question('a3', 'Which answer is in two sentences?', ((34, 44),)),
  )
  # Characters beyond the basic plane count once.
  texts = [[octopus.text[slice(*span)] for span in question.spans]
           for question in octopus.questions]
  assert texts == [['🐙', '🐙', '🐙', '16'], ['é']]


@pytest.mark.parametrize('row, reason', [
    ({'qas': []}, "column 'context' is missing"),
    (context({'qid': None}), "a question has no 'qid'"),
    *((with_spans([span]), 'not [first, last] characters')
      for span in ([0, 10], [-1, 2], [3, 2], [0, 1.5], [0, 1, 2])),
])
def test_bad_contexts(tmp_path, caplog, row, reason):
  path = write(tmp_path / 'a.jsonl', context(), row, context())
  refused(lambda: read(path), f'{path}:2: ', reason)
  assert [line for line, _ in read(path, False)] == [1, 3]
  assert reason in caplog.text
