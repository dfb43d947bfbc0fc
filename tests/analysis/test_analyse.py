"""An analysis over embeddings in memory and in an index."""

import pytest
import tiny_evaluation

from dualenc_jax.cli import saved_run
from dualenc_jax.evaluation.analysis.embedding_space import analyse
from dualenc_jax.retrieval.index import build_for_model
from dualenc_jax.retrieval.index.build_for_model import TextSource
from dualenc_jax.utils.errors import UserError


@pytest.fixture(scope='module')
def model():
  return saved_run.load(str(tiny_evaluation.shared_model()))


def numbers_of(model, index=None, split='test'):
  return analyse(
      'one', model, model.experiment, split, mapped=15, index_dir=index
  ).numbers


def test_an_index_gives_the_same_numbers(model, tmp_path):
  expected = numbers_of(model)
  source = TextSource.passages(model.experiment.cache('test'))
  index = tmp_path / 'index'
  build_for_model.encode(model, source, index, shard_size=5).finish()
  assert numbers_of(model, index) == pytest.approx(expected, abs=1e-5)
  with pytest.raises(UserError, match="split is 'test', expected 'train'"):
    numbers_of(model, index, 'train')
  header = index / 'header.json'
  digest = model.tower_digest('passage')['encoder']
  header.write_text(header.read_text().replace(digest, 'another'))
  with pytest.raises(UserError, match='by another passage tower'):
    numbers_of(model, index)
