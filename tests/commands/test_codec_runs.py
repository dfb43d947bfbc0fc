"""Codecs through the commands: encode, search, evaluate, Retriever."""

import csv

import numpy as np
import pytest
import tiny_beir
import tiny_evaluation

from dualenc_jax import compression, Retriever
from dualenc_jax.commands import analyze, encode, search
from dualenc_jax.errors import UserError
from dualenc_jax.evaluation import evaluation
from dualenc_jax.index import Index

CODECS = 'fp16,int8,pca:8:queries,rotated:4,opq:4x2,binary'


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  tiny_beir.make_large().write(folder / 'data' / 'beir' / 'scifact')
  return tiny_evaluation.link_model(folder)


@pytest.fixture(scope='module')
def whole(model):
  folder = model.parent / 'whole'
  encode.main([f'--model_dir={model}', f'--index_dir={folder}'])
  return Index.open(folder)


def encoded(model, folder, codec, *more):
  encode.main([
      f'--model_dir={model}', f'--index_dir={folder}', f'--codec={codec}',
      '--shard_size=20', *more,
  ])
  return Index.open(folder)


@pytest.mark.parametrize('codec', ['pq:4x2', 'binary', 'bf16'])
def test_an_index_of_codes_is_searched(codec, model, whole, tmp_path, capsys):
  index = encoded(model, tmp_path / 'index', codec)
  retriever = Retriever.from_dir(model, index=tmp_path / 'index')
  query = 'parse a date'
  hits = retriever.find([query], k=3)[0]
  queries = retriever.encode_queries([query])
  stored = index.embeddings
  if codec == 'bf16':
    assert stored.dtype.name == 'bfloat16'
    scores = queries.astype(np.float64) @ stored[:].astype(np.float64).T
  else:
    own = stored.codec.queries(queries).astype(np.float64)
    scores = own @ stored[:].astype(np.float64).T
    # It was trained on these very vectors.
    again = stored.codec.encode(whole.embeddings[:])
    np.testing.assert_array_equal(again, stored.codes[:])
  best = np.sort(scores[0])[::-1][:3]
  np.testing.assert_allclose([hit.score for hit in hits], best, rtol=1e-5)
  if codec == 'bf16':
    vectors = whole.embeddings[:].astype(np.float64)
    np.testing.assert_allclose(scores, queries @ vectors.T, atol=0.01)
  capsys.readouterr()
  search.main([
      f'--model_dir={model}', f'--index_dir={tmp_path / "index"}', '--k=3',
      query,
  ])
  shown = capsys.readouterr().out.splitlines()
  assert [line.split()[0] for line in shown[1::2]] == [
      f'{hit.score:.3f}' for hit in hits
  ]


def test_other_candidates_of_the_same_index(model, whole, tmp_path, capsys):
  for codec in ('binary', 'binary:7'):
    encoded(model, tmp_path / codec, codec)
  queries = ['parse a date', 'open a file', 'sort by key']

  def hits(codec, candidates=None):
    return Retriever.from_dir(
        model, index=tmp_path / codec, candidates=candidates
    ).search(queries, 7)

  found = [hits('binary', 7), hits('binary:7'), hits('binary')]
  np.testing.assert_array_equal(found[0].ids, found[1].ids)
  np.testing.assert_array_equal(found[0].scores, found[1].scores)
  assert np.any(found[0].ids != found[2].ids)
  # More than there are: all.
  more = hits('binary:7', 10**6), hits('binary', 96)
  np.testing.assert_array_equal(more[0].ids, more[1].ids)
  capsys.readouterr()
  flags = f'--index_dir={tmp_path / "binary"}', '--k=7', '--candidates=7'
  search.main([f'--model_dir={model}', *flags, queries[0]])
  lines = capsys.readouterr().out.splitlines()[1::2]
  assert [line.split()[0] for line in lines] == [
      f'{score:.3f}' for score in found[0].scores[0]
  ]
  with pytest.raises(UserError, match='10 hits .* binary:7 scores only 7'):
    Retriever.from_dir(
        model, index=tmp_path / 'binary', candidates=7
    ).search(queries, 10)
  with pytest.raises(UserError, match='this one has no codes'):
    Retriever.from_dir(model, index=whole.folder, candidates=7)


