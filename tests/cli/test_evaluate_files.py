"""What `dualenc evaluate` writes, against NumPy and pytrec_eval."""

import pathlib
import shutil

import brute_force
import jax
import numpy as np
import pytest
import pytrec_eval
import tiny_beir
import tiny_evaluation
from tiny_evaluation import examples_of, link_model, result_of, run, run_of

from dualenc_jax.cli import saved_run
from dualenc_jax.data.readers import files
from dualenc_jax.evaluation.results import compared_systems
from dualenc_jax.evaluation.results.result_files import read_per_query
from dualenc_jax.utils import machine
from dualenc_jax.utils.errors import UserError

DATA = pathlib.Path(__file__).parents[1] / 'data'
SET = tiny_beir.make_large()
NAMES = {
    'P@1': 'P_1', 'MRR': 'recip_rank', 'nDCG@10': 'ndcg_cut_10', 'MAP': 'map',
    **{f'Recall@{k}': f'recall_{k}' for k in (1, 10, 100, 1000)},
}


@pytest.fixture(scope='module')
def model(tmp_path_factory) -> pathlib.Path:
  """A model_dir after two steps; the data is beside it."""
  folder = tmp_path_factory.mktemp('run')
  SET.write(folder / 'data' / 'beir' / 'scifact')
  shutil.copytree(DATA / 'open_nq', folder / 'data' / 'open_nq')
  return link_model(folder)


@pytest.fixture(scope='module')
def whole(model) -> pathlib.Path:
  """The result folder of a plain evaluation."""
  return run(model, model.parent / 'whole')


def test_files_agree_with_numpy_and_pytrec_eval(model, whole):
  assert {path.name for path in whole.iterdir()} == tiny_evaluation.FILES
  queries, passages = brute_force.towers(model, SET.corpus, SET.queries)
  ids = np.array(list(SET.corpus))
  # Equal texts have equal scores, whatever rounding says.
  scores = np.round(queries @ passages.T, 6)
  expected = {
      query: sorted(zip(row.tolist(), ids.tolist()), reverse=True)
      for query, row in zip(SET.queries, scores)
  }
  found = run_of(whole)
  assert list(found) == list(SET.queries)
  for query, hits in expected.items():
    assert [passage for passage, _ in found[query]] == [i for _, i in hits]
    np.testing.assert_allclose(
        [score for _, score in found[query]],
        [score for score, _ in hits],
        atol=2e-6,
    )
  # 'none' has no relevant passage: trec_eval counts it as 0.
  relevant = {q: grades for q, grades in SET.qrels.items() if q != 'none'}
  measures = 'P.1', 'recip_rank', 'ndcg_cut.10', 'map', 'recall.1,10,100,1000'
  reference = pytrec_eval.RelevanceEvaluator(relevant, {*measures}).evaluate({
      query: {i: float(len(ids) - place) for place, (_, i) in enumerate(hits)}
      for query, hits in expected.items()
  })
  per_query = read_per_query(whole / 'per_query.tsv')
  assert list(per_query.queries) == list(SET.qrels)
  metrics = result_of(whole)['metrics']
  assert list(per_query.values) == list(metrics)
  assert metrics.keys() == NAMES.keys() | {'MRR@10'}
  for name, theirs in NAMES.items():
    own = [reference.get(query, {}).get(theirs, 0) for query in SET.qrels]
    np.testing.assert_array_equal(per_query.values[name], own, err_msg=name)
  for name, column in per_query.values.items():
    assert metrics[name] == pytest.approx(np.mean(column), abs=1e-15), name
  with np.errstate(divide='ignore'):
    ranks = 1 / per_query.values['MRR']
  np.testing.assert_array_equal(
      per_query.values['MRR@10'], np.where(ranks < 10.5, 1 / ranks, 0)
  )


def test_the_run_file_alone_gives_the_same_metrics(model, whole, tmp_path):
  qrels = model.parent / 'data' / 'beir' / 'scifact' / 'qrels' / 'test.tsv'
  # Cut off, what lies below the hits is lost to a reader of the file alone.
  asked = 'Recall@5', 'nDCG@20', 'Recall@50'
  short = run(
      model, tmp_path / 'short', '--k=20', f'--metrics={",".join(asked)}'
  )
  assert {len(hits) for hits in run_of(short).values()} == {20}
  runs = [path / 'run.trec' for path in (whole, short)]
  systems = compared_systems.systems(runs, 'ab')
  result, cut = (
      next(iter(found.results.values()))
      for found in compared_systems.read(systems, qrels, asked=asked[:2])
  )
  # All that the whole one retrieves is in its file; the short one is cut off.
  (deep,) = compared_systems.read(systems[:1], qrels, asked=['Recall@500'])
  (all_found,) = deep.results.values()
  assert all_found.metrics['Recall@500'] == result.metrics['Recall@1000']
  with pytest.raises(UserError, match='@50 needs 50 hits.*run.trec gives 20'):
    compared_systems.read(systems[1:], qrels, asked=asked)
  metrics = result_of(whole)['metrics']
  assert {name: result.metrics[name] for name in metrics} == metrics
  own = result_of(short)
  assert own['k'] == 20
  for name in asked:
    assert own['metrics'][name] == read_per_query(
        short / 'per_query.tsv'
    ).means()[name]
  for name in asked[:2]:
    assert cut.metrics[name] == own['metrics'][name] == result.metrics[name]
  for name in ('P@1', 'MRR@10', 'nDCG@10', 'Recall@10'):
    assert cut.metrics[name] == own['metrics'][name] == metrics[name]
  # MRR is over the whole corpus all the same, recall as deep as it says.
  assert own['metrics']['MRR'] == metrics['MRR'] > cut.metrics['MRR']
  assert own['metrics']['Recall@100'] == metrics['Recall@100']
  assert 'Recall@1000' not in own['metrics']
  for kept, of_all in zip(run_of(short).values(), run_of(whole).values()):
    assert kept == of_all[:20]


