"""The codec of a model: its arrays are parameters, its other fields JSON.

JPQ (Zhan et al. 2021) trains the centroids that codes of a product quantiser
stand for. The codes themselves, and the map in front of them, are fixed.
"""

from collections.abc import Mapping
import dataclasses
import hashlib
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.retrieval.compression import codec as codec_lib
from dualenc_jax.retrieval.compression.codec import Codec
from dualenc_jax.retrieval.compression.linear import Linear
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.utils.errors import missing, UserError

# The group of the arrays in a tree of parameters.
GROUP = 'codec'
ASSIGN, SCORE = 'assign', 'score'


def load_initial(folder: str | None) -> Codec:
  """Loads the codec that training starts from, of an index for example.

  Its name becomes that of the trained codec: 'jpq:96' for 'opq:96'.
  """
  path = folder and pathlib.Path(folder).expanduser()
  if path and not path.exists():
    raise UserError(f'CODEC_FROM: {missing(path)} Expected an index.')
  if path and path.is_dir():
    path /= codec_lib.FILE
  codec = codec_lib.load(path)[0] if path and path.is_file() else None
  if codec is None or not isinstance(codec.quantiser, Product):
    found = codec.name if codec else 'no codec'
    raise UserError(
        f'CODEC_FROM is {folder}, with {found}; expected the folder of an index'
        ' of product codes, whose centroids are trained. Make one of the model'
        ' that training starts from: `dualenc encode --codec=opq:96`.'
    )
  *before, last = codec.name.split('+')
  name = '+'.join([*before, f'jpq:{last.partition(":")[2]}'])
  return dataclasses.replace(codec, name=name)


def arrays(codec: Codec) -> dict[str, np.ndarray]:
  """All arrays of a codec by name, float32.

  They are 'assign' and 'score' of the quantiser, 'matrix_0' of the first
  transform, and so on.
  """
  found = {
      f'matrix_{i}': transform.matrix
      for i, transform in enumerate(codec.transforms)
  }
  found |= {ASSIGN: codec.quantiser.assign, SCORE: codec.quantiser.score}
  return {name: np.asarray(x, np.float32) for name, x in found.items()}


def facts(codec: Codec) -> dict[str, Any]:
  """The fields of a codec that are not arrays, as JSON."""
  return {
      'name': codec.name,
      'dim': codec.dim,
      'normalise': [transform.normalise for transform in codec.transforms],
  }


def from_arrays(known: Mapping[str, Any], found: Mapping[str, Any]) -> Codec:
  """Makes the codec of `facts` and `arrays`, which may be on devices."""
  found = {name: np.asarray(jax.device_get(x)) for name, x in found.items()}
  transforms = [
      Linear(found[f'matrix_{i}'], normalise)
      for i, normalise in enumerate(known['normalise'])
  ]
  quantiser = Product(found[ASSIGN], found[SCORE])
  return Codec(known['name'], known['dim'], transforms, quantiser)


def digest(codec: Codec) -> str:
  """SHA-256 of the arrays of a codec, by which an index names it."""
  found = hashlib.sha256()
  for name, array in sorted(arrays(codec).items()):
    found.update(f'{name} {array.shape}'.encode())
    found.update(np.ascontiguousarray(array, '<f4').tobytes())
  return found.hexdigest()


def map_queries(
    known: Mapping[str, Any], found: Mapping[str, jax.Array], queries: jax.Array
) -> jax.Array:
  """Maps queries as `Codec.queries` does, with gradients: [B, D] -> [B, d]."""
  queries = queries.astype(jnp.float32)
  for i, normalise in enumerate(known['normalise']):
    matrix = found[f'matrix_{i}']
    queries = jnp.matmul(queries, matrix.T, precision='highest')
    if normalise:
      squares = jnp.sum(jnp.square(queries), axis=1, keepdims=True)
      queries *= jax.lax.rsqrt(jnp.where(squares == 0.0, 1.0, squares))
  return queries
