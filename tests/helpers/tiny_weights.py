"""`Weights` of random numbers, and whether two are the same."""

import numpy as np

from dualenc_jax.checkpoints.weights import param_shapes, Usage, Weights
from dualenc_jax.data.text.tokenizer import Vocabulary
from dualenc_jax.models import DualEncoder
from dualenc_jax.utils.tensor_files.tensors import Tensor

SHIPPED = Vocabulary('python_code_8k')
USAGE = Usage(SHIPPED.file, None, 16, 40, 'query: ', 'passage: ')


def tensor(name: str, array: np.ndarray) -> Tensor:
  return Tensor(f'memory: {name}', array.shape, lambda: array)


def of_arrays(arrays, model: DualEncoder, usage=USAGE, path='memory'):
  """Those of arrays by name, at step 7."""
  return Weights(
      'random', path, {n: tensor(n, array) for n, array in arrays.items()},
      model.encoder, model.passage_encoder, usage, step=7,
  )


def arrays_of(model: DualEncoder, seed: int = 0) -> dict[str, np.ndarray]:
  """Numbers of a size that keeps rounding errors small, by name."""
  rng, found = np.random.default_rng(seed), {}
  for name, shape in param_shapes(model).items():
    array = rng.standard_normal(shape, np.float32)
    if name.endswith('scale'):
      array = 1 + np.float32(0.1) * array
    elif name.endswith('kernel'):
      array *= np.float32(shape[0] ** -0.5)
    found[name] = array
  return found


def random(model: DualEncoder, usage=USAGE, seed: int = 0) -> Weights:
  return of_arrays(arrays_of(model, seed), model, usage).check()


def assert_same(a: Weights, b: Weights) -> None:
  """Bit for bit."""
  assert a.tensors.keys() == b.tensors.keys()
  for name in a.tensors:
    np.testing.assert_array_equal(
        a.tensors[name].read(), b.tensors[name].read(), err_msg=name
    )
  assert a.encoder == b.encoder and a.passage_encoder == b.passage_encoder
