"""The mean of checkpoints, against NumPy."""

import dataclasses

import numpy as np
import pytest
import small_vocabulary
import tiny_towers
import tiny_weights

from dualenc_jax.checkpoints import transforms
from dualenc_jax.checkpoints.weights import Usage
from dualenc_jax.models import T5Encoder
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor

MODEL = tiny_towers.model()
USAGE = Usage(tiny_weights.SHIPPED.file, None, 16, 40)


def arrays(seed):
  return tiny_weights.arrays_of(MODEL, seed)


def weights(seed, **changes):
  made = tiny_weights.of_arrays(arrays(seed), MODEL, USAGE, f'm{seed}')
  return dataclasses.replace(made, **changes)


def used(seed, **changes):
  return weights(seed, usage=dataclasses.replace(USAGE, **changes))


def test_every_tensor_is_the_mean():
  models = [weights(i, step=100 * i) for i in range(3)]
  merged = transforms.merge(models)
  assert merged.step == 200
  own = [arrays(i) for i in range(3)]
  assert merged.tensors.keys() == own[0].keys()
  for name, tensor in merged.tensors.items():
    expected = np.mean([a[name].astype(np.float64) for a in own], axis=0)
    found = tensor.read()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


RELU = T5Encoder(2, 2, 16, 64, ('relu', 'linear'), dtype='float32')
NARROW = {'projection/kernel': Tensor('x', (32, 7), None)}


@pytest.mark.parametrize(
    'other, message',
    [
        (lambda: weights(1, tensors=weights(1).tensors | NARROW),
         r'shape of projection/kernel of m0 is \(32, 24\), of m1 \(32, 7\)'),
        (lambda: weights(1, encoder=RELU),
         'encoder.activations of m0 is .*gelu.*, of m1 .*relu'),
        (lambda: used(1, query_length=9), 'query_length of m0 is 16, of m1 9'),
        (lambda: weights(1, trained_dims=(8,)), r'trained_dims of m0 is \(\)'),
    ],
)
def test_what_differs_is_refused_by_name(other, message):
  with pytest.raises(UserError, match=message):
    transforms.merge([weights(0), other()])


def test_prompts_and_vocabularies_are_not_merged(tmp_path):
  models = [used(i, prompts={'a': text}) for i, text in enumerate('xy')]
  with pytest.raises(UserError, match="prompts of m0 is .*'x'.*, of m1 .*'y'"):
    transforms.merge(models)
  own = small_vocabulary.write(tmp_path / 'spiece.model')
  with pytest.raises(UserError, match='SHA-256 of the vocabulary of m0'):
    transforms.merge([weights(0), used(1, vocabulary=own)])
