"""Mining through the command, against plain loops over all candidates."""

import itertools
import json
import pathlib
import types

from mining_set import PASSAGES, QUERIES, read, write_run
import numpy as np
import pytest
import shared_runs
import small_vocabulary
import tiny_beir
import tiny_evaluation
import tiny_weights

from dualenc_jax.checkpoints.weights import Usage
from dualenc_jax.cli import convert, main as cli, mine
from dualenc_jax.data.readers import Pairs
from dualenc_jax.models import DualEncoder, Projection, T5Encoder, TokenEmbedder
from dualenc_jax.pipelines.mining import candidates, negatives
from dualenc_jax.retrieval.search import exact_search, ranking
from dualenc_jax.utils import progress
from dualenc_jax.utils.errors import UserError


def by_run(tiny, output, *more):
  return tiny.flags(output, f'--run={tiny.folder / "run.trec"}', *more)


def mined(output, flags):
  """Hard negatives and pairs by query id, and the facts, of a command."""
  mine.main(flags)
  by_id = read(output / 'hard-negatives.jsonl', 'qid')
  facts = json.loads((output / 'mined.json').read_text())
  return by_id, read(output / 'pairs.jsonl'), facts


def expected(
    tiny, run=None, count=7, first=1, last=100, limit=None, scores=None
):
  """Negatives by query; `limit` is that of the lowest positive's score."""
  run = run or tiny.run
  found = {}
  for query, hits in run.items():
    own, gold = (scores or run)[query], tiny.gold(query)
    known = [np.float32(own[p]) for p in gold if p in own]
    top = np.inf
    if limit:
      top = limit(min(known)) if known else -np.inf
    taken = [
        passage
        for rank, passage in tiny.pool(query, gold, run).items()
        if first <= rank <= last and np.float32(own[passage]) <= top
    ]
    if taken:
      found[query] = taken[:count]
  return found


@pytest.mark.parametrize(
    'more, rules',
    [
        ([], {}),
        (['--num_negatives=2', '--first_rank=3', '--depth=8'],
         {'count': 2, 'first': 3, 'last': 8}),
        (['--relative_margin=0.5'],
         {'limit': lambda lowest: lowest - abs(lowest) * np.float32(0.5)}),
    ],
)
def test_rules(tiny, tmp_path, more, rules):
  by_id, pairs, _ = mined(tmp_path, by_run(tiny, tmp_path, *more))
  made, wanted = tiny.made, expected(tiny, **rules)
  assert wanted
  assert {q: row['neg']['run'] for q, row in by_id.items()} == wanted
  # All positives stay, with negatives or without.
  assert pairs.keys() == made.qrels.keys()
  for query, row in pairs.items():
    assert sorted(row['passage_id']) == sorted(tiny.gold(query))
    assert row['passage'] == [made.corpus[p] for p in row['passage_id']]
    negatives = [made.corpus[p] for p in wanted.get(query, [])]
    assert row['negatives'] == negatives


def test_texts_that_readers_take_for_equal_or_none(tmp_path):
  """Space around a text, and nothing else than space."""
  texts = [
      'alpha beta', 'alpha beta ', '\u2003alpha beta', ' \t', '',
      'alpha gamma', 'alpha gamma\n',
  ]
  corpus = {f'd{i}': text for i, text in enumerate(texts)}
  made = tiny_beir.TinySet(corpus, {'q0': 'alpha'}, {'q0': {'d0': 1}})
  made.write(tmp_path / 'beir', 'train')
  write_run(tmp_path / 'run.trec', {'q0': {f'd{i}': 9.0 - i for i in range(7)}})
  out = tmp_path / 'out'
  cli.main([
      'mine', '--tasks=beir', f'--gin.BEIR_FOLDER={tmp_path / "beir"}',
      f'--run={tmp_path / "run.trec"}', f'--output_dir={out}',
  ])
  by_id = read(out / 'hard-negatives.jsonl', 'qid')
  assert by_id['q0']['neg'] == {'run': ['d5']}
  (row,) = Pairs(train=str(out / 'pairs.jsonl')).examples('train')
  assert row['negatives'] == ['alpha gamma']


