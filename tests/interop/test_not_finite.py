"""A model with NaN in it is opened in no form; the tensor is named."""

from flax import traverse_util
import jax
import numpy as np
import pytest
import tiny_towers

from dualenc_jax.errors import UserError
from dualenc_jax.interop import conversion, opening
from dualenc_jax.interop.weights import Usage, Weights
from dualenc_jax.io import finite
from dualenc_jax.tensor_files.tensors import Tensor

KERNEL = 'encoder/layers_1/mlp/wo/kernel'


@pytest.mark.parametrize('value', [np.nan, np.inf])
@pytest.mark.parametrize(
    'name', ['npz', 'safetensors', 'hf', 't5x', 'sentence_transformers']
)
def test_it_is_refused_by_the_name_of_the_tensor(
    tmp_path, monkeypatch, name, value
):
  towers = tiny_towers.loaded()
  params = jax.device_get(traverse_util.flatten_dict(towers.params, sep='/'))
  params[KERNEL] = np.array(params[KERNEL])
  vocabulary = towers.tokenizer.vocabulary.file
  weights = Weights(
      'test',
      'a test',
      {n: Tensor(n, p.shape, lambda p=p: p) for n, p in params.items()},
      towers.embedder.model.encoder,
      usage=Usage(vocabulary, None, 12, 20),
      step=3,
  )
  with monkeypatch.context() as patch:
    # Nothing of ours writes them otherwise.
    patch.setattr(finite, 'check_tensor', lambda *args: None)
    for folder in ('good', 'bad'):
      (tmp_path / folder).mkdir()
      conversion.FORMS[name].write(weights, tmp_path / folder)
      params[KERNEL][3, 1] = value
  given = {'vocabulary': vocabulary, 'query_length': 12, 'passage_length': 20}
  opening.load(tmp_path / 'good', **given)
  said = r'(layers_1|block\.1)\b.*\bwo\b.* holds NaN or infinity'
  with pytest.raises(UserError, match=said):
    opening.load(tmp_path / 'bad', **given)
