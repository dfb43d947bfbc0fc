"""A light query tower takes its teacher's place before the teacher's index."""

import json
import pathlib

import numpy as np
import pytest
import tiny_evaluation
import tiny_run
import tiny_weights

from dualenc_jax import Retriever
from dualenc_jax.checkpoints import formats
from dualenc_jax.cli import (
  convert,
  encode,
  main as cli,
  saved_run,
  search,
  train,
)
from dualenc_jax.retrieval.encoding import artifact as serving
from dualenc_jax.retrieval.index import Index
from dualenc_jax.retrieval.index.index import expected_header
from dualenc_jax.utils.errors import UserError

QUERIES = ['find map hash', 'find xml', 'zone of a year']


@pytest.fixture(scope='module')
def runs(tmp_path_factory) -> pathlib.Path:
  """A folder with `teacher`, its `index`, and `light`, trained for it."""
  folder = tmp_path_factory.mktemp('runs')
  teacher = tiny_evaluation.write_random(folder / 'teacher', layers=2)
  index = f'--index_dir={folder / "index"}'
  encode.main([f'--model_dir={teacher}', '--split=test', index])
  train.main([
      *tiny_run.flags(folder), '--gin.models.T5Encoder.num_layers=2',
      '--gin_file=objectives/matching.gin', '--gin.QUERY_LAYERS=1',
      f'--gin.INITIAL_CHECKPOINT_PATH={teacher}',
      f'--model_dir={folder / "light"}',
  ])
  return folder


def hits(retriever):
  scores, ids = retriever.search(QUERIES, 10)
  return scores, ids.tolist()


def assert_same_hits(found, expected):
  np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-6)
  assert found[1] == expected[1]


@pytest.mark.slow
def test_the_light_model_searches_the_index_of_its_teacher(
    runs, tmp_path, capsys
):
  light, index, fresh = runs / 'light', runs / 'index', tmp_path / 'fresh'
  encode.main([f'--model_dir={light}', '--split=test', f'--index_dir={fresh}'])
  facts = [Index.open(folder).header.provenance for folder in (index, fresh)]
  assert facts[0]['model_dir'] == 'teacher' != facts[1]['model_dir']
  capsys.readouterr()
  for folder in (index, fresh):
    search.main([*QUERIES, f'--model_dir={light}', f'--index_dir={folder}'])
  one, two = np.split(np.array(capsys.readouterr().out.splitlines()), 2)
  assert one.tolist() == two.tolist() and len(one) == 3 * 11
  opened = Retriever.from_dir(light, index=index)
  vectors = opened.encode_queries(QUERIES)
  scores = vectors.astype(np.float64) @ Index.open(fresh).embeddings[:].T
  np.testing.assert_allclose(
      hits(opened)[0], -np.sort(-scores)[:, :10], atol=1e-6
  )


@pytest.mark.slow
def test_an_index_of_another_passage_tower_is_refused(
    runs, tmp_path, capsys
):
  """By a bit."""
  index, name = runs / 'index', 'passage_encoder/layers_1/mlp/wo/kernel'
  weights, model = formats.read(runs / 'light'), tmp_path / 'model'
  array = weights.tensors[name].read()
  array.reshape(-1).view(np.uint32)[7] ^= 1
  weights.tensors[name] = type(weights.tensors[name])(
      'changed', array.shape, lambda: array
  )
  convert.write_model_dir(weights, model)
  message = 'by another passage tower'
  argv = ['search', 'map', f'--model_dir={model}', f'--index_dir={index}']
  assert cli.main(argv) == 2
  said = capsys.readouterr().err
  assert message in said and 'or another index' in said
  alone = tmp_path / 'alone'
  convert.main(
      [str(model), '--to=jax_export', '--tower=query', f'--output_dir={alone}']
  )
  for folder in (model, alone):
    with pytest.raises(UserError, match='by another passage tower'):
      Retriever.from_dir(folder, index=index)