def test_it_is_gone_on_with(model, tmp_path, monkeypatch):
  whole = encoded(model, tmp_path / 'whole', 'pq:4x2')
  encode.main([
      f'--model_dir={model}', f'--index_dir={tmp_path / "shared"}',
      '--codec=pq:4x2', '--shard_size=20', '--host_index=1', '--host_count=2',
  ])
  half = tmp_path / 'shared.partial'
  first = (half / 'codec.safetensors').read_bytes()
  index = encoded(model, tmp_path / 'shared', 'pq:4x2')
  assert (index.folder / 'codec.safetensors').read_bytes() == first
  np.testing.assert_array_equal(
      index.embeddings.codes[:], whole.embeddings.codes[:]
  )
  for codec, message in (
      ('int8', "codec is 'pq:4x2', expected 'int8'"),
      ('pq:4', 'pq:4 needs at least 256 vectors for training'),
      ('fp8', "No codec is called 'fp8'"),
  ):
    with pytest.raises(UserError, match=message):
      encoded(model, tmp_path / 'shared', codec)
  assert encoded(model, tmp_path / 'shared', 'int8', '--overwrite').header.codec


def test_a_saved_retriever_keeps_its_codes(model, tmp_path):
  encoded(model, tmp_path / 'index', 'opq:4x2')
  retriever = Retriever.from_dir(model, index=tmp_path / 'index')
  retriever.save(tmp_path / 'saved')
  again = Retriever.from_dir(tmp_path / 'saved')
  queries = ['parse a date', 'open a file']
  for hybrid in (None, 0.5):
    one, other = (r.search(queries, 5, hybrid) for r in (retriever, again))
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)


def test_codecs_in_one_table(model, tmp_path, capsys):
  output = tiny_evaluation.run(model, tmp_path / 'out', f'--codecs={CODECS}')
  with (output / 'codecs' / 'codecs.csv').open() as file:
    rows = {row['codec']: row for row in csv.DictReader(file)}
  assert list(rows) == ['fp32', *CODECS.split(',')]
  dim = int(rows['int8']['bytes_per_passage'])
  sizes = {
      'fp32': 4 * dim, 'fp16': 2 * dim, 'int8': dim, 'pca:8:queries': 32,
      'rotated:4': dim / 2, 'opq:4x2': 1, 'binary': dim / 8,
  }
  for name, row in rows.items():
    assert float(row['bytes_per_passage']) == sizes[name]
    smaller = pytest.approx(4 * dim / sizes[name], rel=1e-5)
    assert float(row['compression']) == smaller
    assert (row['p'] == '') == (name == 'fp32')
    own = tiny_evaluation.result_of(
        output if name == 'fp32' else output / 'codecs' / name.replace(':', '-')
    )
    assert name in ('fp32', own.get('codec'))
    ndcg = pytest.approx(float(row['nDCG@10']), rel=1e-5)
    assert own['metrics']['nDCG@10'] == ndcg
  shown = capsys.readouterr().out
  assert 'Codecs on beir-scifact test' in shown and 'rotated:4' in shown
  for stem in ('codecs-bytes', 'codecs-two-steps'):
    assert (output / 'codecs' / f'{stem}.png').stat().st_size > 1000
  # An evaluation without them leaves none that are not its own.
  tiny_evaluation.run(model, output)
  assert not (output / 'codecs').exists()


