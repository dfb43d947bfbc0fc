"""Retriever: three lines of Python, and what they do with bad input."""

import dataclasses
import json
import pathlib
import shutil

from flax import traverse_util
import jax
import numpy as np
import pytest
import tiny_evaluation
import tiny_towers

from dualenc_jax.checkpoints import t5x_legacy
from dualenc_jax.checkpoints.weights import Usage, Weights
from dualenc_jax.cli import saved_run
from dualenc_jax.retrieval.encoding import artifact
from dualenc_jax.retrieval.index import Index
from dualenc_jax.retriever import Retriever
from dualenc_jax.utils import files
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor

DIM = tiny_towers.DIM
TEXTS = tiny_towers.TEXTS


@pytest.fixture(scope='module')
def towers():
  return tiny_towers.loaded(apart=True, prefixes=('find: ', 'code: '))


@pytest.fixture
def retriever(towers) -> Retriever:
  return Retriever(towers)


@pytest.fixture(scope='module')
def kept(towers, tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp('kept') / 'saved'
  retriever = Retriever(towers)
  retriever.index(vectors(3))
  retriever.save(folder)
  return folder


@pytest.fixture
def saved(kept, tmp_path) -> pathlib.Path:
  """A retriever with three passages, as it was saved."""
  return shutil.copytree(kept, tmp_path / 'saved')


def vectors(count: int, seed: int = 0) -> np.ndarray:
  rng = np.random.default_rng(seed)
  return rng.standard_normal((count, DIM)).astype(np.float32)


def reference(queries, passages, ids, k):
  """Scores and ids by a sort in float64, equal scores by the greatest id."""
  scores = queries.astype(np.float64) @ passages.astype(np.float64).T
  found = [
      sorted(zip(row.tolist(), ids), reverse=True)[:k]
      for row in scores.astype(np.float32)
  ]
  return (
      np.array([[score for score, _ in row] for row in found], np.float32),
      [[name for _, name in row] for row in found],
  )


def test_search_of_texts(retriever):
  names, asked = [f'p{i}' for i in range(7)], ['read a file', 'merge']
  retriever.index((text for text in TEXTS), names)
  scores, ids = retriever.search(np.array(asked, object), k=3)
  queries = retriever.encode_queries(asked)
  expected = reference(queries, retriever.encode_passages(TEXTS), names, 3)
  np.testing.assert_allclose(scores, expected[0], atol=1e-6)
  assert ids.tolist() == expected[1]
  found = retriever.find(asked, k=3)
  assert [[hit.passage.id for hit in hits] for hits in found] == ids.tolist()
  assert [[hit.score for hit in hits] for hits in found] == scores.tolist()
  assert found[0][0].passage.text == TEXTS[int(ids[0][0][1:])]


@pytest.mark.parametrize('dtype', [np.float16, np.float64])
def test_own_embeddings_few_of_them_and_none(retriever, dtype):
  assert retriever.encode_queries([]).shape == (0, DIM)
  assert len(retriever) == 0
  retriever.index(vectors(4))
  scores, ids = retriever.search([], k=3)
  assert scores.shape == ids.shape == (0, 3)
  assert scores.dtype == np.float32
  # Another index replaces the one before, and errors leave it.
  passages, queries = vectors(6).astype(dtype), vectors(2, seed=1)
  passages[4:] = passages[:2]  # Ties.
  retriever.index(passages)
  with pytest.raises(UserError):
    retriever.index(vectors(3), ['a', 'a', 'b'])
  scores, ids = retriever.search(queries, k=10)
  expected = reference(queries, passages, [*'012345'], 10)
  np.testing.assert_array_equal(scores, expected[0])
  assert ids.tolist() == expected[1]


BAD = vectors(5)
BAD[3, 1] = np.nan


@pytest.mark.parametrize(
    'call, message',
    [
        (lambda r: r.encode_queries('one'), 'queries is one string; .*list'),
        (lambda r: r.encode_queries(['a', 3]), r'queries\[1\] is 3, int; '),
        (lambda r: r.encode_queries(['a', 'b\ud800']), r'queries\[1\] .* half'),
        (lambda r: r.index([]), 'passages is empty'),
        (lambda r: r.index(vectors(3)[:, :5]), r'\(3, 5\); .* \[n, 24\]'),
        (lambda r: r.index(np.ones((2, DIM), int)), 'int64.; expected embed'),
        (lambda r: r.index(BAD), r'passages\[3\] hold NaN'),
        (lambda r: r.index(['a', 'b'], ['x', 'x']), "ids has 'x' twice"),
        (lambda r: r.index(['a', 'b'], ['x', 'y\n']), r'ids\[1\] .* one line'),
        (lambda r: r.search(['one'], 0), 'k is 0; expected'),
        (lambda r: r.search(BAD, 3), 'query embeddings of row 3 hold NaN'),
    ],
)
def test_bad_input_is_one_clear_error(retriever, call, message):
  # As any Python user may catch it.
  with pytest.raises(ValueError, match='Nothing is indexed'):
    retriever.search(['one'], 1)
  retriever.index(vectors(4))
  with pytest.raises(UserError, match=message):
    call(retriever)


def test_saved_and_opened_again(retriever, tmp_path):
  retriever.index(TEXTS, [f'p{i}' for i in range(len(TEXTS))])
  before = retriever.search(['read a file', 'merge'])
  retriever.save(tmp_path / 'saved')
  again = Retriever.from_dir(tmp_path / 'saved')
  scores, ids = again.search(['read a file', 'merge'])
  np.testing.assert_allclose(scores, before.scores, atol=1e-6)
  assert ids.tolist() == before.ids.tolist()
  # Into its own folder, whose index it reads, and once more elsewhere.
  again.save(tmp_path / 'saved')
  again.save(tmp_path / 'copy')
  for name in ('saved', 'copy'):
    index = Index.open(tmp_path / name / 'index')
    assert [index.passage(i).text for i in range(len(TEXTS))] == list(TEXTS)
    found = Retriever.from_dir(tmp_path / name).search(['read a file', 'merge'])
    np.testing.assert_array_equal(found.scores, scores)
  assert sorted(path.name for path in tmp_path.iterdir()) == ['copy', 'saved']


def test_saved_without_an_index_and_with_one_of_own_embeddings(
    retriever, tmp_path, monkeypatch
):
  monkeypatch.setenv('HOME', str(tmp_path / 'home'))
  monkeypatch.chdir(tmp_path)
  folder = tmp_path / 'home/served'
  folder.mkdir(parents=True)  # An empty folder.
  retriever.save('~/served')
  assert [path.name for path in tmp_path.iterdir()] == ['home']
  assert sorted(path.name for path in folder.iterdir()) == [
      'artifact.json', 'programs', 'vocabulary.model', 'weights.safetensors'
  ]
  again = Retriever.from_dir('~/served')
  assert len(again) == 0
  again.index(jax.numpy.asarray(vectors(9)), [f'é{i}' for i in range(9)])
  again.save(folder)
  queries = jax.numpy.asarray(vectors(2, seed=1))
  scores, ids = again.search(queries, 4)
  found = Retriever.from_dir(folder).search(queries, 4)
  assert found.ids.tolist() == ids.tolist()
  np.testing.assert_array_equal(found.scores, scores)


def test_an_index_of_another_model_is_refused(saved, tmp_path):
  Retriever(tiny_towers.loaded(seed=1)).save(tmp_path / 'b')
  (saved / 'index').rename(tmp_path / 'b/index')
  with pytest.raises(UserError, match='b/index was not saved with the retrie'):
    Retriever.from_dir(tmp_path / 'b')
  # With the checksums of that index, too.
  a, b = saved / 'artifact.json', tmp_path / 'b/artifact.json'
  files, value = json.loads(a.read_text())['files'], json.loads(b.read_text())
  value['files'] |= {k: v for k, v in files.items() if k.startswith('index/')}
  b.write_text(json.dumps(value))
  with pytest.raises(UserError, match='index of the saved retriever .*weights'):
    Retriever.from_dir(tmp_path / 'b')


def test_a_changed_index_is_refused(saved):
  files = json.loads((saved / 'artifact.json').read_text())['files']
  indexed = {p for p in (saved / 'index').rglob('*') if p.is_file()}
  names = {name for name in files if name.startswith('index/')}
  assert {saved / name for name in names} == indexed and len(indexed) == 6
  path, rows = saved / 'index/shard-00000/embeddings.npy', vectors(3)
  # Two passages change their vectors: the sizes are those that were.
  np.save(path, rows[[1, 0, 2]])
  with pytest.raises(UserError, match='embeddings.npy .* was changed'):
    Retriever.from_dir(saved)
  np.save(path, rows)
  assert len(Retriever.from_dir(saved)) == 3


def test_a_model_that_was_replaced_is_not_saved_with_an_old_index(
    saved, tmp_path
):
  opened = Retriever.from_dir(saved)
  other = Retriever(tiny_towers.loaded(seed=1, apart=True))
  other.index(vectors(2, seed=1))
  other.save(saved)
  for name in ('b', 'saved'):
    with pytest.raises(UserError, match='saved.* was changed'):
      opened.save(tmp_path / name)
  assert [path.name for path in tmp_path.iterdir()] == ['saved']
  assert len(Retriever.from_dir(saved)) == 2


def test_a_folder_of_something_else_is_left_alone(retriever, tmp_path):
  with pytest.raises(UserError, match='does not exist'):
    Retriever.from_dir(tmp_path / 'nothing')
  with pytest.raises(UserError, match='has no known form'):
    Retriever.from_dir(tmp_path)
  (tmp_path / 'thesis.txt').write_text('years of work')
  for path in (tmp_path, tmp_path / 'thesis.txt'):
    with pytest.raises(UserError, match='left as it is.*artifact.json'):
      retriever.save(path)
  assert (tmp_path / 'thesis.txt').read_text() == 'years of work'


@pytest.mark.parametrize('step', ['write', 'rename'])
def test_a_save_that_fails_leaves_what_was_there(
    retriever, saved, tmp_path, monkeypatch, step
):
  rename = pathlib.Path.rename

  def fail(path, *args):
    if step == 'rename' and not path.name.endswith('.partial'):
      return rename(path, *args)
    raise OSError(28, 'No space left on device')

  owner = pathlib.Path if step == 'rename' else artifact.safetensors_file
  monkeypatch.setattr(owner, step, fail)
  with pytest.raises(UserError, match='cannot be written: No space left'):
    retriever.save(saved)
  assert [path.name for path in tmp_path.iterdir()] == ['saved']
  assert len(Retriever.from_dir(saved)) == 3


def test_from_a_training_run(tmp_path):
  folder = tiny_evaluation.link_model(tmp_path)
  retriever = Retriever.from_dir(folder)
  trained = saved_run.load(str(folder))
  expected = tiny_towers.embed(trained, 'passage', TEXTS)
  retriever.save(tmp_path / 'saved')
  # No config is run: that of a download is a stranger's program.
  changed = shutil.copytree(folder, tmp_path / 'changed')
  (changed / 'config.gin').write_text(
      f"import os\nos.mkdir({str(tmp_path / 'run')!r})\n"
  )
  for opened in (
      retriever, *map(Retriever.from_dir, (tmp_path / 'saved', changed))
  ):
    found = opened.encode_passages(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-6)
  assert not (tmp_path / 'run').exists()
  manifest = json.loads((tmp_path / 'saved/artifact.json').read_text())
  assert manifest['provenance']['checkpoint_step'] == 2
  with pytest.raises(UserError, match='its own vocabulary.*query_length'):
    Retriever.from_dir(folder, query_length=9)


def test_embeddings_that_are_not_finite_are_an_error(towers):
  broken = jax.tree.map(lambda leaf: leaf * np.nan, towers.params)
  retriever = Retriever(dataclasses.replace(towers, params=broken))
  with pytest.raises(UserError, match=r'queries\[0\].* hold NaN'):
    retriever.encode_queries(['a', 'b'])


def write_checkpoint(towers, folder: pathlib.Path, vocabulary) -> None:
  params = jax.device_get(traverse_util.flatten_dict(towers.params, sep='/'))
  weights = Weights(
      'test', 'a test',
      {n: Tensor(n, p.shape, lambda p=p: p) for n, p in params.items()},
      towers.embedder.model.encoder, towers.embedder.model.passage_encoder,
      Usage(vocabulary, None, 12, None, 'find: ', 'code: '),
  )
  folder.mkdir()
  t5x_legacy.write(weights, folder)
  files.write_json(folder / 'dualenc.json', weights.usage.facts())
  weights.usage.save_vocabulary(folder)


def test_from_another_checkpoint(towers, tmp_path):
  vocabulary = towers.tokenizer.vocabulary.file
  write_checkpoint(towers, tmp_path / 'whole', vocabulary)
  retriever = Retriever.from_dir(tmp_path / 'whole', passage_length=40)
  for tower, encode in (
      ('query', retriever.encode_queries),
      ('passage', retriever.encode_passages),
  ):
    found, expected = encode(TEXTS), tiny_towers.embed(towers, tower, TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
  assert retriever.towers.tokenizer.query_length == 12
  write_checkpoint(towers, tmp_path / 'without', None)
  with pytest.raises(UserError, match='comes without a SentencePiece file'):
    Retriever.from_dir(tmp_path / 'without')
  given = Retriever.from_dir(tmp_path / 'without', vocabulary='python_code_8k')
  np.testing.assert_array_equal(
      given.encode_queries(TEXTS), retriever.encode_queries(TEXTS)
  )
  assert given.towers.provenance['checkpoint_kind']
