"""Pseudo labels through the command, against plain loops."""

import json
import math

import numpy as np
import pytest
import tiny_beir
import tiny_run

from dualenc_jax.commands import cli, label, train
from dualenc_jax.errors import UserError

QUERIES, PASSAGES = 8, 24


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
  """A training set, a run over it, and logits of all of its pairs."""
  folder = tmp_path_factory.mktemp('label')
  made = tiny_beir.make(5, passages=PASSAGES, queries=QUERIES)
  made.write(folder / 'beir', 'train')
  rng = np.random.default_rng(0)
  run, scores, lines = {}, {}, []
  for query in made.queries:
    names = rng.permutation(sorted(made.corpus))[: rng.integers(9, PASSAGES)]
    run[query] = names.tolist()
    lines += [
        f'{query} Q0 {name} 0 {50 - i} x\n' for i, name in enumerate(names)
    ]
    scores[query] = {p: round(3 * rng.normal(), 3) for p in made.corpus}
  (folder / 'run.trec').write_text(''.join(lines))
  write_scores(folder / 'scores.tsv', scores)
  return folder, made, run, scores


def write_scores(path, scores):
  path.write_text(''.join(
      f'{q}\t{p}\t{score}\n' for q in scores for p, score in scores[q].items()
  ))


def flags(tiny, output, *more):
  folder = tiny[0]
  return [
      'label',
      '--tasks=beir',
      f'--gin.BEIR_FOLDER={folder / "beir"}',
      f'--run={folder / "run.trec"}',
      f'--teacher={folder / "scores.tsv"}',
      '--calibration=1,0',
      f'--output_dir={output}',
      *more,
  ]


def read(folder):
  rows = map(json.loads, (folder / 'pairs.jsonl').read_text().splitlines())
  return {row['query_id']: row for row in rows}


def sigmoid(x):
  return 1 / (1 + math.exp(-x))


def pool_of(tiny, query, gold):
  """Candidates that are no known positive, each text once, in order."""
  _, made, run, scores = tiny
  texts, pool = {made.corpus[p] for p in gold}, []
  for passage in run[query]:
    if made.corpus[passage] not in texts:
      texts.add(made.corpus[passage])
      pool.append(passage)
  return pool


def gold_of(made, query):
  return sorted(
      (p for p, grade in made.qrels[query].items() if grade > 0),
      key=[*made.corpus].index,
  )


@pytest.mark.parametrize(
    'more, above, below, positives, count, chance',
    [
        ([], 0.9, 0.1, 'best', 4, sigmoid),
        (['--positives=all', '--num_negatives=2'], 0.9, 0.1, 'all', 2, sigmoid),
        (['--positives=none'], 0.9, 0.1, 'none', 4, sigmoid),
        (['--above=0.6', '--below=0.4'], 0.6, 0.4, 'best', 4, sigmoid),
        (['--calibration=0.5,-1', '--above=0.6'], 0.6, 0.1, 'best', 4,
         lambda s: sigmoid(0.5 * s - 1)),
        (['--prior=4:1'], 0.9, 0.1, 'best', 4,
         lambda s: sigmoid(s + math.log(4))),
    ],
)
def test_of_labelled_queries(
    tiny, tmp_path, more, above, below, positives, count, chance
):
  cli.main(flags(tiny, tmp_path, *more))
  found = read(tmp_path)
  _, made, _, scores = tiny
  assert found.keys() == made.qrels.keys()
  some = 0
  for query, row in found.items():
    gold = gold_of(made, query)
    pool = pool_of(tiny, query, gold)
    p = {passage: chance(scores[query][passage]) for passage in made.corpus}
    pseudo = [c for c in pool if p[c] > above]
    if positives == 'best':
      pseudo = sorted(pseudo, key=p.get)[-1:]
    if positives == 'none':
      pseudo = []
    some += len(pseudo)
    negatives = [c for c in pool if p[c] < below][:count]
    assert row['passage_id'] == gold + pseudo
    assert row['passage'] == [made.corpus[c] for c in gold + pseudo]
    origins = ['labelled'] * len(gold) + ['pseudo'] * len(pseudo)
    assert row['origin'] == origins
    assert row['negatives'] == [made.corpus[c] for c in negatives]
    for name, own in (('positive', gold + pseudo), ('negative', negatives)):
      assert row[f'{name}_scores'] == pytest.approx(
          [scores[query][c] for c in own], rel=1e-6
      )
      assert row[f'{name}_probabilities'] == pytest.approx(
          [p[c] for c in own], rel=1e-5
      )
  assert bool(some) == (positives != 'none')


