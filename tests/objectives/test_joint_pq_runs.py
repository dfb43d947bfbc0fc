"""JPQ and JPQ+GPL by commands: trained, killed, evaluated, converted."""

import json

import faiss
import faiss_levels
from interrupted import stopped_at
import numpy as np
import pytest
from run_files import assert_same, logged, rows_of, tensors_and_codec
import small_vocabulary
import tiny_run
import two_hosts

import dualenc_jax
from dualenc_jax.commands import cli, search, train
from dualenc_jax.compression import model_codec
from dualenc_jax.errors import UserError
from dualenc_jax.index import Index
from dualenc_jax.interop import loading, model_dirs, opening
from dualenc_jax.objectives import passage_states

pytestmark = pytest.mark.slow
faiss_levels.keep_queries()
BYTES, DEPTH, TEMPERATURE = 8, 6, 0.05


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A dual encoder, an index by it, and a cross-encoder of its vocabulary."""
  folder = tmp_path_factory.mktemp('made')
  given = tiny_run.flags(folder, '--gin.STEPS=20', '--gin.TEMPERATURE=0.1')
  train.main([*given, f'--model_dir={folder / "dense"}'])
  train.main([
      *tiny_run.flags(folder, '--gin_file=architectures/cross_encoder.gin'),
      '--gin.PAIR_LENGTH=48', '--gin.STEPS=5',
      f'--model_dir={folder / "teacher"}',
  ])
  codec = '--codec=opq:16x4', f'--index_dir={folder / "index"}'
  run('encode', folder / 'dense', *codec)
  return folder


def run(command, model_dir, *more):
  assert cli.main([command, f'--model_dir={model_dir}', *more]) == 0


def flags(folder, made, *more, loss='jpq', depth=20):
  folder.mkdir(exist_ok=True)
  return tiny_run.flags(
      folder, f'--gin_file=losses/{loss}.gin',
      f'--gin.INITIAL_CHECKPOINT_PATH={made / "dense"}',
      f'--gin.CODEC_FROM={made / "index"}', '--gin.LEARNING_RATE=1e-3',
      f'--gin.TEMPERATURE={TEMPERATURE}', f'--gin.JPQ_DEPTH={depth}', *more,
  )


def joint(folder, made, *more):
  return flags(folder, made, '--gin.JPQ_CUT=20', *more)


def taught(folder, made, *more):
  teacher = f'--gin.TEACHER_DIR={made / "teacher"}', '--gin.LEAST_SPREAD=0.0'
  return flags(folder, made, *teacher, *more, loss='jpq_gpl', depth=DEPTH)


@pytest.fixture(scope='module')
def trained(made, tmp_path_factory):
  folder = tmp_path_factory.mktemp('jpq')
  given = joint(folder, made, '--gin.STEPS=30', '--gin.EVAL_EVERY=30')
  train.main([*given, f'--model_dir={folder / "jpq"}'])
  return folder / 'jpq'


def test_what_is_frozen_stays_and_the_rest_learns(made, trained):
  losses = [row['loss'] for row in logged(trained)]
  assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
  before, after = tensors_and_codec(made / 'dense'), tensors_and_codec(trained)
  for name, value in before.items():
    np.testing.assert_array_equal(after[f'passage_{name}'], value)
  assert any(np.any(after[name] != value) for name, value in before.items())
  codec = model_codec.arrays(Index.open(made / 'index').embeddings.codec)
  for name, value in codec.items():
    same = np.array_equal(after[f'codec/{name}'], value)
    assert same == (name != 'score'), name


def decoded(retriever, texts):
  """float64, by hand: nearest `assign`, then what `score` has there."""
  codec = retriever.towers.codec
  (rotation,), quantiser = codec.transforms, codec.quantiser
  parts, _, width = quantiser.assign.shape
  vectors = retriever.encode_passages(texts).astype(np.float64)
  vectors = (vectors @ rotation.matrix.T).reshape(len(texts), parts, 1, width)
  codes = np.square(vectors - quantiser.assign).sum(axis=3).argmin(axis=2)
  return np.concatenate(
      [quantiser.score[m][codes[:, m]] for m in range(parts)], axis=1
  ).astype(np.float64)


def test_the_model_is_used_through_its_codec(trained, tmp_path, capfd):
  out = tmp_path / 'out'
  where = f'--output_dir={out}', '--baselines='
  run('evaluate', trained, '--split=test', *where)
  metrics = json.loads((out / 'metrics.json').read_text())
  assert (metrics['codec'], metrics['bytes_per_passage']) == ('jpq:16x4', BYTES)
  # As while it was trained: the validation split has the same pairs.
  last = logged(trained, 'validation')[-1]
  for name in ('MRR', 'nDCG@10', 'Recall@10'):
    assert metrics['metrics'][name] == pytest.approx(last[name], rel=1e-6)

  retriever = dualenc_jax.Retriever.from_dir(trained)
  lines = (trained.parent / 'test.jsonl').read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  passages = sorted({row['passage'] for row in rows})
  queries = [row['query'] for row in rows]
  vectors = decoded(retriever, passages)
  (rotation,) = retriever.towers.codec.transforms
  own_scores = (
      retriever.encode_queries(queries).astype(np.float64) @ rotation.matrix.T
  ) @ vectors.T
  retriever.index(passages)
  hits = retriever.search(queries, k=3)
  np.testing.assert_allclose(
      hits.scores, -np.sort(-own_scores, axis=1)[:, :3], rtol=1e-5, atol=1e-6
  )
  best = {}
  for scores, row in zip(own_scores, rows):
    rank = 1 + np.sum(scores > scores[passages.index(row['passage'])])
    # Two rows may have one query.
    best[row['query']] = min(rank, best.get(row['query'], rank))
  assert np.mean(1 / np.array([*best.values()])) == pytest.approx(
      metrics['metrics']['MRR'], abs=0.02
  )
  # Saved and opened again it has its codec, for other passages, too.
  retriever.save(tmp_path / 'saved')
  again = dualenc_jax.Retriever.from_dir(tmp_path / 'saved')
  np.testing.assert_array_equal(again.search(queries, k=3).ids, hits.ids)
  again.index(passages)
  np.testing.assert_allclose(again.search(queries, k=3).scores, hits.scores)


def test_search_and_its_index(made, trained, tmp_path, capfd):
  search.main([f'--model_dir={trained}', 'find array map'])
  first = capfd.readouterr().out
  index = Index.open(trained / 'index')
  quantiser = index.embeddings.codec.quantiser
  assert index.header.codec == 'jpq:16x4'
  assert np.any(quantiser.assign != quantiser.score)
  assert index.embeddings.codes.shape[1] == BYTES
  # Codes are those of the index that training started from.
  np.testing.assert_array_equal(
      index.embeddings.codes[:], Index.open(made / 'index').embeddings.codes[:]
  )
  # And faiss has the same scores of them.
  out = tmp_path / 'faiss'
  argv = 'convert', str(index.folder), '--to=faiss', f'--out={out}'
  assert cli.main([*argv]) == 0
  retriever = dualenc_jax.Retriever.from_dir(trained, index=index.folder)
  queries = retriever.encode_queries(['find array map', 'a date'])
  scores, rows = faiss.read_index(str(out / 'index.faiss')).search(queries, 5)
  hits = retriever.search(queries, len(index))
  np.testing.assert_allclose(scores, hits.scores[:, :5], atol=1e-5)
  ids = (out / 'ids.txt').read_text().splitlines()
  for own_ids, values, theirs, found in zip(*hits[::-1], rows, scores):
    by_id = dict(zip(own_ids, values))
    np.testing.assert_allclose(
        [by_id[ids[row]] for row in theirs], found, atol=1e-5
    )
  # Another step has other centroids, and so another index.
  older = tmp_path / 'older'
  given = joint(trained.parent, made, '--gin.STEPS=2', '--gin.EVAL_EVERY=0')
  train.main([*given, f'--model_dir={older}'])
  with pytest.raises(UserError, match='codec jpq:16x4 belongs to another'):
    search.main([
        f'--model_dir={older}', f'--index_dir={trained / "index"}', 'array'
    ])
  # One without a codec is told, which may be a query tower of few layers.
  other = f'--model_dir={made / "dense"}', f'--index_dir={index.folder}'
  search.main([*other, 'map'])
  assert 'by jpq:16x4, were trained for the queries' in capfd.readouterr().err
  # The index of embeddings is of the same passage tower.
  whole = tmp_path / 'whole'
  run('encode', made / 'dense', f'--index_dir={whole}')
  capfd.readouterr()
  search.main([
      f'--model_dir={trained}', f'--index_dir={whole}', 'find array map'
  ])
  other = capfd.readouterr().out
  assert len(other.splitlines()) == len(first.splitlines()) and other != first
  # What is asked for wins.
  run('encode', trained, '--codec=fp16', f'--index_dir={tmp_path / "half"}')
  assert Index.open(tmp_path / 'half').header.codec is None


def test_converted_it_keeps_its_codec_or_says_so(trained, tmp_path, capfd):
  new = tmp_path / 'new'
  given = 'convert', str(trained)
  assert cli.main([*given, '--to=model_dir', f'--out={new}']) == 0
  one, other = opening.load(trained).codec, opening.load(new).codec
  assert model_codec.digest(one) == model_codec.digest(other)
  assert one.name == other.name
  capfd.readouterr()
  plain = '--to=safetensors', f'--out={tmp_path / "plain"}'
  assert cli.main([*given, *plain]) == 0
  assert 'Its codec, jpq:16x4, is left out' in capfd.readouterr().out


def test_codecs_are_of_embeddings(trained, capfd):
  given = f'--model_dir={trained}', '--split=test', '--codecs=int8'
  assert cli.main(['evaluate', *given]) == 2
  assert 'measured by its own codec' in capfd.readouterr().err


def test_a_killed_run_ends_as_it_would_have(made, tmp_path, monkeypatch):
  """Bit for bit; of a folder that keeps the codes, too."""
  given = joint(
      tmp_path, made, '--gin.STEPS=5', '--gin.CHECKPOINT_EVERY=2',
      '--gin.JPQ_REFRESH=3', f'--gin.STATES_DIR={tmp_path / "kept"}',
  )
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  train.main([*given, f'--model_dir={whole}'])

  def encode(*_):
    raise AssertionError('encoded again')

  monkeypatch.setattr(passage_states.Passages, 'encode', encode)
  with stopped_at(4, saved=False):
    train.main([*given, f'--model_dir={killed}'])
  assert model_dirs.steps(killed) == [2]
  train.main([*given, f'--model_dir={killed}'])
  assert_same(tensors_and_codec(whole), tensors_and_codec(killed))
  assert [row['loss'] for row in logged(whole)] == [
      row['loss'] for row in logged(killed)
  ]


def test_what_cannot_be_trained(made, tmp_path):
  other = tmp_path / 'other'
  given = tiny_run.flags(tmp_path, '--gin.STEPS=1', '--gin.SEED=3')
  train.main([*given, f'--model_dir={other}'])
  for more, message in (
      (
          [f'--gin.INITIAL_CHECKPOINT_PATH={other}'],
          'of another passage tower than the one that training starts from',
      ),
      (
          ['--gin.INITIAL_CHECKPOINT_PATH=None'],
          'JointPq learns from a trained passage tower',
      ),
  ):
    with pytest.raises(UserError, match=message):
      train.main([
          *joint(tmp_path, made, *more), f'--model_dir={tmp_path / "new"}'
      ])


def test_the_first_step_learns_margins_of_the_exact_hits(made, tmp_path):
  """All queries at once; search and teacher by texts, from outside."""
  folder = tmp_path / 'run'
  train.main([
      *taught(folder, made, '--gin.BATCH_SIZE=96', '--gin.DROPOUT_RATE=0.0'),
      '--gin.STEPS=1', f'--model_dir={folder / "jpq"}',
  ])
  rows, passages = rows_of(folder)
  retriever = dualenc_jax.Retriever.from_dir(made / 'dense')
  codec = Index.open(made / 'index').embeddings.codec
  vectors = codec.decode(codec.encode(retriever.encode_passages(passages)))
  queries = [row['query'] for row in rows]
  scores = codec.queries(retriever.encode_queries(queries)).astype(
      np.float64
  ) @ np.asarray(vectors, np.float64).T
  own_rows = [passages.index(row['passage']) for row in rows]
  order = np.argsort(-scores, axis=1, kind='stable')[:, :DEPTH]
  pairs = [
      [query, passage]
      for query, found in enumerate(order)
      for passage in (own_rows[query], *found)
  ]
  teacher = loading.load_teacher(made / 'teacher').scores(
      queries, passages, np.array(pairs)
  ).reshape(len(rows), -1)
  # Of one query text there may be several passages.
  labelled = [
      {i for i, row in zip(own_rows, rows) if row['query'] == query}
      for query in queries
  ]
  losses = []
  for q, found in enumerate(order):
    errors = [
        (
            (scores[q, own_rows[q]] - scores[q, j]) / TEMPERATURE
            - (teacher[q, 0] - teacher[q, 1 + place])
        )
        ** 2
        for place, j in enumerate(found)
        if j not in labelled[q]
    ]
    losses.append(np.mean(errors))
  (row,) = logged(folder / 'jpq')
  assert row['loss'] == pytest.approx(np.mean(losses), rel=1e-3)
  distinct = {(queries[q], p) for q, p in pairs}
  assert row['asked'] == pytest.approx(len(distinct) / len(rows))


def test_a_killed_taught_run_ends_as_it_would_have(made, tmp_path):
  """Bit for bit, and no pair is asked for twice, by another run neither."""
  given = taught(
      tmp_path / 'data', made, '--gin.STEPS=8', '--gin.CHECKPOINT_EVERY=3'
  )
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  train.main([
      *given, f'--gin.STATES_DIR={tmp_path / "one"}', f'--model_dir={whole}'
  ])
  given = *given, f'--gin.STATES_DIR={tmp_path / "other"}'
  with stopped_at(6, saved=False):
    train.main([*given, f'--model_dir={killed}'])
  assert model_dirs.steps(killed) == [3]
  train.main([*given, f'--model_dir={killed}'])
  assert_same(tensors_and_codec(whole), tensors_and_codec(killed))
  rows = logged(whole)
  assert [r['loss'] for r in rows] == [r['loss'] for r in logged(killed)]
  asked = [row['asked'] for row in rows]
  # Two steps of the second epoch, whose queries have been seen.
  assert max(asked[6:]) < min(asked[:6])
  files = [*tmp_path.glob('o*/teacher-*.bin')]
  assert len(files) == 2
  assert files[0].read_bytes() == files[1].read_bytes()
  assert files[0].stat().st_size == 20 * round(16 * sum(asked))
  third = tmp_path / 'third'
  train.main([*given, f'--model_dir={third}'])
  assert {row['asked'] for row in logged(third)} == {0.0}


def test_two_hosts_train_as_one(made, tmp_path):
  given = taught(
      tmp_path / 'data', made, '--gin.STEPS=3', '--gin.DROPOUT_RATE=0.0'
  )
  one, two = tmp_path / 'one', tmp_path / 'two'
  train.main([*given, f'--model_dir={one}'])
  two_hosts.run('train', *given, f'--model_dir={two}')
  losses = [[row['loss'] for row in logged(run)] for run in (one, two)]
  assert losses[1] == pytest.approx(losses[0], rel=1e-5)
  # Each host asks for itself.
  asked = [[row['asked'] for row in logged(run)] for run in (one, two)]
  assert all(a <= b <= 1 + DEPTH for a, b in zip(*asked))


def test_what_cannot_be_taught(made, tmp_path):
  other = tmp_path / 'other'
  other.mkdir()
  train.main([
      *tiny_run.flags(other, '--gin_file=architectures/cross_encoder.gin'),
      f'--gin.VOCABULARY={small_vocabulary.write(other / "own.model")}',
      '--gin.VOCAB_SIZE=384', '--gin.PAIR_LENGTH=60', '--gin.STEPS=1',
      f'--model_dir={other / "teacher"}',
  ])
  for more, message in (
      (['--gin.TEACHER_DIR=None'], 'TEACHER_DIR is None; expected the model_d'),
      (
          [f'--gin.TEACHER_DIR={made / "dense"}'],
          'is a dual encoder, not a cross-encoder',
      ),
      (
          [f'--gin.TEACHER_DIR={other / "teacher"}'],
          'of another vocabulary than .*, whose tokens the run has',
      ),
      (
          ['--gin.QUERY_LENGTH=60'],
          'leave room for queries of .* tokens, and QUERY_LENGTH is 60',
      ),
      (
          ["--gin.data.Tokenizer.query_prefix='q: '"],
          "with the prefixes {}, and the run has {'query_prefix': 'q: '}",
      ),
      (['--gin.LEAST_SPREAD=1e3'], 'margins have a standard deviation of'),
  ):
    with pytest.raises(UserError, match=message):
      train.main([
          *taught(tmp_path / 'data', made, *more),
          f'--model_dir={tmp_path / "new"}',
      ])
