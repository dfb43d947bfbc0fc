"""`dualenc evaluate --max_passage` against maxP in NumPy and pytrec_eval."""

import pathlib
import random
import shutil

import brute_force
import numpy as np
import pytest
import pytrec_eval
import tiny_beir
from tiny_evaluation import examples_of, link_model, result_of, run, run_of
import tiny_run

from dualenc_jax.data.readers.beir import Beir
from dualenc_jax.evaluation.results.result_files import read_per_query
from dualenc_jax.utils.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]
DOCUMENTS = 120
NAMES = {
    'P@1': 'P_1', 'MRR': 'recip_rank', 'nDCG@10': 'ndcg_cut_10', 'MAP': 'map',
    'Recall@10': 'recall_10', 'Recall@100': 'recall_100',
}


def documents() -> tiny_beir.TinySet:
  """Documents of one to four passages, shuffled; some are alike.

  An id may hold the separator itself, and a document may be one passage.
  """
  rng = random.Random(0)
  queries = {f'n{i}': ' '.join(rng.sample(tiny_run.WORDS, 3)) for i in range(6)}
  passages = {}
  for number in range(DOCUMENTS):
    name = f'n{number}' if number % 5 else f'n#{number}'
    for part in range(number % 4 + 1):
      text = ' '.join(rng.sample(tiny_run.WORDS, 6))
      is_whole = number % 4 == 0 and number % 5
      passages[name if is_whole else f'{name}#{part}'] = text
  names = sorted(passages)
  for name in names[:20]:
    passages[name] = passages[names[-1]]
  rng.shuffle(names)
  corpus = {name: passages[name] for name in names}
  ids = sorted(map(document_of, corpus))
  qrels = {
      query: dict(zip(rng.sample(ids, 5), (1, 0, 2, -1, 1)))
      for query in queries
  }
  # What ArguAna has: a query that is a document, and judged, even.
  for query in ('n1', 'n2', 'n3'):
    qrels[query][query] = 1
  return tiny_beir.TinySet(corpus, queries, qrels)


def document_of(passage: str) -> str:
  """'n4' of 'n4', 'n6' of 'n6#0', 'n#5' of 'n#5#0'."""
  parts = passage.split('#')
  return '#'.join(parts[:-1]) if len(parts) > 1 else passage


SET = documents()


@pytest.fixture(scope='module')
def model(tmp_path_factory) -> pathlib.Path:
  """A model_dir after two steps; the data is beside it."""
  folder = tmp_path_factory.mktemp('run')
  for name in ('scifact', 'arguana'):
    SET.write(folder / 'data' / 'beir' / name)
  shutil.copytree(
      ROOT / 'tests' / 'data' / 'open_nq', folder / 'data' / 'open_nq'
  )
  return link_model(folder)


def expected_of(model, without_own):
  """By query the documents and their scores, best first."""
  queries, passages = brute_force.towers(model, SET.corpus, SET.queries)
  scores = np.round(queries @ passages.T, 6)
  ranked = {}
  for query, row in zip(SET.queries, scores.tolist()):
    best = {}
    for passage, score in zip(SET.corpus, row):
      name = document_of(passage)
      best[name] = max(score, best.get(name, -2))
    if without_own:
      best.pop(query, None)
    order = sorted(best, key=lambda name: (best[name], name), reverse=True)
    ranked[query] = [(name, best[name]) for name in order]
  return ranked


@pytest.mark.parametrize('name', ['scifact', 'arguana'])
def test_documents_are_ranked_by_their_best_passage(model, tmp_path, name):
  without_own = name == 'arguana'
  folder = run(model, tmp_path, '--max_passage', tasks=f'beir/{name}')
  result = result_of(folder)
  assert result['document_separator'] == '#'
  assert result['passages'] == len(SET.corpus) > 2 * DOCUMENTS
  assert result['queries'] == 6
  found, expected = run_of(folder), expected_of(model, without_own)
  # Every list is as long; who has no document of its own loses the last one.
  depth = DOCUMENTS - without_own
  for query, hits in expected.items():
    assert [d for d, _ in found[query]] == [d for d, _ in hits][:depth]
    np.testing.assert_allclose(
        [score for _, score in found[query]],
        [score for _, score in hits][:depth],
        atol=2e-6,
    )
  qrels = {
      query: {d: g for d, g in grades.items() if not without_own or d != query}
      for query, grades in SET.qrels.items()
  }
  reference = pytrec_eval.RelevanceEvaluator(
      qrels, {'P.1', 'recip_rank', 'ndcg_cut.10', 'map', 'recall.10,100'}
  ).evaluate({
      query: {d: float(-place) for place, (d, _) in enumerate(hits[:depth])}
      for query, hits in expected.items()
  })
  per_query = read_per_query(folder / 'per_query.tsv')
  assert list(per_query.queries) == list(SET.queries)
  for ours, theirs in NAMES.items():
    values = [reference[query][theirs] for query in SET.queries]
    np.testing.assert_array_equal(per_query.values[ours], values, ours)
    assert result['metrics'][ours] == pytest.approx(np.mean(values), abs=1e-15)
  for example in examples_of(folder):
    for hit in example['hits']:
      first = next(p for p in SET.corpus if document_of(p) == hit['id'])
      assert hit['text'] == SET.corpus[first]
      assert hit['grade'] == qrels[example['query_id']].get(hit['id'])


def test_what_cannot_be_ranked_as_documents(model, tmp_path):
  def written(corpus, qrels):
    data = tmp_path / str(len(corpus))
    own = tiny_beir.TinySet(corpus, SET.queries, qrels)
    own.write(data / 'beir' / 'scifact')
    return data

  grades = {**SET.qrels, 'n1': {'n1#0': 1, 'n9': 1, 'lost': 0}}
  both = ['--max_passage']
  for message, flags, where in (
      # Judged documents where passages are ranked.
      ("test.tsv:.*passage 'n.*STRICT=False", [], {}),
      (
          "no passage id with '/' in it; .*'n.*--max_passage=SEP",
          ['--max_passage=/'], {},
      ),
      (
          "passage id '#7' names no document", both,
          {'data': written({**SET.corpus, '#7': 'x'}, SET.qrels)},
      ),
      (
          "'test', judges .* documents, of which 2 are not in the corpus: ids"
          ' lost, n1#0. The corpus has ids such as n', both,
          {'data': written(SET.corpus, grades)},
      ),
      (
          'has answers.*Leave out --max_passage',
          ['--max_passage=0'], {'tasks': 'open_nq'},
      ),
  ):
    with pytest.raises(UserError, match=message):
      run(model, tmp_path / 'results', *flags, **where)
    assert not (tmp_path / 'results').exists()


def test_judged_documents_are_read_without_a_text(tmp_path):
  SET.write(tmp_path)
  reader = Beir(folder=str(tmp_path), judged_ids='documents')
  names = 'query_id', 'query', 'passage_id', 'passage', 'relevance'
  found = reader.examples('test')
  assert [tuple(example[name] for name in names) for example in found] == [
      (query, SET.queries[query], document, '', grade)
      for query, grades in SET.qrels.items()
      for document, grade in grades.items()
  ]
  # A query must be there, and what is trained on has texts.
  path = tmp_path / 'qrels' / 'test.tsv'
  path.write_text(path.read_text() + 'lost\tn1\t1\n')
  with pytest.raises(UserError, match="test.tsv:33: query 'lost' does"):
    list(reader.examples('test'))
  path.rename(path.with_name('train.tsv'))
  with pytest.raises(UserError, match="passage 'n"):
    list(reader.examples('train'))
