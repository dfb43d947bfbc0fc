"""BM25 and hybrid search beside a model, and the commands that have them."""

import json
import re
import shutil
import statistics

import numpy as np
import pytest
import pytrec_eval
import tiny_beir
from tiny_evaluation import (
  copy_model,
  flags,
  link_model,
  result_of,
  run,
  run_of,
  shared_model,
)
import tiny_run

from dualenc_jax.cli import bm25, compare, evaluate, report, search
from dualenc_jax.evaluation.results import baselines
from dualenc_jax.retrieval.search.bm25 import BM25
from dualenc_jax.utils.errors import UserError

BOTH = '--baselines=bm25,hybrid'
ALL = '--k=1000'

TINY = tiny_beir.make(0)


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  """A model; TINY lies beside it, as data."""
  folder = tmp_path_factory.mktemp('run')
  TINY.write(folder / 'data' / 'beir' / 'scifact')
  return link_model(folder)


@pytest.fixture(scope='module')
def results(model):
  """Those of both baselines, by the weights of the fusion."""
  return {
      weight: run(
          model, model.parent / weight, BOTH, ALL, f'--hybrid_weight={weight}'
      )
      for weight in ('rrf', '0.25')
  }


def z(values):
  mean, deviation = statistics.fmean(values), statistics.pstdev(values)
  return [(value - mean) / deviation if deviation else 0.0 for value in values]


def reciprocal_ranks(hits, qrels):
  """By trec_eval, of the queries with something relevant."""
  known = {q: {p: int(g) for p, g in own.items()} for q, own in qrels.items()}
  known = {q: own for q, own in known.items() if max(own.values()) >= 1}
  scores = {q: dict(own) for q, own in hits.items() if q in known}
  found = pytrec_eval.RelevanceEvaluator(known, {'recip_rank'}).evaluate(scores)
  return statistics.fmean(value['recip_rank'] for value in found.values())


def assert_scores(folder, words):
  """The run file has all passages with a word, with scores by `words`."""
  for query, own in run_of(folder).items():
    scores = words.scores(TINY.queries[query]).tolist()
    expected = {p: s for p, s in zip(TINY.corpus, scores) if s}
    assert dict(own) == pytest.approx(expected, abs=1e-6)


def test_bm25_beside_a_model(results):
  folder = results['rrf'] / 'bm25'
  assert_scores(folder, BM25(list(TINY.corpus.values())))
  result = result_of(folder)
  expected = reciprocal_ranks(run_of(folder), TINY.qrels)
  assert result['metrics']['MRR'] == pytest.approx(expected)
  facts = {k: result[k] for k in ('system', 'k1', 'b', 'language')}
  assert facts == dict(system='bm25', k1=1.5, b=0.75, language='english')
  assert 'model_dir' not in result


@pytest.mark.parametrize('weight', ['rrf', '0.25'])
def test_hybrid_is_made_of_the_two(results, weight):
  folder = results[weight]
  systems = [run_of(folder / 'bm25'), run_of(folder)]
  found = run_of(folder / 'hybrid')
  for query, hits in found.items():
    total = dict.fromkeys(TINY.corpus, 0.0)
    for share, system in zip((0.75, 0.25), systems):
      own = system[query]
      if weight != 'rrf':  # BM25 has 0 for what it does not retrieve.
        own = [*(dict.fromkeys(TINY.corpus, 0.0) | dict(own)).items()]
      values = [share * x for x in z([score for _, score in own])]
      if weight == 'rrf':
        values = [1 / (60 + rank) for rank in range(1, len(own) + 1)]
      for (passage, _), value in zip(own, values):
        total[passage] += value
    assert dict(hits) == pytest.approx(total, abs=1e-5)
  metrics = result_of(folder / 'hybrid')['metrics']
  assert metrics['MRR'] == pytest.approx(reciprocal_ranks(found, TINY.qrels))


