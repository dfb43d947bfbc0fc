"""Mining through the command, against plain loops over all candidates."""

import json
import pathlib

import numpy as np
import pytest
import tiny_beir
import tiny_run

from dualenc_jax.commands import cli, mine, train
from dualenc_jax.errors import UserError
from dualenc_jax.readers import Beir, Pairs

QUERIES, PASSAGES = 6, 24


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
  """A training set, whose last six passages repeat texts of the first."""
  folder = tmp_path_factory.mktemp('mine')
  made = tiny_beir.make(3, passages=PASSAGES, queries=QUERIES)
  made.write(folder / 'beir', 'train')
  rng = np.random.default_rng(0)
  run = {}
  for query in made.queries:
    # Of any length, and ties.
    names = rng.permutation(sorted(made.corpus))[: rng.integers(9, PASSAGES)]
    scores = np.round(rng.normal(size=len(names)), 1)
    run[query] = dict(zip(names.tolist(), scores.tolist()))
  write_run(folder / 'run.trec', run)
  return folder, made, run


def write_run(path, run):
  path.write_text(''.join(
      f'{query} Q0 {name} 0 {score} x\n'
      for query, hits in run.items()
      for name, score in hits.items()
  ))


def write_scores(path, scores):
  path.write_text(''.join(
      f'{q}\t{p}\t{float(score)!r}\n'
      for q, own in scores.items() for p, score in own.items()
  ))
  return path


def flags(tiny, output, *more):
  return [
      'mine',
      '--tasks=beir',
      f'--gin.BEIR_FOLDER={tiny[0] / "beir"}',
      f'--output_dir={output}',
      *more,
  ]


def by_run(tiny, output, *more):
  return flags(tiny, output, f'--run={tiny[0] / "run.trec"}', *more)


def read(folder):
  """Hard negatives by query id, and rows of pairs by query id."""
  by_id, pairs = (
      [json.loads(line) for line in (folder / name).read_text().splitlines()]
      for name in ('hard-negatives.jsonl', 'pairs.jsonl')
  )
  return {row['qid']: row for row in by_id}, {
      row['query_id']: row for row in pairs
  }


def expected(
    tiny,
    run,
    count=7,
    first=1,
    last=100,
    least=-np.inf,
    most=np.inf,
    limit=lambda lowest: np.inf,
    decide=None,
):
  """Negatives by query, one candidate after the other."""
  _, made, _ = tiny
  found = {}
  for query, hits in run.items():
    gold = [p for p, grade in made.qrels[query].items() if grade > 0]
    scores = decide(query) if decide else hits
    known = [scores[p] for p in gold if p in scores]
    order = sorted(hits, key=lambda p: (np.float32(hits[p]), p), reverse=True)
    texts = {made.corpus[p] for p in gold}
    taken = []
    for rank, passage in enumerate(order, start=1):
      if not first <= rank <= last or made.corpus[passage] in texts:
        continue
      texts.add(made.corpus[passage])
      score = np.float32(scores[passage])
      top = limit(np.float32(min(known))) if known else -np.inf
      if limit(0.0) == np.inf:
        top = np.inf
      if least <= score <= most and score <= top:
        taken.append(passage)
    found[query] = taken[:count]
  return {query: taken for query, taken in found.items() if taken}


@pytest.mark.parametrize(
    'more, rules',
    [
        ([], {}),
        (['--num_negatives=2'], {'count': 2}),
        (['--first_rank=3', '--depth=8'], {'first': 3, 'last': 8}),
        (['--least_score=-0.5', '--most_score=0.7'],
         {'least': np.float32(-0.5), 'most': np.float32(0.7)}),
        (['--margin=0.3'],
         {'limit': lambda lowest: np.float32(lowest) - np.float32(0.3)}),
        (['--relative_margin=0.5'],
         {'limit': lambda lowest: lowest - abs(lowest) * np.float32(0.5)}),
    ],
)
def test_rules(tiny, tmp_path, more, rules):
  cli.main(by_run(tiny, tmp_path, *more))
  by_id, pairs = read(tmp_path)
  _, made, run = tiny
  wanted = expected(tiny, run, **rules)
  assert wanted
  assert {q: row['neg']['run'] for q, row in by_id.items()} == wanted
  # All positives stay, with negatives or without.
  assert pairs.keys() == made.qrels.keys()
  for query, row in pairs.items():
    gold = sorted(p for p, g in made.qrels[query].items() if g > 0)
    assert sorted(row['passage_id']) == gold
    assert row['passage'] == [made.corpus[p] for p in row['passage_id']]
    negatives = [made.corpus[p] for p in wanted.get(query, [])]
    assert row['negatives'] == negatives


