"""An artifact read as a checkpoint gives the model that was written."""

from flax import traverse_util
import jax
import numpy as np
import pytest
import tiny_towers

from dualenc_jax.errors import UserError
from dualenc_jax.inference import artifact as serving
from dualenc_jax.interop import artifact as reader, loading


@pytest.mark.parametrize(
    'kind', [{}, {'apart': True}, {'scan_layers': True}], ids=str
)
def test_the_model_comes_back(tmp_path, kind):
  towers = tiny_towers.loaded(prefixes=('find: ', 'code: '), **kind)
  folder = tmp_path / 'new'
  assert not reader.is_one(folder)
  serving.write(towers, folder)
  assert reader.is_one(folder)
  again = loading.load(reader.read(folder))
  assert again.tokenizer.query_length == 12
  if not kind.get('scan_layers'):
    before = jax.device_get(traverse_util.flatten_dict(towers.params, sep='/'))
    after = jax.device_get(traverse_util.flatten_dict(again.params, sep='/'))
    assert before.keys() == after.keys()
    for name, value in before.items():
      np.testing.assert_array_equal(after[name], value)
  np.testing.assert_allclose(
      tiny_towers.embed(again, 'passage', tiny_towers.TEXTS),
      tiny_towers.embed(towers, 'passage', tiny_towers.TEXTS), atol=1e-6,
  )


def test_a_changed_artifact_is_no_checkpoint(tmp_path):
  serving.write(tiny_towers.loaded(), tmp_path / 'new')
  with (tmp_path / 'new/weights.safetensors').open('ab') as file:
    file.write(b'!')
  with pytest.raises(UserError, match='weights.safetensors has'):
    reader.read(tmp_path / 'new')
