"""JPQ and JPQ+GPL by commands: trained, killed, evaluated, converted."""

import json
import shutil
import string

import faiss
import faiss_levels
from interrupted import stopped_at
import numpy as np
import pytest
from run_files import assert_same, logged, rows_of, tensors_and_codec
import shared_runs
import tiny_run
import torch
import transformers
import two_hosts

import dualenc_jax
from dualenc_jax.checkpoints import (
  checkpoint_reader,
  foreign_models,
  formats,
  loading,
)
from dualenc_jax.cli import main as cli, search, train
from dualenc_jax.retrieval.compression import model_codec
from dualenc_jax.retrieval.index import Index
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.nightly
faiss_levels.keep_queries()
BYTES, DEPTH, TEMPERATURE = 8, 6, 0.05


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A dual encoder, and an index by it."""
  folder = tmp_path_factory.mktemp('made')
  given = tiny_run.flags(folder, '--gin.STEPS=20', '--gin.TEMPERATURE=0.1')
  train.main([*given, f'--model_dir={folder / "dense"}'])
  codec = '--codec=opq:16x4', f'--index_dir={folder / "index"}'
  run('encode', folder / 'dense', *codec)
  return folder


def run(command, model_dir, *more):
  assert cli.main([command, f'--model_dir={model_dir}', *more]) == 0


def flags(folder, made, *more, loss='jpq', depth=20):
  folder.mkdir(exist_ok=True)
  return tiny_run.flags(
      folder, f'--gin_file=objectives/{loss}.gin',
      f'--gin.INITIAL_CHECKPOINT_PATH={made / "dense"}',
      f'--gin.CODEC_FROM={made / "index"}', '--gin.LEARNING_RATE=1e-3',
      f'--gin.TEMPERATURE={TEMPERATURE}', f'--gin.JPQ_DEPTH={depth}', *more,
  )


def joint(folder, made, *more):
  return flags(folder, made, '--gin.JPQ_CUT=20', *more)


def taught(folder, made, *more, teacher=None):
  teacher = teacher or shared_runs.cross_encoder()
  return flags(
      folder, made, f'--gin.TEACHER_DIR={teacher}',
      '--gin.LEAST_SPREAD=0.0', *more, loss='jpq_gpl', depth=DEPTH,
  )


@pytest.fixture(scope='module')
def trained(made, tmp_path_factory):
  folder = tmp_path_factory.mktemp('jpq')
  given = joint(
      folder, made, '--gin.STEPS=30', '--gin.EVAL_EVERY=30'
  )
  train.main([*given, f'--model_dir={folder / "jpq"}'])
  return folder / 'jpq'


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


def test_the_model_is_used_through_its_codec(trained, tmp_path):
  out = tmp_path / 'out'
  where = f'--output_dir={out}', '--no_baselines'
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
  # Saved and opened again it has its codec.
  retriever.save(tmp_path / 'saved')
  again = dualenc_jax.Retriever.from_dir(tmp_path / 'saved')
  np.testing.assert_array_equal(again.search(queries, k=3).ids, hits.ids)


def test_search_and_its_index(made, trained, tmp_path):
  search.main([f'--model_dir={trained}', 'find array map'])
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
  argv = 'convert', str(index.folder), '--to=faiss', f'--output_dir={out}'
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


def test_converted_it_keeps_its_codec(trained, tmp_path):
  new = tmp_path / 'new'
  given = 'convert', str(trained), '--to=model_dir', f'--output_dir={new}'
  assert cli.main([*given]) == 0
  one, other = formats.load(trained).codec, formats.load(new).codec
  assert model_codec.digest(one) == model_codec.digest(other)
  assert one.name == other.name


def test_a_codec_of_another_tower(made, tmp_path):
  other = shutil.copytree(made / 'index', tmp_path / 'other')
  header = json.loads((other / 'header.json').read_text())
  header['provenance']['tower_sha256']['encoder'] = 64 * '0'
  (other / 'header.json').write_text(json.dumps(header))
  given = joint(tmp_path, made, f'--gin.CODEC_FROM={other}')
  with pytest.raises(UserError, match='of another passage tower than the one'):
    train.main([*given, f'--model_dir={tmp_path / "new"}'])


@pytest.fixture(scope='module')
def foreign(tmp_path_factory):
  """st:FOLDER of a random cross-encoder whose tokens are letters."""
  folder = tmp_path_factory.mktemp('foreign')
  letters = string.ascii_lowercase
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *letters]
  pieces += [f'##{letter}' for letter in letters]
  (folder / 'vocab.txt').write_text('\n'.join(pieces))
  torch.manual_seed(0)
  config = transformers.BertConfig(
      vocab_size=len(pieces), hidden_size=16, num_hidden_layers=1,
      num_attention_heads=2, intermediate_size=32, num_labels=1,
  )
  transformers.BertForSequenceClassification(config).save_pretrained(folder)
  tokenizer = transformers.BertTokenizer(str(folder / 'vocab.txt'))
  tokenizer.save_pretrained(folder)
  return f'st:{folder}'


@pytest.mark.parametrize('own', [True, False])
def test_the_first_step_learns_margins_of_the_exact_hits(
    own, made, trained, foreign, tmp_path
):
  """All queries at once; search and teacher by texts, from outside."""
  folder = tmp_path / 'run'
  whole = '--gin.BATCH_SIZE=96', '--gin.DROPOUT_RATE=0.0'
  train.main([
      *taught(folder, made, *whole, teacher=None if own else foreign),
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
  if own:
    ranker = loading.load_teacher(shared_runs.cross_encoder())
  else:
    ranker = foreign_models.load_teacher(foreign)
  teacher = ranker.scores(queries, passages, np.array(pairs))
  teacher = teacher.reshape(len(rows), -1)
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
  # It has other centroids than a model of other steps, whose index it refuses.
  index = f'--index_dir={tmp_path / "index"}'
  run('encode', trained, index)
  with pytest.raises(UserError, match='codec jpq:16x4 belongs to another'):
    search.main([f'--model_dir={folder / "jpq"}', index, 'array'])


@pytest.fixture(scope='module')
def teaching(made, tmp_path_factory):
  """A folder, and flags that have trained a model without a stop."""
  folder = tmp_path_factory.mktemp('taught')
  given = taught(
      folder / 'data', made, '--gin.STEPS=8', '--gin.CHECKPOINT_EVERY=3',
      '--gin.LEARNING_RATE=1e-4',
  )
  train.main([
      *given, f'--gin.STATES_DIR={folder / "one"}',
      f'--model_dir={folder / "whole"}',
  ])
  return folder, given


def test_a_killed_taught_run_ends_as_it_would_have(teaching):
  """Bit for bit, and no pair is asked for twice."""
  folder, given = teaching
  whole, killed = folder / 'whole', folder / 'killed'
  given = *given, f'--gin.STATES_DIR={folder / "other"}'
  with stopped_at(6, saved=False):
    train.main([*given, f'--model_dir={killed}'])
  assert checkpoint_reader.steps(killed) == [3]
  train.main([*given, f'--model_dir={killed}'])
  assert_same(tensors_and_codec(whole), tensors_and_codec(killed))
  rows = logged(whole)
  assert [r['loss'] for r in rows] == [r['loss'] for r in logged(killed)]
  asked = [row['asked'] for row in rows]
  # Two steps of the second epoch, whose queries have been seen.
  assert max(asked[6:]) < min(asked[:6])
  files = [*folder.glob('o*/teacher-*.bin')]
  assert len(files) == 2
  assert files[0].read_bytes() == files[1].read_bytes()
  assert files[0].stat().st_size == 20 * round(16 * sum(asked))


def test_two_hosts_train_as_one(teaching):
  folder, given = teaching
  two_hosts.run('train', *given, f'--model_dir={folder / "two"}')
  one, two = (logged(folder / name)[:4] for name in ('whole', 'two'))
  assert [row['loss'] for row in two] == pytest.approx(
      [row['loss'] for row in one], rel=1e-5
  )
  # Each host asks for itself.
  for alone, both in zip(one, two):
    assert alone['asked'] <= both['asked'] <= 1 + DEPTH


def test_what_cannot_be_taught(made, tmp_path):
  for more, message in (
      ('QUERY_LENGTH=60', 'leave room for queries .*, and QUERY_LENGTH is 60'),
      ('LEAST_SPREAD=1e3', 'margins have a standard deviation of'),
  ):
    given = taught(tmp_path / 'data', made, f'--gin.{more}')
    with pytest.raises(UserError, match=message):
      train.main([*given, f'--model_dir={tmp_path / "new"}'])