def test_counts_add_up(tiny, tmp_path, capsys):
  cli.main(by_run(tiny, tmp_path, '--first_rank=2', '--margin=0.1'))
  counts = json.loads((tmp_path / 'mined.json').read_text())['counts']['run']
  candidates, left = counts.pop('candidates'), counts.pop('left')
  assert candidates == sum(map(len, tiny[2].values()))
  assert candidates - sum(counts.values()) == left > 0
  assert counts['outside of the ranks'] == QUERIES
  assert counts['known positives'] and counts['texts of known positives']
  said = capsys.readouterr().out
  report = (tmp_path / 'report.md').read_text()
  assert f'| left | {left} |' in said and f'| left | {left} |' in report
  assert report.count('  - positive: ') == len(read(tmp_path)[0])


def test_texts_that_readers_take_for_equal_or_none(tmp_path):
  """Space around a text, and nothing else than space."""
  made = tiny_beir.TinySet(
      {
          'd0': 'alpha beta', 'd1': 'alpha beta ', 'd2': '\u2003alpha beta',
          'd3': ' \t', 'd4': '', 'd5': 'alpha gamma', 'd6': 'alpha gamma\n',
      },
      {'q0': 'alpha'},
      {'q0': {'d0': 1}},
  )
  made.write(tmp_path / 'beir', 'train')
  write_run(tmp_path / 'run.trec', {'q0': {f'd{i}': 9.0 - i for i in range(7)}})
  cli.main([
      'mine', '--tasks=beir', f'--gin.BEIR_FOLDER={tmp_path / "beir"}',
      f'--run={tmp_path / "run.trec"}', f'--output_dir={tmp_path / "out"}',
  ])
  by_id, _ = read(tmp_path / 'out')
  assert by_id['q0']['neg'] == {'run': ['d5']}
  pairs = Pairs(train=str(tmp_path / 'out/pairs.jsonl'))
  (row,) = pairs.examples('train')
  assert row['negatives'] == ['alpha gamma']


def test_several_sources_take_turns(tiny, tmp_path):
  folder, made, run = tiny
  other = {
      query: {name: -score for name, score in hits.items()}
      for query, hits in run.items()
  }
  write_run(tmp_path / 'other.trec', other)
  both = f'--run={folder / "run.trec"},{tmp_path / "other.trec"}'
  cli.main(flags(tiny, tmp_path / 'out', both, '--num_negatives=5'))
  lists = [expected(tiny, each, count=99) for each in (run, other)]
  _, pairs = read(tmp_path / 'out')
  for query, row in pairs.items():
    turns, seen = [], set()
    for place in range(PASSAGES):
      for each in lists:
        for passage in each.get(query, [])[place : place + 1]:
          if made.corpus[passage] not in seen:
            seen.add(made.corpus[passage])
            turns.append(made.corpus[passage])
    assert row['negatives'] == turns[:5]


def test_random_ones_are_of_seed_and_query(tiny, tmp_path):
  found = []
  for seed, name in ((1, 'a'), (1, 'b'), (2, 'c')):
    more = ['--sampling=random', f'--seed={seed}', '--num_negatives=3']
    cli.main(by_run(tiny, tmp_path / name, *more))
    found.append((tmp_path / name / 'hard-negatives.jsonl').read_bytes())
  assert found[0] == found[1] != found[2]
  everything = expected(tiny, tiny[2], count=99)
  chosen = read(tmp_path / 'a')[0]
  for query, row in chosen.items():
    taken = row['neg']['run']
    places = [everything[query].index(p) for p in taken]
    assert len(taken) == 3 and places == sorted(places)
  # Of some queries alone the same are taken.
  half = dict(list(tiny[2].items())[::2])
  write_run(tmp_path / 'run.trec', half)
  more = ['--sampling=random', '--seed=1', '--num_negatives=3']
  run = f'--run={tmp_path / "run.trec"}'
  cli.main(flags(tiny, tmp_path / 'half', run, *more))
  assert read(tmp_path / 'half')[0] == {q: chosen[q] for q in half}