def test_several_sources_take_turns(tiny, tmp_path):
  other = {
      query: {name: -score for name, score in hits.items()}
      for query, hits in tiny.run.items()
  }
  write_run(tmp_path / 'other.trec', other)
  both = f'--run={tiny.folder / "run.trec"},{tmp_path / "other.trec"}'
  out = tmp_path / 'out'
  _, pairs, _ = mined(out, tiny.flags(out, both, '--num_negatives=5'))
  lists = [expected(tiny, each, count=99) for each in (tiny.run, other)]
  for query, row in pairs.items():
    turns = dict.fromkeys(
        tiny.made.corpus[passage]
        for place in range(PASSAGES)
        for each in lists
        for passage in each.get(query, [])[place : place + 1]
    )
    assert row['negatives'] == [*turns][:5]


def test_random_ones_are_of_seed_and_query(tiny, tmp_path):
  def drawn(seed, run=tiny.run):
    write_run(tmp_path / 'run.trec', run)
    return mined(tmp_path, tiny.flags(
        tmp_path, f'--run={tmp_path / "run.trec"}', '--sampling=random',
        f'--seed={seed}', '--num_negatives=3',
    ))[0]

  chosen = drawn(1)
  assert drawn(1) == chosen != drawn(2)
  everything = expected(tiny, count=99)
  for query, row in chosen.items():
    taken = row['neg']['run']
    places = [everything[query].index(p) for p in taken]
    assert len(taken) == 3 and places == sorted(places)
  # Each query draws by itself, of as many candidates too.
  few = {q: dict([*hits.items()][:9]) for q, hits in tiny.run.items()}
  places = {}
  for query, row in drawn(1, few).items():
    pool = [*tiny.pool(query, tiny.gold(query), few).values()]
    taken = tuple(map(pool.index, row['neg']['run']))
    places.setdefault(len(pool), []).append(taken)
  alike = max(places.values(), key=len)
  assert len({*alike}) > 1
  # Of some queries alone the same are taken.
  half = dict([*tiny.run.items()][::2])
  assert drawn(1, half) == {q: chosen[q] for q in half}


def test_scores_of_a_teacher_decide_and_are_written(tiny, tmp_path):
  scores = tiny.scores
  teacher = f'--teacher={tiny.folder / "scores.tsv"}'
  flags = by_run(tiny, tmp_path, teacher, '--relative_margin=0.25')
  by_id, pairs, _ = mined(tmp_path, flags)
  wanted = expected(
      tiny, scores=scores,
      limit=lambda lowest: lowest - abs(lowest) * np.float32(0.25),
  )
  assert wanted == {
      q: [entry['pid'] for entry in row['neg']['run']]
      for q, row in by_id.items()
  }
  for query, row in pairs.items():
    for name, own in (
        ('positive', row['passage_id']), ('negative', wanted.get(query, []))
    ):
      assert row[f'{name}_scores'] == pytest.approx(
          [scores[query][p] for p in own], rel=1e-7
      )


@pytest.mark.slow
def test_by_a_model_and_by_bm25(tmp_path):
  model, out = tiny_evaluation.shared_model(), tmp_path / 'out'
  assert cli.main([
      'mine', f'--model_dir={model}', '--bm25', '--depth=20',
      '--num_negatives=4', f'--teacher={shared_runs.cross_encoder()}',
      f'--output_dir={out}',
  ]) == 0
  by_id = read(out / 'hard-negatives.jsonl', 'qid')
  pairs = read(out / 'pairs.jsonl')
  sources = {name for row in by_id.values() for name in row['neg']}
  assert sources == {'model', 'bm25'}
  # Every pair is kept; questions of one text are one query.
  lines = model.with_name('train.jsonl').read_text().splitlines()
  positives = {}
  for row in map(json.loads, lines):
    positives.setdefault(row['query'], set()).add(row['passage'])
  assert {row['query']: {*row['passage']} for row in pairs.values()} == (
      positives
  )
  assert all(len(row['negatives']) == 4 for row in pairs.values())


