"""Candidates that do not match their contexts, and bad candidate files."""

import json
import logging
import pathlib

import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.readers import multireqa_join, rows
from dualenc_jax.readers.multireqa_join import Candidate, Candidates

FIXTURES = pathlib.Path(__file__).parents[1] / 'data' / 'multireqa'


def lines(name):
  return (FIXTURES / name).read_text('utf-8').splitlines()


def write(path, rows):
  path.write_text(''.join(row + '\n' for row in rows), 'utf-8')
  return path


def row(name, start=0, end=5):
  return json.dumps(
      {'candidate_id': name, 'response_start': start, 'response_end': end}
  )


class Files:
  """A file of contexts and one of candidates, as they are to be joined."""

  def __init__(self, folder):
    self.contexts = folder / 'contexts.jsonl'
    self.candidates = folder / 'candidates.json'
    self.context_lines = lines('contexts.jsonl')
    self.candidate_lines = lines('candidates.json')

  def join(self, strict=True):
    """Ids of the candidates by line of their context."""
    write(self.contexts, self.context_lines)
    write(self.candidates, self.candidate_lines)
    found = multireqa_join.join(
        self.contexts,
        Candidates(self.candidates, 'SQuAD', strict),
        strict,
    )
    return {
        line: [candidate.id.removeprefix('SQuAD_') for candidate in candidates]
        for line, _, candidates in found
    }


@pytest.fixture
def files(tmp_path):
  return Files(tmp_path)


A = ['a1/a2/a3/_0', 'a1/a2/a3/_1', 'a1/a2/a3/_2']
B = ['b2/b1/_0', 'b2/b1/_1', 'b2/b1/_2']
C = ['c1/c2/_0_0', 'c1/c2/_0_1', 'c1/c2/_1_0']


def test_join(files):
  assert files.join() == {2: A, 3: B, 4: C, 5: []}


def test_order_of_the_files_does_not_matter(files):
  files.context_lines[1:] = files.context_lines[:0:-1]
  order = [8, 0, 3, 6, 1, 4, 7, 2, 5]
  files.candidate_lines = [files.candidate_lines[i] for i in order]
  assert files.join() == {2: [], 3: [C[2], C[0], C[1]], 4: B, 5: A}


def test_candidates_by_context():
  candidates = Candidates(FIXTURES / 'candidates.json', 'SQuAD')
  assert len(candidates) == 9 and [*candidates] == ['a1', 'b2', 'c1']
  assert 'a2' not in candidates and 'd1' not in candidates
  assert candidates.questions('b2') == ['b2', 'b1']
  assert candidates.of('c1') == [
      Candidate('SQuAD_c1/c2/_0_0', 25, 40, 7),
      Candidate('SQuAD_c1/c2/_0_1', 41, 61, 8),
      Candidate('SQuAD_c1/c2/_1_0', 85, 100, 9),
  ]


def absent(files):
  del files.context_lines[3]


def other_questions(files):
  files.context_lines[2] = files.context_lines[2].replace('b1', 'b3')


def twice(files):
  files.context_lines.append(files.context_lines[3])


def beyond(files):
  files.candidate_lines[7] = row('SQuAD_c1/c2/_0_1', 41, 101)


def repeated(files):
  files.candidate_lines.append(files.candidate_lines[3])


# What is done, line of the first candidate that is told, its id, details of
# the message, reason and number of candidates when they are skipped, the join.
MISMATCHES = [
    (
        absent,
        7,
        'SQuAD_c1/c2/_0_0',
        "there is no question 'c1'",
        (3, 'the context is not there'),
        {2: A, 3: B, 4: []},
    ),
    (
        other_questions,
        4,
        'SQuAD_b2/b1/_0',
        "line 3 has question 'b2' of it, not question 'b1'",
        (3, 'the context has other questions'),
        {2: A, 3: [], 4: C, 5: []},
    ),
    (
        twice,
        7,
        'SQuAD_c1/c2/_0_0',
        "question 'c1' is in lines 4 and 6",
        (3, 'the context is there twice'),
        {2: A, 3: B, 4: C, 5: [], 6: []},
    ),
    (
        beyond,
        8,
        'SQuAD_c1/c2/_0_1',
        'it ends at character 101, its context in line 4 at 100',
        (1, 'beyond the end of the context'),
        {2: A, 3: B, 4: [C[0], C[2]], 5: []},
    ),
    (
        repeated,
        10,
        'SQuAD_b2/b1/_0',
        'its id is in line 4, too',
        (1, 'the candidate is there twice'),
        {2: A, 3: B, 4: C, 5: []},
    ),
]