def test_what_is_not_measured_again_stays_if_it_is_of_the_same(
    model, results, tmp_path, capsys
):
  folder = shutil.copytree(results['rrf'], tmp_path / 'results')
  (folder / 'codecs').mkdir()
  (folder / 'codecs' / 'codecs.md').touch()
  before = {*folder.rglob('*')}
  run(model, folder)
  assert {*folder.rglob('*')} == before
  for part, fact, value, left in (
      ('.', 'checkpoint_step', 1, ['bm25']), ('bm25', 'source', 'x', []),
      ('.', 'source', 'x', []),
  ):
    assert 'of other data' not in capsys.readouterr().err
    changed = result_of(folder / part) | {fact: value}
    (folder / part / 'metrics.json').write_text(json.dumps(changed))
    run(model, folder)
    assert [path.name for path in folder.glob('*/')] == left
  assert 'had results of other data, by source:' in capsys.readouterr().err


def test_a_corpus_without_words_has_no_bm25(model, tmp_path, capsys):
  data = tmp_path / 'data'
  corpus = dict.fromkeys(TINY.corpus, 'the of and')
  TINY._replace(corpus=corpus).write(data / 'beir' / 'scifact')
  asked = flags(model, tmp_path / 'a', data=data)
  asked.remove('--no_baselines')
  evaluate.main(asked)
  assert 'BM25 and hybrid search are left out' in capsys.readouterr().err
  assert result_of(tmp_path / 'a') and not (tmp_path / 'a' / 'bm25').exists()
  with pytest.raises(UserError, match='no passage holds a word'):
    run(model, tmp_path / 'b', BOTH, data=data)


def test_a_weight_chosen_on_validation(model, tmp_path, monkeypatch):
  choose_weight = baselines.choose_weight
  asked = f'--model_dir={model}', f'--output_dir={tmp_path / "pairs"}'
  chosen = []

  def choose(*args):
    chosen.append(choose_weight(*args))
    return 0.35

  monkeypatch.setattr(baselines, 'choose_weight', choose)
  # Where there is a split to choose on, that is the default.
  evaluate.main([*asked, '--split=test'])
  assert result_of(tmp_path / 'pairs' / 'hybrid')['weight'] == 0.35
  assert 0 <= chosen[0] <= 1
  evaluate.main([*asked, '--split=validation'])
  assert result_of(tmp_path / 'pairs' / 'hybrid')['weight'] == 0.5


def test_documents_are_ranked_by_their_best_passage(model, tmp_path):
  corpus = {
      f'd{i // 2}#{i % 2}': text
      for i, text in enumerate(TINY.corpus.values())
  }
  documents = sorted({name.partition('#')[0] for name in corpus})
  qrels = {q: {documents[i]: 1} for i, q in enumerate(TINY.queries)}
  data = tmp_path / 'data'
  TINY._replace(corpus=corpus, qrels=qrels).write(data / 'beir' / 'scifact')
  folder = run(
      model, tmp_path / 'results', BOTH, ALL, '--max_passage', data=data
  )
  words = BM25(list(corpus.values()))
  for query, hits in run_of(folder / 'bm25').items():
    best = {}
    for name, score in zip(corpus, words.scores(TINY.queries[query]).tolist()):
      document = name.partition('#')[0]
      if score:
        best[document] = max(score, best.get(document, 0.0))
    assert dict(hits) == pytest.approx(best, abs=1e-6)
  assert run_of(folder / 'hybrid').keys() == TINY.queries.keys()


def test_tables_comparisons_and_the_report_have_them(tmp_path, capsys):
  copied = copy_model(tmp_path / 'my_model')
  evaluate.main([f'--model_dir={copied}', '--split=test'])
  table = (copied / 'evaluation' / 'tables.md').read_text()
  assert '| BM25' in table and 'my_model + BM25' in table
  words = 'k1 1.5, b 0.75, language english'
  said = capsys.readouterr().out
  (weight,) = re.findall(rf'  BM25: {words}\n  Hybrid: weight (\S+),', said)
  compare.main([f'{copied}:bm25', str(copied), f'{copied}:hybrid'])
  said = capsys.readouterr().out
  assert 'BM25' in said and 'my_model + BM25' in said
  assert f'Hybrid: weight {weight}, {words}.' in said
  report.main([f'--model_dir={copied}'])
  page = (copied / 'report.html').read_text()
  assert '>BM25<' in page and '>my_model + BM25<' in page
  assert f'BM25: {words}.' in page and f'Hybrid: weight {weight}' in page


