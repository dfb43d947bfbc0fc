"""A real file of candidates, over texts and answers that are made up for them.

MRQA's texts are not at hand: contexts are random characters of the length that
the candidates need, and an answer is the whole of a sentence.
"""

import collections
import random

from reading import objects, refused, write

from dualenc_jax.readers.multireqa import MultiReQA

LETTERS = 'abcdefgh .,éß漢字🐙𝒳'


def test_real_candidates(shared, tmp_path):
  # Candidates, questions in MRQA's file, questions with a positive (of this set
  # the last is not published).
  dataset, folder, count = 'RelationExtraction', 'test', 3_301
  questions, answered = 2_948, 2_900
  rng = random.Random(dataset)
  name = f'{folder}/{dataset}/candidates.json.gz'
  contexts = collections.defaultdict(list)
  for row in objects(shared / 'data' / 'multireqa' / name):
    of, _, _ = row['candidate_id'].removeprefix(f'{dataset}_').rpartition('/')
    contexts[of].append(row)
  rows, corpus, positives = [], {}, {}
  for of, found in contexts.items():
    length = max(row['response_end'] for row in found)
    text = ''.join(rng.choices(LETTERS, k=length + rng.randrange(1, 9)))
    qas = []
    for question in of.split('/'):
      row = rng.choice(found)
      span = [row['response_start'], row['response_end'] - 1]
      if len(positives) < answered:
        positives[question, row['candidate_id']] = None
      else:
        span = [length, length]  # After all sentences.
      qas.append({
          'qid': question, 'question': '?',
          'detected_answers': [{'text': '', 'char_spans': [span]}],
      })
    rng.shuffle(qas)
    rows.append({'context': text, 'qas': qas})
    corpus |= {
        row['candidate_id']: text[row['response_start'] : row['response_end']]
        for row in found
    }
  for number in range(questions - sum(len(row['qas']) for row in rows)):
    question = {'qid': f'{number}', 'question': '?', 'detected_answers': []}
    rows.append({'context': 'Nothing of this.', 'qas': [question]})
  rng.shuffle(rows)
  target = tmp_path / 'multireqa' / name
  target.parent.mkdir(parents=True)
  target.symlink_to(shared / 'data' / 'multireqa' / name)
  path = tmp_path / f'mrqa/dev/{dataset}.jsonl.gz'
  path.parent.mkdir(parents=True)
  write(path, {'header': {'dataset': 'x'}}, *rows)

  # All counts are exactly the published ones, or the reader would raise.
  reader = MultiReQA(dataset, root=str(tmp_path), tolerance=0.0)
  pairs = list(reader.examples(folder))
  found = {(pair['query_id'], pair['passage_id']) for pair in pairs}
  assert found == positives.keys() and len(pairs) == answered
  assert all(pair['passage'] == corpus[pair['passage_id']] for pair in pairs)
  found = {r['passage_id']: r['passage'] for r in reader.examples('corpus')}
  assert found == corpus and len(corpus) == count
  write(path, *rows[:-1])
  told = refused(lambda: reader.examples(folder))
  assert 'published' in told or 'does not match' in told
