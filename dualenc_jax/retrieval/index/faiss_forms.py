"""The faiss index that corresponds to each codec."""

from collections.abc import Callable, Mapping

import numpy as np

from dualenc_jax.retrieval.compression import Codec, quantisers
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.retrieval.index import faiss_files
from dualenc_jax.retrieval.index.rows import Rows
from dualenc_jax.utils.errors import UserError

# A byte with its bits in the opposite order.
_REVERSED = np.packbits(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)[:, ::-1],
    axis=1,
)[:, 0]

_LEAST_BITS = 3

# By dtype, of indexes without a codec.
FLOATS: Mapping[str, Callable[[Rows], faiss_files.Index]] = {
    'float32': faiss_files.flat,
    'float16': lambda rows: faiss_files.scalar('QT_fp16', rows),
    'bfloat16': lambda rows: faiss_files.scalar('QT_bf16', rows),
}


def of_codec(codec: Codec, rows: Rows) -> faiss_files.Index:
  """The faiss index that gives codes the same scores as search here.

  For bits that are compared by Hamming distance it is the first step alone: a
  binary index. Raises UserError if faiss has none.
  """
  inner = _of_quantiser(codec, rows)
  if not codec.transforms:
    return inner
  if inner.is_binary:
    raise _none(codec, 'its binary indexes take no map of vectors in front')
  transforms = []
  for transform in codec.transforms:
    transforms.append(faiss_files.linear(np.asarray(transform.matrix)))
    if transform.normalise:
      transforms.append(faiss_files.unit(transform.dim))
  return faiss_files.pre_transform(transforms, inner)


def _of_quantiser(codec: Codec, rows: Rows) -> faiss_files.Index:
  quantiser = codec.quantiser
  match quantiser:
    case quantisers.Floats():
      return FLOATS[quantiser.dtype](rows)
    case quantisers.Int8():
      return faiss_files.int8(quantiser.low, quantiser.step, rows)
    case quantisers.Levels():
      return _by_dimension(quantiser.levels, quantiser.dim, rows)
    case Product():
      # faiss implements no tables of products for these.
      if quantiser.dim == 2 * quantiser.parts and quantiser.bits < _LEAST_BITS:
        raise _none(
            codec,
            'it searches no product codes of two dimensions a part and less'
            f' than {_LEAST_BITS} bits',
        )
      return faiss_files.product(quantiser.score, rows)
    case quantisers.Signs() if codec.rescored or isinstance(
        quantiser, quantisers.Hamming
    ):
      return faiss_files.binary(rows)
    case quantisers.Signs():
      lowest_first = rows.mapped(_REVERSED.__getitem__, rows.width, np.uint8)
      levels = np.array([-1, 1], np.float32)
      return _by_dimension(levels, quantiser.dim, lowest_first)
  raise _none(codec, 'its quantiser is not known there')


def _by_dimension(
    levels: np.ndarray, dim: int, rows: Rows
) -> faiss_files.Index:
  """Product codes with parts of one dimension each, all of the same levels."""
  centroids = np.tile(np.asarray(levels, np.float32)[:, None], (dim, 1, 1))
  return faiss_files.product(centroids, rows)


def _none(codec: Codec, why: str) -> UserError:
  return UserError(
      f'faiss has no index for the codec {codec.name}: {why}. Convert it with'
      ' --to=vectors, or encode with another codec.'
  )