def test_several_models_find_what_each_finds_alone(tmp_path):
  """Each in tokens of its own vocabulary, over the task of the first."""
  one = tiny_evaluation.write_random(tmp_path / 'one', layers=0)
  pieces = small_vocabulary.write(tmp_path / 'own.model')
  bag = DualEncoder(
      TokenEmbedder(300, 32), T5Encoder(0, 1, 8, 8), Projection(16)
  )
  weights = tiny_weights.random(bag, Usage(pieces, None, 8, 16), seed=1)
  convert.write_model_dir(weights, tmp_path / 'two')

  def found(*names, out=None):
    out = tmp_path / (out or '+'.join(names))
    return mined(out, [
        *(f'--model_dir={tmp_path / name}' for name in names), '--depth=6',
        f'--gin.TRAIN_FILE={one.with_name("train.jsonl")}',
        '--num_negatives=99', f'--output_dir={out}',
    ])

  by_id, _, facts = found('one', 'two')
  others = [model['model_dir'] for model in facts['other_models']]
  assert (facts['model']['model_dir'], others) == ('one', ['two'])
  with pytest.raises(UserError, match='overwrite'):
    found('one', out='one+two')
  alone = [found(name)[0] for name in ('one', 'two')]
  for query, row in by_id.items():
    turns = itertools.zip_longest(*(x[query]['neg']['model'] for x in alone))
    first = {}
    for own in turns:
      for name, passage in zip(('one', 'two'), own):
        first.setdefault(passage, name)
    for name, taken in row['neg'].items():
      assert taken == [p for p, by in first.items() if p and by == name]
    assert sum(map(len, row['neg'].values())) == len({*first} - {None})


@pytest.mark.parametrize(
    'more, message',
    [
        ([], 'Nothing to search with. Give one or more of'),
        (['--model_dir=a/x', '--model_dir=b/x'], "are called 'x'; .* folders"),
        (
            ['--model_dir=a', '--model_dir=b', '--index_dir=c'],
            '--index_dir is of one model, but 2 are given',
        ),
        (['--bm25', '--first_rank=9', '--depth=8'], 'first_rank. is 9 .*h. 8'),
        (['--bm25', '--split=validation'], 'there is no file .*dev.tsv'),
        (
            ['--run={run}', '--teacher={scores}', '--min_spread=50'],
            'margins have a standard deviation of',
        ),
    ],
)
def test_what_cannot_be(tiny, tmp_path, more, message):
  run, scores = tiny.folder / 'run.trec', tiny.folder / 'scores.tsv'
  more = [flag.format(run=run, scores=scores) for flag in more]
  with pytest.raises(UserError, match=message):
    mine.main(tiny.flags(tmp_path / 'out', *more))


def test_runs_that_do_not_fit(tiny, tmp_path):
  path, out = tmp_path / 'bad.trec', tmp_path / 'out'
  asked = tiny.flags(out, f'--run={path}')
  # A margin to a positive that has no score.
  without = {
      query: {p: s for p, s in hits.items() if p not in tiny.gold(query)}
      for query, hits in tiny.run.items()
  }
  for run, more, message in (
      ({'other': {'d0': 1.0}}, [], "no query 'other'. Is the run of"),
      (without, ['--relative_margin=0.1'], 'which bad does not'),
      ({}, [], 'bad.trec is empty'),
      ({}, [f'--run={path},{path}'], "Two sources are called 'bad'"),
  ):
    write_run(path, run)
    with pytest.raises(UserError, match=message):
      mine.main([*asked, *more])
  # A query without candidates has no negatives; the others have theirs.
  write_run(path, {'q1': tiny.run['q1']})
  by_id, pairs, _ = mined(out, asked)
  assert by_id.keys() == {'q1'} and len(pairs) == QUERIES