def test_everything_that_a_number_depends_on_is_beside_it(model, whole):
  result = result_of(whole)
  trained = saved_run.load(str(model))
  data = model.parent / 'data' / 'beir' / 'scifact'
  names = 'qrels/test.tsv', 'queries.jsonl', 'corpus.jsonl'
  sources = [data / name for name in names]
  same = (
      'run_id', 'query_prefix', 'passage_prefix', 'dtype', 'checkpoint_step'
  )
  assert result == {
      'metrics': result['metrics'], 'command': result['command'],
      'task': 'beir', 'dataset': 'scifact', 'label': 'beir-scifact',
      'split': 'test', 'files': {}, 'queries': 46, 'queries_counted': 46,
      'passages': 130, 'k': 1000, 'depth': 1000, 'document_separator': None,
      'embedding_dtype': 'float32', 'bytes_per_passage': 4 * trained.dim,
      'parameters': sum(map(np.size, jax.tree.leaves(trained.params))),
      'source': files.fingerprint(sources),
      'corpus': {'split': 'corpus', 'source': files.fingerprint(sources[2:])},
      'model_dir': 'model',
      'vocabulary': trained.experiment.tokenizer.vocabulary.sha256,
      'query_length': 8, 'passage_length': 16, 'seed': 0, 'unjudged_copies': 32,
      'git_revision': machine.git_revision(), 'versions': machine.versions(),
      'device': jax.devices()[0].device_kind,
      **{name: trained.provenance[name] for name in same},
  }
  assert 'dataset = %BEIR_SET' in (whole / 'config.gin').read_text()


def test_examples_to_read(whole):
  examples = examples_of(whole)
  assert len(examples) == 40
  found = run_of(whole)
  per_query = read_per_query(whole / 'per_query.tsv')
  reciprocal = per_query.column('MRR')
  for example in examples:
    query = example['query_id']
    grades, hits = SET.qrels[query], found[query]
    assert example['query'] == SET.queries[query]
    assert example['hits'] == [
        {
            'rank': rank, 'score': pytest.approx(score, abs=1e-9),
            'id': passage, 'name': '', 'text': SET.corpus[passage],
            'grade': grades.get(passage),
        }
        for rank, (passage, score) in enumerate(hits[:5], 1)
    ]
    gold = [p for p, _ in hits if grades.get(p, 0) > 0]
    if not gold:
      assert query == 'none'
      assert (example['rank'], example['relevant']) == (None, None)
      continue
    assert example['relevant'] == {
        'id': gold[0], 'name': '', 'text': SET.corpus[gold[0]]
    }
    assert 1 / example['rank'] == reciprocal[query]


def test_examples_of_queries_that_nothing_answers(model, tmp_path):
  """Long texts are cut; a relevant passage may lie below all hits."""
  folder = model.parent / 'data' / 'beir' / 'fiqa'
  long = 'map ' * 500
  tiny_beir.TinySet(
      {f'd{i}': f'{i} {long}' for i in range(150)},
      {'a': long, 'b': 'xml'},
      {'a': {f'd{i}': 1 for i in range(150)}, 'b': {'d0': 0, 'd1': -1}},
  ).write(folder)
  output = run(model, tmp_path, '--k=2', tasks='beir/fiqa')
  one, other = examples_of(output)
  assert one['query'] == long[:1000] + '...'
  assert one['rank'] == 1 and len(one['relevant']['text']) == 1003
  assert (other['rank'], other['relevant']) == (None, None)
  by_id = {hit['id']: hit['grade'] for hit in other['hits']}
  assert len(by_id) == 5
  for passage, grade in by_id.items():
    assert grade == {'d0': 0, 'd1': -1}.get(passage)
  # The worst of 150 is not among the 100 hits that are looked at.
  worst = run_of(run(model, tmp_path / 'all', tasks='beir/fiqa'))['b'][-1][0]
  (folder / 'qrels' / 'test.tsv').write_text(f'b\t{worst}\t1\n')
  (example,) = examples_of(run(model, tmp_path, '--k=2', tasks='beir/fiqa'))
  assert (example['rank'], example['relevant']['id']) == (150, worst)


def test_answer_sets_have_top_k(model, tmp_path, capsys):
  # A metric of judgements is told to be left out.
  output = run(
      model, tmp_path, '--split=test', '--metrics=Top-2,Recall@5',
      tasks='open_nq',
  )
  said = 'Recall@5 is left out: open_nq, split test, has no judged passages.'
  assert said in capsys.readouterr().err
  metrics = result_of(output)['metrics']
  assert metrics.keys() == {'Top-2', 'Top-5', 'Top-20', 'Top-100'}
  per_query = read_per_query(output / 'per_query.tsv')
  assert list(per_query.queries) == [f'test-{i}' for i in range(1, 5)]
  # "1908" is nowhere; the others are read in the fixture.
  answered = {
      'test-1': {'6', '9'}, 'test-2': {'4', '5'}, 'test-3': {'11'},
      'test-4': set(),
  }
  hits = run_of(output)
  for k in (2, 5, 20, 100):
    assert per_query.column(f'Top-{k}') == {
        query: float(bool(gold & {p for p, _ in hits[query][:k]}))
        for query, gold in answered.items()
    }
    assert metrics[f'Top-{k}'] == per_query.means()[f'Top-{k}']
  assert {hit['grade'] for hit in examples_of(output)[0]['hits']} == {None}
