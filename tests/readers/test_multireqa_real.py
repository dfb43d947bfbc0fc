"""The real candidate files, over texts and answers that are made up for them.

MRQA's texts are not at hand: contexts are random characters of the length that
the candidates need, answers are put where the test knows them to be. The join
is compared with one over single characters.
"""

import collections
import gzip
import json
import random

import numpy as np
import pytest
from reading import objects, refused

from dualenc_jax.readers.multireqa import MultiReQA

# Set, folder, candidates, questions in MRQA's file, questions with a positive
# (RelationExtraction's number is not published).
REAL = [
    *(
        pytest.param(*row, marks=pytest.mark.slow)
        for row in (
            ('SQuAD', 'dev', 10_642, 10_507, 10_485),
            ('NaturalQuestions', 'dev', 22_118, 12_836, 4_131),
        )
    ),
    ('RelationExtraction', 'test', 3_301, 2_948, 2_900),
]
LETTERS = 'abcdefgh .,éß漢字🐙𝒳'
MRQA_NAMES = {'NaturalQuestions': 'NaturalQuestionsShort'}


def read_candidates(path):
  """[(question ids, [(id, start, end)])] of a real file."""
  contexts = collections.defaultdict(list)
  for row in objects(path):
    name = row['candidate_id']
    questions = name[name.index('_') + 1 : name.rindex('/')]
    place = row['response_start'], row['response_end']
    contexts[questions].append((name, *place))
  return [(key.split('/'), found) for key, found in contexts.items()]


def answer_inside(rng, found):
  """A span within a sentence, often at its first or last character."""
  _, start, end = rng.choice(found)
  first = rng.choice([start, rng.randrange(start, end)])
  last = rng.choice([end - 1, rng.randrange(first, end)])
  return [first, last]


def answer_outside(rng, found, length):
  """A span from the last character of a sentence to the next, or after all."""
  _, _, end = rng.choice(found)
  return [end - 1, end] if rng.random() < 0.7 else [length - 2, length - 1]


def make_contexts(rng, contexts, questions, answered):
  """Rows of an MRQA file with so many questions, and their answers' spans."""
  names = [name for names, _ in contexts for name in names]
  lucky = set(rng.sample(names, answered))
  rows, spans = [], {}
  for names, found in contexts:
    length = max(end for _, _, end in found) + rng.randrange(2, 20)
    qas = []
    for name in names:
      answers = [
          answer_outside(rng, found, length) for _ in range(rng.randrange(3))
      ]
      if name in lucky:
        inside = [answer_inside(rng, found) for _ in range(rng.randrange(1, 5))]
        answers += inside * rng.randrange(1, 3)
      rng.shuffle(answers)
      spans[name] = answers
      middle = len(answers) // 2
      parts = answers[:middle], answers[middle:]
      qas.append({
          'qid': name, 'id': f'other {name}', 'question': f'What of {name}?',
          'detected_answers': [{'text': '', 'char_spans': p} for p in parts],
      })
    rng.shuffle(qas)
    text = ''.join(rng.choices(LETTERS, k=length))
    rows.append({'context': text, 'qas': qas})
  for number in range(questions - len(spans)):
    question = {'qid': f'{number}', 'question': '?', 'detected_answers': []}
    rows.append({'context': 'Nothing of this.', 'qas': [question]})
  rng.shuffle(rows)
  return rows, spans


def texts_by_question(rows):
  return {qa['qid']: row['context'] for row in rows for qa in row['qas']}


def pairs_by_characters(contexts, rows, spans):
  """{(question, candidate): sentence}, from the sentence of each character."""
  texts = texts_by_question(rows)
  expected = {}
  for names, found in contexts:
    text = texts[names[0]]
    sentences = np.full(len(text), -1)
    for number, (_, start, end) in enumerate(found):
      assert (sentences[start:end] == -1).all()
      sentences[start:end] = number
    for name in names:
      for first, last in spans[name]:
        (number, *others) = np.unique(sentences[first : last + 1])
        if not others and number >= 0:
          candidate, start, end = found[number]
          expected[name, candidate] = text[start:end]
  return expected


def write(path, rows):
  path.parent.mkdir(parents=True, exist_ok=True)
  with gzip.open(path, 'wt', encoding='utf-8', compresslevel=1) as stream:
    stream.write('{"header": {"dataset": "x", "split": "dev"}}\n')
    for row in rows:
      # Half of the lines with \\u escapes, as MRQA's are.
      stream.write(json.dumps(row, ensure_ascii=len(row['qas']) % 2) + '\n')


@pytest.mark.parametrize('dataset, folder, count, questions, answered', REAL)
def test_real_candidates(
    shared, tmp_path, dataset, folder, count, questions, answered
):
  rng = random.Random(dataset)
  name = f'{folder}/{dataset}/candidates.json.gz'
  source = shared / 'data' / 'multireqa' / name
  contexts = read_candidates(source)
  rows, spans = make_contexts(rng, contexts, questions, answered)
  target = tmp_path / 'multireqa' / name
  target.parent.mkdir(parents=True)
  target.symlink_to(source)
  mrqa = tmp_path / f'mrqa/dev/{MRQA_NAMES.get(dataset, dataset)}.jsonl.gz'
  write(mrqa, rows)

  # All counts are exactly the published ones, or the reader would raise.
  reader = MultiReQA(dataset, root=str(tmp_path), tolerance=0.0)
  split = 'test' if folder == 'test' else 'validation'
  pairs = list(reader.examples(split))
  expected = pairs_by_characters(contexts, rows, spans)
  assert len({question for question, _ in expected}) == answered
  assert len(pairs) == len(expected)
  assert expected == {
      (pair['query_id'], pair['passage_id']): pair['passage'] for pair in pairs
  }
  assert all(pair['query'] == f'What of {pair["query_id"]}?' for pair in pairs)

  corpus = {r['passage_id']: r['passage'] for r in reader.examples('corpus')}
  assert len(corpus) == count
  texts = texts_by_question(rows)
  assert corpus == {
      candidate: texts[names[0]][start:end]
      for names, found in contexts
      for candidate, start, end in found
  }

  write(mrqa, rows[:-1])
  told = refused(lambda: reader.examples(split))
  assert 'published' in told or 'does not match' in told