def test_an_index_of_codes_is_evaluated(model, tmp_path):
  data = model.parent / 'data'
  index = tmp_path / 'index'
  encode.main([
      f'--model_dir={model}', '--gin_file=tasks/beir.gin',
      '--gin.BEIR_SET=scifact', '--gin.BEIR_TOLERANCE=1.0',
      f'--gin.DATA_ROOT={data}', f'--index_dir={index}', '--codec=pq:4x2',
  ])
  flag = f'--index_dir={index}'
  codes = tiny_evaluation.run(model, tmp_path / 'codes', flag)
  table = tiny_evaluation.run(model, tmp_path / 'out', '--codecs=pq:4x2')
  for flags, message in (
      ([flag, '--codecs=int8'], 'holds codes of pq:4x2'),
      ([flag, '--candidates=9'], 'this one has codes of pq:4x2'),
      (['--candidates=9'], 'give --index_dir, too'),
  ):
    with pytest.raises(UserError, match=message):
      tiny_evaluation.run(model, tmp_path / 'no', *flags)
  one = tiny_evaluation.result_of(codes)['metrics']
  other = tiny_evaluation.result_of(table / 'codecs' / 'pq-4x2')['metrics']
  assert one == other


def test_a_retriever_makes_codes(model, tmp_path, monkeypatch):
  retriever = Retriever.from_dir(model)
  texts = [f'def f_{i}(x): return x + {i * i}' for i in range(40)]
  retriever.index(texts, codec='int8')
  found = retriever.search(['f_7'], k=40)
  floats = Retriever.from_dir(model)
  floats.index(floats.encode_passages(texts))
  by_id = dict(zip(*[x[0] for x in floats.search(['f_7'], k=40)[::-1]]))
  np.testing.assert_allclose(
      found.scores[0], [by_id[i] for i in found.ids[0]], atol=0.01
  )
  retriever.save(tmp_path / 'saved')
  index = Index.open(tmp_path / 'saved' / 'index')
  assert index.header.codec == 'int8' and index.embeddings.codes.dtype == 'u1'
  again = Retriever.from_dir(tmp_path / 'saved').search(['f_7'], k=40)
  np.testing.assert_array_equal(again.ids, found.ids)
  # Nothing is encoded for a codec that cannot be.
  monkeypatch.delattr(Retriever, 'encode_passages')
  with pytest.raises(UserError, match='at least 256 vectors .* are 40'):
    retriever.index(texts, codec='pq:8')
  with pytest.raises(UserError, match="No codec is called 'int9'"):
    retriever.index(texts, codec='int9')


def test_codes_are_not_analysed(model, tmp_path):
  encoded(model, tmp_path / 'index', 'int8', '--split=test')
  with pytest.raises(UserError, match='holds codes of int8'):
    analyze.main([
        f'--model_dir={model}', f'--index_dir={tmp_path / "index"}',
        f'--output_dir={tmp_path / "out"}',
    ])


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
        ('pq:7', 'pq:7 of vectors of dim 128: '),
        ('pca:1000', 'pca:1000 of vectors of dim 128: expected at most 128'),
        ('pca:8+opq:3', 'opq:3 of vectors of dim 8: '),
        ('pq:4', 'pq:4 needs at least 256 vectors'),
        ('binary:5', 'binary:5 scores only 5 hits .* need 100'),
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


@pytest.mark.parametrize(
    ('codec', 'count', 'more'),
    [
        ('int8', 1, ''), ('sign', 1, ''), ('pca:4', 4, '+rotated:4'),
        ('pq:2x2', 4, ''), ('opq:2x2', 4, ''),
        # It trains for most of a minute.
        pytest.param('tldr:2', 6, '', marks=pytest.mark.slow),
    ],
)
def test_it_takes_so_many_vectors_and_no_more(codec, count, more):
  vectors = np.random.default_rng(0).normal(size=(count, 8)).astype(np.float32)
  spec = compression.spec(codec + more)
  assert len(spec.fit(vectors).encode(vectors)) == count
  if count > 1:
    with pytest.raises(UserError, match=f'at least {count} vectors'):
      spec.fit(vectors[1:])