def test_thresholds_are_strict(tiny, tmp_path):
  """What is at a threshold is neither positive nor negative."""
  folder, made, _, scores = tiny
  path = tmp_path / 'scores.tsv'
  both = {
      query: {p: 0.0 for p in own} for query, own in scores.items()
  }
  write_scores(path, both)
  out = tmp_path / 'out'
  asked = flags(tiny, out, f'--teacher={path}')
  for more in (['--above=0.5', '--below=0.1'], ['--above=0.9', '--below=0.5']):
    cli.main([*asked, *more])
    for row in read(out).values():
      assert 'pseudo' not in row['origin'] and not row['negatives']


def test_of_queries_without_labels(tiny, tmp_path, capsys):
  folder, made, run, scores = tiny
  path = tmp_path / 'queries.tsv'
  texts = [*made.queries.items()]
  # One of them is asked twice.
  texts.append(('again', texts[0][1]))
  path.write_text(''.join(f'{q}\t{t}\n' for q, t in texts))
  truth = tmp_path / 'truth.tsv'
  truth.write_text('query-id\tcorpus-id\tscore\n' + ''.join(
      f'{q}\t{p}\t{g}\n'
      for q, grades in made.qrels.items()
      for p, g in grades.items()
      if g > 0
  ))
  out = tmp_path / 'out'
  cli.main(flags(
      tiny, out, f'--queries={path}', f'--truth={truth}', '--above=0.8',
  ))
  found, right, wrong = read(out), [], []
  for query in made.queries:
    pool = pool_of(tiny, query, [])
    p = {c: sigmoid(scores[query][c]) for c in pool}
    best = max(pool, key=p.get)
    negatives = [c for c in pool if p[c] < 0.1][:4]
    gold = gold_of(made, query)
    if p[best] > 0.8 and negatives:
      right.append(best in gold)
      wrong += [c in gold for c in negatives]
    # Nothing is left of a query without either.
    assert (query in found) == bool(p[best] > 0.8 and negatives)
    if query in found:
      assert found[query]['passage_id'] == [best]
      assert found[query]['origin'] == ['pseudo']
  assert found and right and wrong
  report = (out / 'report.md').read_text()
  row = (
      f'| 0.8 / 0.1 | {len(right) / QUERIES:.1%} | {np.mean(right):.1%} |'
      f' {1 - np.mean(wrong):.1%} | {len(right)}, {len(wrong)} |'
  )
  said = capsys.readouterr()
  assert row in report and row in said.out
  assert f'1 of {QUERIES + 1} queries have the text of an earlier' in said.err
  counts = json.loads((out / 'labels.json').read_text())['counts']
  assert counts['queries'] == QUERIES
  assert counts['queries_written'] == len(found)
  # The curve holds every candidate once.
  lines = report.partition('## Reliability')[2].splitlines()
  cells = [line.split('|') for line in lines if line.startswith('| 0.')]
  assert sum(int(c[2].replace(',', '')) for c in cells) == sum(
      len(pool_of(tiny, q, [])) for q in made.queries
  )