def test_bm25_needs_no_model(model, tmp_path, capsys):
  given = [
      '--tasks=beir/scifact', f'--gin.DATA_ROOT={model.parent / "data"}',
      f'--output_dir={tmp_path / "out"}',
  ]
  flags = '--bm25_k1=0.9', '--bm25_b=0.4', '--bm25_language=none', ALL
  bm25.main([*given, *flags])
  folder = tmp_path / 'out' / 'beir-scifact-test'
  assert_scores(folder, BM25(list(TINY.corpus.values()), 0.9, 0.4, None))
  assert result_of(folder)['language'] is None
  assert result_of(folder)['unjudged_copies'] == 3
  # 3 of the 12 passages are copies.
  bm25.main([*given, '--equal_texts=one', '--relevance_level=2'])
  assert 'For 3 of 4 queries a relevant' in capsys.readouterr().err
  one = tmp_path / 'out' / 'beir-scifact-equal-texts-test'
  facts = {'equal_texts': 'one', 'passages': 9, 'relevance_level': 2}
  assert facts.items() <= result_of(one).items()
  with pytest.raises(UserError, match='has equal texts as one'):
    qrels = model.parent / 'data' / 'beir' / 'scifact' / 'qrels' / 'test.tsv'
    compare.main([f'{one}/run.trec', str(folder), f'--qrels={qrels}'])
  tables = (tmp_path / 'out' / 'tables.md').read_text()
  assert 'BM25' in tables and 'Relevant are passages of grade 2 or' in tables
  # Of files.
  capsys.readouterr()
  path = str(tiny_run.write_pairs(tmp_path / 'a.jsonl', 20))
  bm25.main([path, path, path, f'--output_dir={tmp_path / "o"}'])
  assert result_of(tmp_path / 'o' / 'pairs-test')['metrics']['MRR'] > 0.3
  size = '20 queries over 20 passages'
  assert f'split test:\n  {size}\n  BM25: k1' in capsys.readouterr().out
  other = str(tiny_run.write_pairs(tmp_path / 'b.jsonl', 9))
  again = [path, path, other, f'--output_dir={tmp_path / "o"}']
  with pytest.raises(UserError, match='other sources, by source, corpus in'):
    bm25.main(again)
  table = (tmp_path / 'o' / 'tables.md').read_text()
  assert f'Measured: pairs test, {size}.' in table
  bm25.main([*again, '--overwrite'])
  with pytest.raises(UserError, match='with --gin.VALIDATION_FILE'):
    bm25.main([path])


@pytest.mark.parametrize(
    'wrong, message',
    [
        ('--bm25_language=klingon', "'klingon'"), ('--bm25_k1=-1', 'k1 is -1'),
        ('', 'Give a task'),
        ('--baselines=bm52', "'bm52'; expected bm25 and hybrid"),
        ('--hybrid_weight=2', '2; expected rrf or a number'),
    ],
)
def test_bad_flags(model, tmp_path, wrong, message):
  output = tmp_path / 'o'
  with pytest.raises(UserError, match=message):
    if re.match('--(base|hybrid)', wrong):
      evaluate.main(flags(model, output, BOTH, wrong))
    path = str(tiny_run.write_pairs(tmp_path / 'a.jsonl', 5))
    bm25.main([f'--output_dir={output}', *([path, wrong] if wrong else [])])
  assert not output.exists()
  with pytest.raises(UserError, match="'train': there is no file nope.jsonl"):
    bm25.main([f'--output_dir={output}', 'nope.jsonl'])


def test_search_by_words(tmp_path, capsys):
  model = copy_model(tmp_path / 'm')
  lines = (shared_model().parent / 'train.jsonl').read_text().splitlines()
  passages = [json.loads(line)['passage'] for line in lines]
  query = passages[40]
  search.main([f'--model_dir={model}', '--hybrid=0', '--k=1', query])
  _, _, best = capsys.readouterr().out.splitlines()
  # Of the words in any order: passages are sets of six.
  scores = BM25(passages).scores(query)
  assert any(
      passages[row] in best for row in np.flatnonzero(scores == scores.max())
  )
