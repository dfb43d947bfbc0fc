"""Codecs through the commands: encode, search, evaluate, Retriever."""

import functools
import importlib.util

import numpy as np
import pytest
import tiny_beir
import tiny_evaluation

from dualenc_jax import Retriever
from dualenc_jax.cli import compare, encode, runtime, search
from dualenc_jax.evaluation import evaluation
from dualenc_jax.parallel import hosts
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval.index import Index
from dualenc_jax.utils.errors import UserError

CODECS = 'fp16,int8,pca:8,opq:4x2,binary,binary:110,hnsw:4'
SET = tiny_beir.make_large()


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  SET.write(folder / 'data' / 'beir' / 'scifact')
  return tiny_evaluation.link_model(folder)


@pytest.fixture(scope='module')
def index_of(model):
  """The index of a codec, made once."""
  return functools.cache(
      lambda codec: encoded(model, model.parent / codec, codec)
  )


@pytest.fixture(scope='module')
def table(model):
  """The results of a model and of codecs."""
  return tiny_evaluation.run(
      model, model.parent / 'table', f'--codecs={CODECS}'
  )


def encoded(model, folder, codec, *more):
  encode.main([
      f'--model_dir={model}', f'--index_dir={folder}', f'--codec={codec}',
      '--shard_size=20', *more,
  ])
  return Index.open(folder)


def shown(model, capsys, *flags):
  """The scores that search prints."""
  capsys.readouterr()
  search.main([f'--model_dir={model}', *flags])
  return [s.split()[0] for s in capsys.readouterr().out.splitlines()[1::2]]


@pytest.mark.parametrize('codec', ['pq:4x2', 'binary', 'bf16'])
def test_an_index_of_codes_is_searched(codec, model, index_of, capsys):
  stored = index_of(codec).embeddings
  whole = index_of('fp32').embeddings[:]
  flag = f'--index_dir={index_of(codec).folder}'
  retriever = Retriever.from_dir(model, index=index_of(codec).folder)
  query = 'parse a date'
  hits = retriever.find([query], k=3)[0]
  own = retriever.encode_queries([query])
  if codec == 'bf16':
    assert stored.dtype.name == 'bfloat16'
    np.testing.assert_allclose(own @ stored[:].T, own @ whole.T, atol=0.01)
  else:
    own = stored.codec.queries(own)
    # It was trained on these very vectors.
    again = stored.codec.encode(whole)
    np.testing.assert_array_equal(again, stored.codes[:])
  scores = own.astype(np.float64) @ stored[:].astype(np.float64).T
  best = np.sort(scores[0])[::-1][:3]
  np.testing.assert_allclose([hit.score for hit in hits], best, rtol=1e-5)
  expected = [f'{hit.score:.3f}' for hit in hits]
  assert shown(model, capsys, flag, '--k=3', query) == expected


def test_other_candidates_of_the_same_index(model, index_of, capsys):
  queries = ['parse a date', 'open a file', 'sort by key']

  def retriever(codec, candidates=None):
    index = index_of(codec).folder
    return Retriever.from_dir(model, index=index, candidates=candidates)

  def hits(*of):
    return retriever(*of).search(queries, 7)

  found = [hits('binary', 7), hits('binary:7'), hits('binary')]
  np.testing.assert_array_equal(found[0].ids, found[1].ids)
  np.testing.assert_array_equal(found[0].scores, found[1].scores)
  assert np.any(found[0].ids != found[2].ids)
  flags = f'--index_dir={index_of("binary").folder}', '--k=7', '--candidates=7'
  assert shown(model, capsys, *flags, queries[0]) == [
      f'{score:.3f}' for score in found[0].scores[0]
  ]
  with pytest.raises(UserError, match='10 hits .* binary:7 scores only 7'):
    retriever('binary', 7).search(queries, 10)
  with pytest.raises(UserError, match='this one has no codes'):
    retriever('fp32', 7)


def test_it_is_gone_on_with(model, index_of, tmp_path, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setattr(runtime, 'host', lambda: Host(1, 2))
    patch.setattr(hosts, 'wait_for_shards', lambda *_: None)
    encode.main([
        f'--model_dir={model}', f'--index_dir={tmp_path / "shared"}',
        '--codec=pq:4x2', '--shard_size=20',
    ])
  first = (tmp_path / 'shared.partial' / 'codec.safetensors').read_bytes()
  index = encoded(model, tmp_path / 'shared', 'pq:4x2')
  assert (index.folder / 'codec.safetensors').read_bytes() == first
  np.testing.assert_array_equal(
      index.embeddings.codes[:], index_of('pq:4x2').embeddings.codes[:]
  )
  with pytest.raises(UserError, match="codec is 'pq:4x2', expected 'int8'"):
    encoded(model, tmp_path / 'shared', 'int8')


def test_a_saved_retriever_keeps_its_codes(model, index_of, tmp_path):
  retriever = Retriever.from_dir(model, index=index_of('pq:4x2').folder)
  retriever.save(tmp_path / 'saved')
  again = Retriever.from_dir(tmp_path / 'saved')
  queries = ['parse a date', 'open a file']
  for hybrid in (None, 0.5):
    one, other = (r.search(queries, 5, hybrid) for r in (retriever, again))
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)