@pytest.mark.parametrize('right', [0.0, 9.0, -9.0])
def test_a_teacher_is_told_beside_whom_it_is_to_teach(
    tiny, tmp_path, capsys, right
):
  _, made, run = tiny
  rng = np.random.default_rng(3)
  scores = {
      query: {p: rng.normal() + right * (g.get(p, 0) > 0) for p in made.corpus}
      for query, g in made.qrels.items()
  }
  path = write_scores(tmp_path / 'scores.tsv', scores)
  cli.main(by_run(tiny, tmp_path / 'out', f'--teacher={path}'))
  by_id, pairs = read(tmp_path / 'out')
  firsts = {'teacher': [], 'run': []}
  for query, row in by_id.items():
    own = pairs[query]['passage_id'][0]
    others = [entry['pid'] for entry in row['neg']['run']]
    firsts['teacher'].append(
        all(scores[query][own] > scores[query][other] for other in others)
    )
    # Ties as trec_eval has them, and last what is not ranked.
    hits = run[query]
    order = sorted(hits, key=lambda p: (np.float32(hits[p]), p), reverse=True)
    rank = {p: i for i, p in enumerate(order)}
    firsts['run'].append(
        own in rank and all(rank[own] < rank[other] for other in others)
    )
  wanted = {name: np.mean(values) for name, values in firsts.items()}
  facts = json.loads((tmp_path / 'out' / 'mined.json').read_text())
  assert facts['own_first'] == pytest.approx(wanted)
  assert wanted['teacher'] == (right > 0) if right else 0 < wanted['run'] < 1
  teacher, other = wanted['teacher'], wanted['run']
  report = (tmp_path / 'out' / 'report.md').read_text()
  for text in (capsys.readouterr().out, report):
    assert f'mined ones: teacher {teacher:.1%}, run {other:.1%}.' in text
    assert ('the teacher does not beat run' in text) == (teacher <= other)


def test_scores_of_a_teacher_decide_and_are_written(tiny, tmp_path):
  folder, made, run = tiny
  rng = np.random.default_rng(1)
  scores = {
      query: {p: float(np.float32(rng.normal())) for p in made.corpus}
      for query in made.queries
  }
  path = write_scores(tmp_path / 'scores.tsv', scores)
  out = tmp_path / 'out'
  cli.main(by_run(tiny, out, f'--teacher={path}', '--margin=0.25'))
  # Whom the margin has chosen says nothing of who is better.
  assert 'own_first' not in json.loads((out / 'mined.json').read_text())

  def decide(query):
    return scores[query]

  wanted = expected(
      tiny,
      run,
      limit=lambda lowest: np.float32(lowest) - np.float32(0.25),
      decide=decide,
  )
  by_id, pairs = read(out)
  assert {
      q: [entry['pid'] for entry in row['neg']['run']]
      for q, row in by_id.items()
  } == wanted
  for query, row in pairs.items():
    own = [scores[query][p] for p in row['passage_id']]
    assert row['positive_scores'] == own
    assert row['negative_scores'] == [
        scores[query][p] for p in wanted.get(query, [])
    ]
  # The BEIR reader has the same examples, scores included.
  reader = Beir(
      folder=str(folder / 'beir'),
      hard_negatives=str(out / 'hard-negatives.jsonl'),
      scores=True,
  )
  for example in reader.examples('train'):
    row = pairs[example['query_id']]
    assert example['negatives'] == row['negatives']
    own = row['passage_id'].index(example['passage_id'])
    if row['negatives']:
      assert example['teacher_scores'] == [
          row['positive_scores'][own], *row['negative_scores']
      ]


@pytest.mark.slow
def test_by_a_model_and_by_bm25_and_what_is_trained_on_it(tmp_path, capfd):
  model = tmp_path / 'model'
  train.main([*tiny_run.flags(tmp_path), f'--model_dir={model}'])
  cross = [
      *tiny_run.flags(
          tmp_path,
          '--gin_file=architectures/cross_encoder.gin',
          '--gin.PAIR_LENGTH=48',
      ),
      f'--model_dir={tmp_path / "teacher"}',
  ]
  train.main(cross)
  out = tmp_path / 'out'
  asked = [
      'mine', f'--model_dir={model}', '--bm25', '--depth=20',
      '--num_negatives=4', f'--teacher={tmp_path / "teacher"}',
      f'--output_dir={out}',
  ]
  cli.main(asked)
  by_id, pairs = read(out)
  sources = {name for row in by_id.values() for name in row['neg']}
  assert sources == {'model', 'bm25'}
  # Every pair is kept; questions of one text are one query.
  lines = (tmp_path / 'train.jsonl').read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  positives = {}
  for row in rows:
    positives.setdefault(row['query'], set()).add(row['passage'])
  assert {row['query']: {*row['passage']} for row in pairs.values()} == (
      positives
  )
  for row in pairs.values():
    assert len(row['negatives']) == 4
    assert not {*row['negatives']} & positives[row['query']]
  # Computed once: a second run reads the scores.
  before = {
      name: (out / name).read_bytes()
      for name in ('pairs.jsonl', 'hard-negatives.jsonl', 'scores.tsv')
  }
  cli.main(asked)
  assert before == {name: (out / name).read_bytes() for name in before}
  capfd.readouterr()
  cli.main([
      'train',
      *tiny_run.flags(tmp_path, '--gin_file=losses/distill.gin'),
      f'--gin.TRAIN_FILE={out / "pairs.jsonl"}',
      '--gin.POSITIVE_SCORES_COLUMN=positive_scores',
      '--gin.NEGATIVE_SCORES_COLUMN=negative_scores',
      '--gin.NUM_NEGATIVES=4',
      f'--model_dir={tmp_path / "student"}',
  ])
  metrics = (tmp_path / 'student' / 'metrics.jsonl').read_text()
  last = json.loads(metrics.splitlines()[-1])
  assert last['AtTemperature/taught_fraction'] == 1


