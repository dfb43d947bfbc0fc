"""Towers small enough for tests, with random parameters."""

from collections.abc import Sequence

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary
from dualenc_jax.models import DualEncoder, Projection, T5Encoder, TokenEmbedder
from dualenc_jax.parallel.partitioning import HostPartitioner
from dualenc_jax.retrieval.encoding.embedder import Embedder
from dualenc_jax.retrieval.encoding.towers import LoadedModel

DIM = 24
TEXTS = (
    'parse a date', '',
    'return the list of keys that a map of strings to numbers has',
    'def merge(a, b):\n  while a and b:\n    yield min(a, b).pop(0)',
    'read file', ' '.join(f'value {i} of the array' for i in range(30)),
    'zürich ≠ 東京',
)


def model(
    apart: bool = False, dtype: str = 'float32', scan_layers: bool = False,
    hidden: Sequence[int] = (),
) -> DualEncoder:
  """Two towers that share everything, or nothing.

  `hidden` is of the query tower's chain of projections.
  """

  def encoder(layers):
    return T5Encoder(layers, 2, 16, 64, dtype=dtype, scan_layers=scan_layers)

  own = (TokenEmbedder(8064, 16), encoder(1), Projection(DIM))
  return DualEncoder(
      TokenEmbedder(8064, 32), encoder(2), Projection(DIM, hidden),
      *(own if apart else ()),
  )


def loaded(
    seed: int = 0, prefixes: Sequence[str] = ('', ''), **kind
) -> LoadedModel:
  """Towers, as of `model`, with random parameters, on all devices."""
  towers = model(**kind)
  tokens = jnp.ones((1, 2), jnp.int32)
  shapes = jax.eval_shape(towers.init, jax.random.key(0), tokens, tokens)
  rng = np.random.default_rng(seed)
  params = jax.tree.map(
      lambda leaf: _random(rng, leaf.shape), nn.unbox(shapes['params'])
  )
  partitioner = HostPartitioner()
  return LoadedModel(
      jax.device_put(params, partitioner.replicated),
      Tokenizer(Vocabulary('python_code_8k'), 12, 40, *prefixes),
      Embedder(towers, partitioner, partitioner.replicated, 64),
      {'checkpoint': 'tiny'},
  )


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
  """Numbers that keep the scale of what a kernel is applied to."""
  values = rng.standard_normal(shape, dtype=np.float32)
  return 1 + 0.1 * values if len(shape) == 1 else values / shape[-2] ** 0.5


def embed(towers: LoadedModel, tower: str, texts: Sequence[str]) -> np.ndarray:
  """Embeddings by the model itself, all rows padded to the tower's length."""
  tokenizer = towers.tokenizer
  prefix = getattr(tokenizer, f'{tower}_prefix')
  length = getattr(tokenizer, f'{tower}_length')
  tokens = np.zeros((len(texts), length), np.int32)
  for row, text in zip(tokens, texts):
    ids = tokenizer.vocabulary.encode([prefix + text], length).values
    row[: len(ids)] = ids
  encode = jax.jit(towers.embedder.model.apply, static_argnames='method')
  params = jax.device_get(towers.params)
  return np.asarray(
      encode({'params': params}, tokens, method=f'encode_{tower}')
  )
