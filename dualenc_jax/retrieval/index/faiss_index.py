"""The faiss index that gives the embeddings of an index the same scores."""

from collections.abc import Iterable
from typing import Any

import faiss
import numpy as np

from dualenc_jax.retrieval.compression import Codec, Coded, quantisers
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.utils.errors import UserError

_SCALARS = {'float16': 'QT_fp16', 'bfloat16': 'QT_bf16'}


def build(stored: Any, blocks: Iterable[np.ndarray]) -> Any:
  """Builds a `faiss.Index` of inner products in memory.

  For bits that are compared by Hamming distance it has the first of the two
  steps: a `faiss.IndexBinary`. UserError is raised where faiss has no index.

  Args:
    stored: the embeddings of an index: a store of rows [N, D], or a `Coded`.
    blocks: its rows, or their codes, [b, W], in order.
  """
  codec = stored.codec if isinstance(stored, Coded) else None
  if codec is None:
    inner = _index_of_floats(str(stored.dtype), stored.shape[1])
  else:
    inner = _index_of_codes(codec)
  is_signs = codec is not None and isinstance(codec.quantiser, quantisers.Signs)
  is_binary = isinstance(inner, faiss.IndexBinary)
  for block in blocks:
    block = np.ascontiguousarray(block)
    if is_binary:
      inner.add(block)
      continue
    if is_signs:
      # faiss's product codes have the lowest bit first.
      bits = np.unpackbits(block, axis=1)
      block = np.packbits(bits, axis=1, bitorder='little')
    inner.add_sa_codes(block.view(np.uint8))
  if codec is None or not codec.transforms:
    return inner
  index = faiss.IndexPreTransform(inner)
  for transform in reversed(codec.transforms):
    matrix = np.ascontiguousarray(transform.matrix, np.float32)
    if transform.normalise:
      index.prepend_transform(faiss.NormalizationTransform(len(matrix), 2.0))
    linear = faiss.LinearTransform(matrix.shape[1], matrix.shape[0], False)
    faiss.copy_array_to_vector(matrix.ravel(), linear.A)
    linear.is_trained = True
    index.prepend_transform(linear)
  return index


def _index_of_floats(dtype: str, dim: int) -> Any:
  if dtype == 'float32':
    return faiss.IndexFlatIP(dim)
  return _scalar_index(_SCALARS[dtype], dim, [])


def _index_of_codes(codec: Codec) -> Any:
  """An empty index for the codes of a codec, behind its linear maps."""
  quantiser = codec.quantiser
  match quantiser:
    case quantisers.Floats(dim=dim, dtype=dtype):
      return _index_of_floats(dtype, dim)
    case quantisers.Int8(low=low, step=step):
      # A code c stands for low + range (c + 1/2) / 255.
      trained = [*low, *(np.float32(255) * step)]
      return _scalar_index('QT_8bit', len(low), trained)
    case Product(score=score):
      return _product_index(np.asarray(score))
    case quantisers.Signs(dim=dim) if codec.rescored or isinstance(
        quantiser, quantisers.Hamming
    ):
      if codec.transforms:
        raise UserError(
            f'faiss has no index for the codec {codec.name}: its binary indexes'
            ' take no map of vectors in front. Convert it with --to=vectors, or'
            ' encode with another codec.'
        )
      return faiss.IndexBinaryFlat(8 * quantiser.width)
    case quantisers.Signs(dim=dim):
      signs = np.array([[-1], [1]], np.float32)
      return _product_index(np.tile(signs, (dim, 1, 1)))
  raise AssertionError(quantiser)


def _scalar_index(kind: str, dim: int, trained: Any) -> Any:
  index = faiss.IndexScalarQuantizer(
      dim, getattr(faiss.ScalarQuantizer, kind), faiss.METRIC_INNER_PRODUCT
  )
  faiss.copy_array_to_vector(np.array(trained, np.float32), index.sq.trained)
  index.is_trained = True
  return index


def _product_index(centroids: np.ndarray) -> Any:
  """An index of product codes for centroids [M, 2^b, d / M]."""
  parts, size, dims = centroids.shape
  bits = (size - 1).bit_length()
  index = faiss.IndexPQ(parts * dims, parts, bits, faiss.METRIC_INNER_PRODUCT)
  numbers = np.ascontiguousarray(centroids, np.float32).ravel()
  faiss.copy_array_to_vector(numbers, index.pq.centroids)
  index.is_trained = True
  return index