@pytest.mark.parametrize(
    'more, message',
    [
        ([], 'Nothing to search with. Give one or more of'),
        (['--bm25', '--first_rank=9', '--depth=8'], 'from 1 up; got 9 to 8'),
        (['--bm25', '--margin=1', '--relative_margin=0.1'], 'Give a margin or'),
        (['--bm25', '--split=validation'], 'there is no file .*dev.tsv'),
        (['--model_dir=nowhere'], 'nowhere'),
        (['--run=nowhere.trec'], 'nowhere.trec cannot be read'),
        (['--bm25', '--teacher=nowhere'], 'nowhere does not exist'),
    ],
)
def test_what_cannot_be(tiny, tmp_path, more, message):
  with pytest.raises(UserError, match=message):
    mine.main(flags(tiny, tmp_path / 'out', *more)[1:])


def test_runs_that_do_not_fit(tiny, tmp_path):
  folder, made, run = tiny
  path = tmp_path / 'bad.trec'
  out = tmp_path / 'out'
  asked = flags(tiny, out, f'--run={path}')[1:]
  write_run(path, {'elsewhere': {'d0': 1.0}})
  with pytest.raises(UserError, match="no query 'elsewhere'. Is the run of"):
    mine.main(asked)
  write_run(path, {'q0': {'elsewhere': 1.0}})
  with pytest.raises(UserError, match="no passage 'elsewhere'. Is the run of"):
    mine.main(asked)
  # A margin to a positive that has no score.
  without = {
      query: {p: s for p, s in hits.items() if made.qrels[query].get(p, 0) < 1}
      for query, hits in run.items()
  }
  write_run(path, without)
  with pytest.raises(UserError, match='which bad does not'):
    mine.main([*asked, '--margin=0.1'])
  # A query without candidates has no negatives; the others have theirs.
  write_run(path, {'q1': run['q1']})
  mine.main(asked)
  assert read(out)[0].keys() == {'q1'}
  assert len(read(out)[1]) == QUERIES
  path.write_text('')
  with pytest.raises(UserError, match='bad.trec is empty'):
    mine.main(asked)
  with pytest.raises(UserError, match="Two sources are called 'bad'"):
    mine.main([*asked, f'--run={path},{path}'])


def test_queries_without_labels(tiny, tmp_path):
  path = tmp_path / 'asked.jsonl'
  path.write_text(json.dumps({'_id': 'new', 'text': 'xml date'}) + '\n')
  asked = flags(tiny, tmp_path / 'out', '--bm25', f'--queries={path}')
  cli.main(asked)
  by_id, pairs = read(tmp_path / 'out')
  assert not pairs and by_id.keys() == {'new'}
  assert by_id['new']['pos'] == []
  texts = [tiny[1].corpus[p] for p in by_id['new']['neg']['bm25']]
  assert texts and all({'xml', 'date'} & {*text.split()} for text in texts)
  assert len({*texts}) == len(texts)
  with pytest.raises(UserError, match='which bm25 does not'):
    mine.main([*asked[1:], '--margin=0.1'])


def test_where_nothing_is_left_it_is_told(tiny, tmp_path, capsys):
  cli.main(by_run(tiny, tmp_path, '--least_score=1000'))
  said = capsys.readouterr().out
  assert 'WARNING: nothing is left' in said and 'Train on them' not in said
  with pytest.raises(UserError, match='--least_score.*is nan; expected a numb'):
    mine.main(by_run(tiny, tmp_path, '--least_score=nan')[1:])


def test_a_passage_with_an_answer_is_no_negative(tmp_path, capsys):
  root = pathlib.Path(__file__).parents[1] / 'data' / 'open_nq'
  cli.main([
      'mine', '--bm25', '--tasks=open_nq', f'--gin.OPEN_NQ_ROOT={root}',
      '--split=validation', f'--output_dir={tmp_path}',
  ])
  assert 'queries of split validation' in capsys.readouterr().out
  by_id, _ = read(tmp_path)
  (bridge,) = (row for row in by_id.values() if row['pos'] == ['6'])
  # 9 is of another title, and says when it was opened, too.
  assert '7' in bridge['neg']['bm25'] and '9' not in bridge['neg']['bm25']
  counts = json.loads((tmp_path / 'mined.json').read_text())['counts']['bm25']
  assert counts['with an answer'] == 1