def test_queries_without_labels(tiny, tmp_path):
  path, out = tmp_path / 'asked.jsonl', tmp_path / 'out'
  path.write_text(json.dumps({'_id': 'new', 'text': 'xml date'}) + '\n')
  flags = tiny.flags(out, '--bm25', f'--queries={path}')
  by_id, pairs, _ = mined(out, flags)
  assert not pairs and by_id.keys() == {'new'}
  assert by_id['new']['pos'] == []
  texts = [tiny.made.corpus[p] for p in by_id['new']['neg']['bm25']]
  assert texts and all({'xml', 'date'} & {*text.split()} for text in texts)
  assert len({*texts}) == len(texts)
  # What others have made there is not replaced without a word.
  with pytest.raises(UserError, match='by source, bm25, run in .*mined.json'):
    mine.main(by_run(tiny, out))
  _, pairs, _ = mined(out, by_run(tiny, out, '--overwrite'))
  assert len(pairs) == QUERIES
  (out / 'mined.json').unlink()
  with pytest.raises(UserError, match='pairs.jsonl exists, but no mined.json'):
    mine.main(by_run(tiny, out))


def test_counts_are_told_in_a_sentence():
  said = negatives.summary([[1, 2], []])
  assert said == '1 of 2 queries have hard negatives, 2 in all.'


def test_a_passage_with_an_answer_is_no_negative(tmp_path, capsys):
  root = pathlib.Path(__file__).parents[1] / 'data' / 'open_nq'
  by_id, _, facts = mined(tmp_path, [
      '--bm25', '--tasks=open_nq', f'--gin.OPEN_NQ_ROOT={root}',
      '--split=validation', f'--output_dir={tmp_path}',
  ])
  assert 'queries of split validation' in capsys.readouterr().out
  (bridge,) = (row for row in by_id.values() if row['pos'] == ['6'])
  # 9 is of another title, and says when it was opened, too.
  assert '7' in bridge['neg']['bm25'] and '9' not in bridge['neg']['bm25']
  counts = facts['counts']['bm25']
  assert counts['with an answer'] == 1
  candidates, left = counts.pop('candidates'), counts.pop('left')
  assert candidates - sum(counts.values()) == left > 0


def test_a_query_of_many_positives_makes_no_room_for_the_others(
    monkeypatch, caplog
):
  caplog.set_level('INFO', 'dualenc_jax')
  monkeypatch.setattr(progress, '_SECONDS', 0)
  monkeypatch.setattr(exact_search, '_SCORES_ON_CPU', 1 << 20)
  rng = np.random.default_rng(0)
  passages, queries = rng.standard_normal((2, 999, 8)).astype(np.float32)
  gold = [[query] for query in range(999)]
  gold[5], gold[6] = [*range(998, -1, -1)], []
  ids, sizes = [f'd{i:03}' for i in range(999)], []

  class Corpus(list):
    ids = property(list)

  def score_candidates(queries, passages, rows):
    sizes.append(rows.size)
    return scored(queries, passages, rows)

  scored = ranking.score_candidates
  monkeypatch.setattr(ranking, 'score_candidates', score_candidates)
  monkeypatch.setattr(
      candidates.build_for_model, 'corpus_embeddings', lambda *_: passages
  )
  ranked = types.SimpleNamespace(
      gold=gold, corpus=Corpus(ids), query_ids=ids, query_rows=range(999),
      cache=types.SimpleNamespace(query_tokens=None),
  )
  embedder = types.SimpleNamespace(
      dim=8, batches=lambda *_: [(np.arange(999), queries)]
  )
  model = types.SimpleNamespace(embedder=embedder, params=None)
  found = candidates.find_by_model(model, ranked, 1)
  assert caplog.messages == [
      'Encoding: 999 of 999 queries.', 'Searching: 999 of 999 passages.'
  ]
  assert max(sizes) < 99_999
  again = candidates.with_scores(
      found, ranked, lambda pairs: 1000 * pairs[:, 0] + pairs[:, 1]
  )
  for query, known in enumerate(gold):
    wanted = passages[known] @ queries[query]
    np.testing.assert_allclose(found.positives[query], wanted, rtol=1e-4)
    assert again.positives[query].tolist() == [1000 * query + p for p in known]


def test_margins_are_what_a_positive_is_ahead_of_its_negatives():
  positives = np.array([[2.0], [np.nan]])
  kept = [types.SimpleNamespace(
      candidates=types.SimpleNamespace(positives=positives)
  )]
  chosen = [
      [types.SimpleNamespace(score=score) for score in scores]
      for scores in ([0.5, 3.0], [1.0])
  ]
  assert negatives.margins(kept, chosen).tolist() == [1.5, -1.0]