def test_codecs_in_one_table(table):
  lines = (table / 'codecs' / 'codecs.md').read_text().splitlines()
  heads, _, *rows = (
      [cell.strip() for cell in line.strip('|').split('|')]
      for line in lines if line.startswith('|')
  )
  names = ['Codec', 'bytes', 'times smaller', 'nDCG@10', 'Recall@1000', 'p']
  assert heads == names
  found = {name: cells for name, *cells in rows}
  dim = int(found['int8'][0])
  # Vectors, 8 links of every passage or more, and the like.
  assert 4 * dim + 8 * 4 < float(found['hnsw:4'][0]) < 4 * dim + 30 * 4
  sizes = {
      'float32': 4 * dim, 'fp16': 2 * dim, 'int8': dim, 'pca:8': 32,
      'opq:4x2': 1, 'binary': dim / 8, 'binary:110': dim / 8,
  }
  sizes['hnsw:4'] = tiny_evaluation.result_of(table / 'codecs' / 'hnsw-4')[
      'bytes_per_passage'
  ]
  assert found.keys() == sizes.keys()
  for name, (size, smaller, ndcg, _, p) in found.items():
    assert float(size) == pytest.approx(sizes[name], rel=1e-5)
    assert float(smaller) == pytest.approx(4 * dim / sizes[name], rel=0.005)
    assert (p == '-') == (name == 'float32')
    folder = table / 'codecs' / name.replace(':', '-')
    own = tiny_evaluation.result_of(table if name == 'float32' else folder)
    assert own.get('codec', 'float32') == name
    assert ndcg == f'{100 * own["metrics"]["nDCG@10"]:.1f}'
    assert own['bytes_per_passage'] == sizes[name]


def test_every_row_is_timed_if_asked_for(model, table, tmp_path, capsys):
  flags = '--codecs=binary:100,hnsw:4', '--time_codecs', '--metrics=P@3'
  out = tiny_evaluation.run(model, tmp_path / 'out', *flags)
  printed = capsys.readouterr().out
  heads = 'Codec bytes times smaller ms nDCG@10 Recall@1000 P@3 p'
  (line,) = (own for own in printed.splitlines() if own.startswith('Codec  '))
  assert line.split() == heads.split()
  assert 'ms: the search of one query for 1000 hits' in printed
  folders = out, out / 'codecs' / 'binary-100', out / 'codecs' / 'hnsw-4'
  shown = [
      line.split()[3] for line in printed.splitlines()
      if line.startswith(('float32', 'binary', 'hnsw'))
  ]
  taken = [
      tiny_evaluation.result_of(folder)['search_ms'] for folder in folders
  ]
  assert {f'{ms:.2f}' for ms in taken} == {*shown} and min(taken) > 0
  # The graph and its hits are the same again.
  for name in ('run.trec', 'per_query.tsv'):
    again, first = (
        (folder / 'codecs' / 'hnsw-4' / name).read_text().splitlines()
        for folder in (out, table)
    )
    if name == 'run.trec':
      assert again == first
  assert 'search_ms' not in tiny_evaluation.result_of(table)


def test_quality_over_bytes_and_over_candidates(table, tmp_path):
  of_codecs = [str(table / 'codecs' / name) for name in ('int8', 'opq-4x2')]
  of_steps = [
      str(table / 'codecs' / name) for name in ('binary', 'binary-110')
  ]
  for over, systems, expected in (
      ('bytes', [str(table), *of_codecs], {'opq:4x2': 1, 'int8': 128,
                                           'fp32': 512}),
      ('candidates', of_steps, {'binary:110': 110, 'binary': 1000}),
  ):
    names = ','.join(['{codec}'] * len(systems))
    compare.main([
        *systems, f'--names={names}', f'--over={over}',
        f'--output_dir={tmp_path}',
    ])
    path = tmp_path / f'ndcg_10_over_{over}_beir_scifact_test.csv'
    heads, *rows = [line.split(',') for line in path.read_text().splitlines()]
    assert heads == ['line', 'model', over, 'nDCG@10']
    assert {name: int(number) for _, name, number, _ in rows} == expected