@pytest.mark.parametrize(
    'change, line, name, detail, skipped, joined',
    MISMATCHES,
    ids=[change.__name__ for change, *_ in MISMATCHES],
)
def test_mismatches(files, caplog, change, line, name, detail, skipped, joined):
  change(files)
  with pytest.raises(UserError) as error:
    files.join()
  assert str(error.value).startswith(
      f'{files.candidates}:{line}: candidate {name!r} does not match'
      f' {files.contexts}: {detail}.'
  )
  assert files.join(False) == joined
  count, reason = skipped
  total = len(files.candidate_lines)
  assert (
      f'{files.candidates}: skipped {count} candidates of {total}'
      f' that do not match {files.contexts}: {count} {reason}'
  ) in caplog.text
  with rows.collecting() as collected:
    assert files.join() == joined
  assert collected[reason].count == count
  assert collected[reason].places[0] == f'{files.candidates}:{line}'


def test_only_the_last_character_short_is_beyond(files):
  files.candidate_lines[2] = row('SQuAD_a1/a2/a3/_2', 42, 65)
  with pytest.raises(UserError, match='ends at character 65.*line 2 at 64'):
    files.join()


def test_long_ids_are_told_by_their_ends(files):
  questions = '/'.join(f'{i:032x}' for i in range(30))
  files.candidate_lines.append(row(f'SQuAD_{questions}/_7'))
  with pytest.raises(UserError) as error:
    files.join()
  assert f"'SQuAD_{'0' * 32}/" in str(error.value)
  assert "1d/_7' does not match" in str(error.value)
  assert len(str(error.value)) < 800


@pytest.mark.parametrize(
    'bad, reason',
    [
        (row('TriviaQA_a/_0'), "'candidate_id' is not of the form 'SQuAD_<"),
        (row('SQuAD_a'), "'candidate_id' is not of the form"),
        (row('SQuAD_/_0'), "'candidate_id' is not of the form"),
        (row('SQuAD_a//b/_0'), "'candidate_id' is not of the form"),
        (row('SQuAD_a/0'), "'candidate_id' is not of the form"),
        (row('SQuAD_a/_0_'), "'candidate_id' is not of the form"),
        (row(None), "'candidate_id' holds NoneType"),
        (row('SQuAD_a/_0', 5, 5), 'are not offsets of a sentence'),
        (row('SQuAD_a/_0', -1, 5), 'are not offsets of a sentence'),
        (row('SQuAD_a/_0', 0, True), 'are not offsets of a sentence'),
        (row('SQuAD_a/_0', 0, '5'), 'are not offsets of a sentence'),
        (row('SQuAD_a/_0', 0, 2**31), 'are not offsets of a sentence'),
        (row('SQuAD_a1/_0'), 'first question of the id is of another context'),
        ('{"candidate_id": "SQuAD_a/_0"}', 'are not offsets of a sentence'),
        ('SQuAD_a/_0', 'not JSON'),
    ],
)
def test_bad_candidate_lines(files, caplog, bad, reason):
  files.candidate_lines.insert(4, bad)
  with pytest.raises(UserError) as error:
    files.join()
  assert f'{files.candidates}:5: ' in str(error.value)
  assert reason in str(error.value)
  with caplog.at_level(logging.WARNING):
    assert files.join(False) == {2: A, 3: B, 4: C, 5: []}
  assert 'skipped 1 bad rows of 10' in caplog.text


def test_a_skipped_context_takes_its_candidates_along(files, caplog):
  files.context_lines[2] = '{"context": 7}'
  assert files.join(False) == {2: A, 4: C, 5: []}
  assert 'skipped 3 candidates of 9' in caplog.text


def test_an_empty_file_has_no_candidates(files):
  files.candidate_lines = []
  assert files.join() == {2: [], 3: [], 4: [], 5: []}