def test_bad_rows_of_queries(tiny, tmp_path):
  _, made, _, _ = tiny
  path = tmp_path / 'queries.jsonl'
  rows = [{'_id': q, 'text': text} for q, text in made.queries.items()]
  rows.append({'text': 'without an id'})
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  asked = flags(tiny, tmp_path / 'out', f'--queries={path}', '--above=0.6')[1:]
  message = rf'queries.jsonl:{QUERIES + 1}: .*--skip_bad_rows'
  with pytest.raises(UserError, match=message):
    label.main(asked)
  label.main([*asked, '--skip_bad_rows'])
  counts = json.loads((tmp_path / 'out/labels.json').read_text())['counts']
  assert counts['queries'] == QUERIES


def test_what_is_not_judged_counts_for_nothing(tiny, tmp_path):
  """Of graded judgements; the others are unknown."""
  folder, made, _, scores = tiny
  path = tmp_path / 'queries.tsv'
  path.write_text(''.join(f'{q}\t{t}\n' for q, t in made.queries.items()))
  truth = tmp_path / 'truth.txt'
  truth.write_text(''.join(
      f'{q} 0 {p} {max(g, 0)}\n'
      for q, grades in made.qrels.items()
      for p, g in grades.items()
  ))
  out = tmp_path / 'out'
  cli.main(flags(
      tiny, out, f'--queries={path}', f'--truth={truth}', '--truth_grade=2',
  ))
  judged = sum(
      c in made.qrels[q] for q in made.queries for c in pool_of(tiny, q, [])
  )
  lines = (out / 'report.md').read_text().partition('## Reliab')[2].splitlines()
  cells = [line.split('|') for line in lines if line.startswith('| 0.')]
  assert sum(int(c[2]) for c in cells) == judged > 0


def test_queries_of_evaluation_splits_are_left_out(tiny, tmp_path):
  folder, made, _, _ = tiny
  (folder / 'beir/qrels/test.tsv').write_text(
      'query-id\tcorpus-id\tscore\nq1\td1\t1\nq3\td1\t1\n'
  )
  try:
    cli.main(flags(tiny, tmp_path))
  finally:
    (folder / 'beir/qrels/test.tsv').unlink()
  assert read(tmp_path).keys() == made.qrels.keys() - {'q1', 'q3'}
  counts = json.loads((tmp_path / 'labels.json').read_text())['counts']
  assert counts['queries_of_evaluation_splits'] == 2


@pytest.mark.parametrize('split', ['train', 'test'])
def test_evaluation_queries_without_labels_are_left_out(
    tiny, tmp_path, split
):
  """Whatever split lends its corpus."""
  folder, made, _, _ = tiny
  path = tmp_path / 'queries.tsv'
  path.write_text(''.join(f'{q}\t{t}\n' for q, t in made.queries.items()))
  test = folder / 'beir/qrels/test.tsv'
  test.write_text('query-id\tcorpus-id\tscore\nq1\td1\t1\nq3\td1\t1\n')
  try:
    cli.main(flags(tiny, tmp_path, f'--queries={path}', f'--split={split}'))
  finally:
    test.unlink()
  counts = json.loads((tmp_path / 'labels.json').read_text())['counts']
  assert counts['queries_of_evaluation_splits'] == 2
  assert not {'q1', 'q3'} & read(tmp_path).keys()


