"""A model with NaN in it is opened in no form; the tensor is named."""

import numpy as np
import pytest
import small_folders

from dualenc_jax.errors import UserError
from dualenc_jax.interop import conversion, opening
from dualenc_jax.io import finite


@pytest.mark.parametrize(
    'name, value', zip(small_folders.FORMS, [np.nan, np.inf] * 2)
)
def test_it_is_refused_by_the_name_of_the_tensor(
    tmp_path, monkeypatch, name, value
):
  weights = small_folders.weights(tmp_path)
  kernel = weights.tensors['encoder/layers_1/mlp/wo/kernel'].load()
  with monkeypatch.context() as patch:
    # Nothing of ours writes them otherwise.
    patch.setattr(finite, 'check_tensor', lambda *args: None)
    for folder in ('good', 'bad'):
      (tmp_path / folder).mkdir()
      conversion.FORMS[name].write(weights, tmp_path / folder)
      kernel[3, 1] = value
  lengths = {'query_length': 12, 'passage_length': 20}
  given = {'vocabulary': weights.usage.vocabulary, **lengths}
  opening.load(tmp_path / 'good', **given)
  said = r'(layers_1|block\.1)\b.*\bwo\b.* holds NaN or infinity'
  with pytest.raises(UserError, match=said):
    opening.load(tmp_path / 'bad', **given)