@pytest.mark.slow
def test_the_query_tower_as_an_artefact_of_its_own(runs, tmp_path):
  alone, light = tmp_path / 'alone', runs / 'light'
  convert.main([
      str(light), '--to=jax_export', '--tower=query', f'--output_dir={alone}'
  ])
  facts = json.loads((alone / 'artifact.json').read_text())
  assert set(facts['towers']) == {'query'}
  for names in (facts['params'], facts['files']):
    assert names and not [n for n in names if 'passage' in n]
  retriever = Retriever.from_dir(alone, index=runs / 'index')
  expected = hits(Retriever.from_dir(light, index=runs / 'index'))
  with pytest.raises(UserError, match='cannot encode passages'):
    retriever.index(['a text'])
  assert_same_hits(hits(retriever), expected)
  retriever.save(tmp_path / 'saved')
  assert_same_hits(hits(Retriever.from_dir(tmp_path / 'saved')), expected)
  # An index of vectors does not say what encoded them.
  teacher = Retriever.from_dir(runs / 'teacher')
  stored = Index.open(runs / 'index')
  teacher.index(stored.embeddings, stored.ids)
  teacher.save(tmp_path / 'served')
  with pytest.raises(UserError, match='it does not say what encoded it'):
    Retriever.from_dir(alone, index=tmp_path / 'served/index')


@pytest.mark.slow
def test_sentence_transformers_routes_by_depth_and_back(runs, tmp_path):
  folder = tmp_path / 'st'
  convert.main([
      str(runs / 'light'), '--to=sentence_transformers',
      f'--output_dir={folder}',
  ])
  router = json.loads((folder / 'router_config.json').read_text())['structure']
  layers = {
      route: json.loads((folder / names[0] / 'config.json').read_text())
      for route, names in router.items()
  }
  depths = {route: facts['num_layers'] for route, facts in layers.items()}
  assert depths == {'query': 1, 'document': 2}
  from sentence_transformers import SentenceTransformer

  theirs = SentenceTransformer(str(folder), device='cpu')
  ours = Retriever.from_dir(runs / 'light')
  for own, other in (
      (ours.encode_queries(QUERIES), theirs.encode_query(QUERIES)),
      (ours.encode_passages(QUERIES), theirs.encode_document(QUERIES)),
  ):
    np.testing.assert_allclose(own, other, atol=1e-5, rtol=0)
  tiny_weights.assert_same(formats.read(runs / 'light'), formats.read(folder))


@pytest.mark.nightly
def test_a_query_tower_alone_is_read_and_written_again(tmp_path, capsys):
  source = str(tiny_evaluation.shared_model())
  alone, again = tmp_path / 'alone', tmp_path / 'again'

  def converted(model, form, out, *more):
    convert.main([str(model), f'--to={form}', f'--output_dir={out}', *more])
    return capsys.readouterr().out

  converted(source, 'jax_export', alone, '--tower=query')
  facts = json.loads((alone / 'artifact.json').read_text())
  model = saved_run.load(source)
  assert facts['passage_tower'] == {
      'length': 16, 'prefix': '', 'sha256': model.tower_digest('passage')
  }
  said = converted(alone, 'jax_export', again)
  assert 'jax.export artifact, a query tower alone' in said
  expected = expected_header(model, 'passage')
  assert expected_header(serving.Artifact.open(again), 'passage') == expected
  one, two = formats.read(alone), formats.read(again)
  assert one.passage_tower == two.passage_tower
  tiny_weights.assert_same(one, two)
  # It is no model of both.
  with pytest.raises(UserError, match='only a query tower'):
    formats.load(alone)
  for form in ('model_dir', 'hf', 't5x', 'sentence_transformers'):
    with pytest.raises(UserError, match='--to=.* needs both towers'):
      converted(alone, form, tmp_path / 'out')
    with pytest.raises(UserError, match='--tower=query --to=jax_e'):
      converted(source, form, tmp_path / 'out', '--tower=query')
  assert not (tmp_path / 'out').exists()


@pytest.mark.slow
def test_an_index_of_queries_is_of_the_query_tower(runs, tmp_path):
  corpus = pathlib.Path(__file__).parents[1] / 'data' / 'beir' / 'toy'
  flags = '--tower=query', f'--corpus={corpus}', f'--index_dir={tmp_path / "q"}'
  encode.main([f'--model_dir={runs / "light"}', *flags])
  message = 'another query tower'
  with pytest.raises(UserError, match=message):
    encode.main([f'--model_dir={runs / "teacher"}', *flags])