@pytest.mark.slow
def test_by_a_cross_encoder_with_its_calibration(tmp_path):
  """And what it labels is trained on."""
  teacher = tmp_path / 'teacher'
  train.main([
      *tiny_run.flags(
          tmp_path,
          '--gin_file=architectures/cross_encoder.gin',
          '--gin.PAIR_LENGTH=48',
          '--gin.STEPS=30',
          '--gin.EVAL_EVERY=30',
          '--gin.LEARNING_RATE=1e-2',
      ),
      f'--model_dir={teacher}',
  ])
  out = tmp_path / 'out'
  files = [tmp_path / 'train.jsonl', tmp_path / 'test.jsonl']
  assert cli.main([
      'label', '--bm25', f'--teacher={teacher}', f'--output_dir={out}',
      '--above=0.5', '--below=0.4', *map(str, files),
      '--gin.VOCABULARY=python_code_8k',
  ]) == 0
  facts = json.loads((teacher / 'calibration.json').read_text())
  rows = read(out)
  for row in rows.values():
    for name in ('positive', 'negative'):
      logits = facts['slope'] * np.array(row[f'{name}_scores'])
      np.testing.assert_allclose(
          row[f'{name}_probabilities'],
          1 / (1 + np.exp(-logits - facts['intercept'])),
          rtol=1e-6,
      )
    assert all(p < 0.4 for p in row['negative_probabilities'])
  train.main([
      *tiny_run.flags(tmp_path, '--gin_file=losses/distill.gin'),
      f'--gin.TRAIN_FILE={out / "pairs.jsonl"}',
      '--gin.POSITIVE_SCORES_COLUMN=positive_scores',
      '--gin.NEGATIVE_SCORES_COLUMN=negative_scores',
      '--gin.NUM_NEGATIVES=2',
      f'--model_dir={tmp_path / "student"}',
  ])


@pytest.mark.parametrize(
    'more, message',
    [
        (['--above=0.1', '--below=0.9'], 'The thresholds are 0.1 and 0.9'),
        (['--above=9'], 'expected probabilities'),
        (['--calibration=one'], "--calibration is 'one'; expected two numbers"),
        (['--prior=4'], "--prior is '4'; expected two numbers sep"),
        (['--prior=0:1'], '--prior is 0:1; expected two numbers above 0'),
        (['--truth=nowhere.txt'], 'nowhere.txt cannot be read'),
        (['--queries=nowhere.tsv'], 'nowhere.tsv'),
        (['--run='], 'Nothing to search with'),
        (['--calibration=-1,0'], 'expected a slope above 0'),
        (['--queries=x.tsv', '--positives=none'], 'leave out --positives=none'),
    ],
)
def test_what_cannot_be(tiny, tmp_path, more, message):
  with pytest.raises(UserError, match=message):
    label.main(flags(tiny, tmp_path / 'out', *more)[1:])


def test_bad_scores_and_calibrations(tiny, tmp_path):
  folder, made, run, scores = tiny
  out = tmp_path / 'out'
  asked = [f for f in flags(tiny, out)[1:] if 'calibration' not in f]
  with pytest.raises(UserError, match='a file of scores, has no calibration'):
    label.main(asked)
  path = tmp_path / 'few.tsv'
  write_scores(path, {'q0': scores['q0']})
  few = [*asked, '--calibration=1,0', f'--teacher={path}']
  with pytest.raises(UserError, match=r'few.tsv has no score of \d+ of'):
    label.main(few)
  path.write_text('q0\td0\tnan\n')
  with pytest.raises(UserError, match='few.tsv:1: the score is nan'):
    label.main(few)
  # Probabilities where logits are wanted, and the reverse.
  chances = {
      query: {name: sigmoid(score) for name, score in own.items()}
      for query, own in scores.items()
  }
  write_scores(path, chances)
  with pytest.raises(UserError, match='All .* of the teacher are from 0 to 1'):
    label.main(few)
  likely = [*asked, '--calibration=probabilities']
  with pytest.raises(UserError, match='a score is .* expected 0 to 1'):
    label.main(likely)
  label.main([*likely, f'--teacher={path}', '--prior=4:1'])
  found = read(out)
  label.main([*asked, '--calibration=1,0', '--prior=4:1'])
  for query, row in read(out).items():
    assert found[query]['passage_id'] == row['passage_id']
    assert found[query]['negatives'] == row['negatives']
    for name in ('scores', 'probabilities'):
      assert found[query][f'positive_{name}'] == pytest.approx(
          row[f'positive_{name}'], rel=1e-4
      )
  truth = tmp_path / 'other.txt'
  truth.write_text('elsewhere 0 d0 1\n')
  with pytest.raises(UserError, match='judges none of the queries'):
    label.main(flags(tiny, out, f'--truth={truth}')[1:])