def test_an_index_of_codes_is_evaluated(model, table, tmp_path):
  index = tmp_path / 'index'
  encode.main([
      f'--model_dir={model}', '--gin_file=tasks/beir.gin',
      '--gin.BEIR_SET=scifact',
      f'--gin.DATA_ROOT={model.parent / "data"}', f'--index_dir={index}',
      '--codec=opq:4x2',
  ])
  flag = f'--index_dir={index}'
  codes = tiny_evaluation.run(model, tmp_path / 'codes', flag)
  one, other = (
      tiny_evaluation.result_of(folder)['metrics']
      for folder in (codes, table / 'codecs' / 'opq-4x2')
  )
  assert one == other
  for flags, message in (
      ([flag, '--codecs=int8'], 'holds codes of opq:4x2'),
      ([flag, '--candidates=9'], 'this one has codes of opq:4x2'),
      (['--candidates=9'], 'give --index_dir, too'),
  ):
    with pytest.raises(UserError, match=message):
      tiny_evaluation.run(model, tmp_path / 'no', *flags)


def test_a_retriever_makes_codes(model, monkeypatch):
  retriever, floats = (Retriever.from_dir(model) for _ in range(2))
  texts = [f'def f_{i}(x): return x + {i * i}' for i in range(40)]
  retriever.index(texts, codec='int8')
  found = retriever.search(['f_7'], k=40)
  floats.index(floats.encode_passages(texts))
  by_id = dict(zip(*[x[0] for x in floats.search(['f_7'], k=40)[::-1]]))
  np.testing.assert_allclose(
      found.scores[0], [by_id[i] for i in found.ids[0]], atol=0.01
  )
  assert np.any(found.scores != floats.search(['f_7'], k=40).scores)
  # Nothing is encoded for a codec that cannot be.
  monkeypatch.delattr(Retriever, 'encode_passages')
  with pytest.raises(UserError, match='at least 256 vectors .* are 40'):
    retriever.index(texts, codec='pq:8')


def test_the_models_own_index_keeps_its_codec(tmp_path):
  model = tiny_evaluation.copy_model(tmp_path / 'model')
  flag = f'--model_dir={model}'
  encode.main([flag, '--codec=binary'])
  with pytest.raises(UserError, match='index of --codec=binary, not int8'):
    encode.main([flag, '--codec=int8'])
  (model / 'index' / 'shard-00000' / 'ids.txt').unlink()
  encode.main([flag])
  assert Index.open(model / 'index').header.codec == 'binary'
  encode.main([flag, '--codec=int8', '--overwrite'])
  assert Index.open(model / 'index').header.codec == 'int8'


@pytest.mark.parametrize(
    ('codec', 'message'),
    [
        ('pq:4', 'pq:4 needs at least 256 vectors'),
        ('binary:5', 'binary:5 scores only 5 hits .* need 100'),
        ('hnsw', "'hnsw'; expected hnsw:M with M links"),
        ('hnsw:1', "'hnsw:1'; expected hnsw:M with M links"),
        ('pca:8+hnsw:4', 'hnsw:4 is a graph of float embeddings'),
    ],
)
def test_a_codec_in_vain_is_refused_before_anything_is_encoded(
    model, tmp_path, monkeypatch, codec, message
):
  def encode(*args):
    raise AssertionError('It encodes.')

  monkeypatch.setattr(evaluation, 'encode_queries', encode)
  with pytest.raises(UserError, match=message):
    tiny_evaluation.run(model, tmp_path / 'out', f'--codecs=fp16,{codec}')


def test_a_graph_without_faiss_or_in_an_index(model, tmp_path, monkeypatch):
  with pytest.raises(UserError, match='^hnsw:32 is a graph of float emb'):
    encode.main([f'--model_dir={model}', '--codec=hnsw:32'])
  with pytest.raises(UserError, match='--time_codecs needs --codecs'):
    tiny_evaluation.run(model, tmp_path / 'out', '--time_codecs')
  with monkeypatch.context() as patch:
    patch.setattr(runtime, 'start', lambda: pytest.fail('It starts.'))
    patch.setattr(importlib.util, 'find_spec', lambda name: None)
    message = r"=hnsw:32 needs faiss: pip install 'dualenc-jax\[faiss\]'"
    with pytest.raises(UserError, match=message):
      tiny_evaluation.run(model, tmp_path / 'out', '--codecs=int8,hnsw:32')
