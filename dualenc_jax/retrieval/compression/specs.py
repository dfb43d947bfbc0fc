"""The codecs by name, and how each is trained.

  fp32 fp16 bf16   floats
  int8             a byte a dimension, each in its own range; int8:uniform, one
                   range for all
  pca:256          the 256 directions with most of the passages in them
  truncate:256     the first 256 dimensions, of length one (Matryoshka)
  pq:96            96 parts of 8 bits each; pq:96x6, of 6
  opq:96           the same after a rotation that is learnt for it
  sign             a bit a dimension, scored by the float query
  binary           a bit a dimension: the 1,000 best by Hamming distance are
                   scored again by the float query; binary:200, the 200 best
  hamming          a bit a dimension of passages and of queries

pca and truncate may stand before another: truncate:256+int8. The folder of an
index of codes stands for its codec, as it was trained there.
"""

from collections.abc import Iterator
import dataclasses
import pathlib
import re
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.retrieval.compression import (
  codec as codec_lib,
  kmeans,
  linear,
  quantisers,
)
from dualenc_jax.retrieval.compression.codec import Codec
from dualenc_jax.retrieval.compression.linear import Linear
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.utils import finite
from dualenc_jax.utils.errors import did_you_mean_or_known, expect, UserError

# By dtype, the names of the codecs that only round.
FLOATS = {'float32': 'fp32', 'float16': 'fp16', 'bfloat16': 'bf16'}
# Vectors of the largest sample: 256 for each of 256 centroids.
SAMPLE = 2**16
# Candidates of the first of two steps, as in BPR.
_RESCORED = 1000
_BLOCK = 2**14
_DTYPES = {name: dtype for dtype, name in FLOATS.items()}
_NUMBER = '([1-9][0-9]*)'
_PRODUCT = f':{_NUMBER}(?:x{_NUMBER})?'
# Kinds of parts: what may follow the name, and examples.
_OPTIONS = {
    **{name: ('', name) for name in _DTYPES},
    'int8': ('(?::uniform)?', 'int8 or int8:uniform'),
    'pca': (f':{_NUMBER}', 'pca:256'),
    'truncate': (f':{_NUMBER}', 'truncate:256'),
    'pq': (_PRODUCT, 'pq:96 or pq:96x6'),
    'opq': (_PRODUCT, 'opq:96 or opq:96x6'),
    'sign': ('', 'sign'),
    'binary': (f'(?::{_NUMBER})?', 'binary or binary:200'),
    'hamming': ('', 'hamming'),
}
_MAPS, _PRODUCTS = ('pca', 'truncate'), ('pq', 'opq')


class Part(NamedTuple):
  """A piece of a codec's name, such as pq:96x6.

  Attributes:
    kind: the name in front of the colon.
    number: dims, parts, bits or candidates; 0 where the kind has none.
    bits: bits of a part of a product codec.
    is_uniform: whether int8 has one range for all dimensions.
  """

  kind: str
  number: int = 0
  bits: int = 8
  is_uniform: bool = False

  def check(self, dim: int) -> None:
    """Raises UserError unless the part suits vectors of this dim."""
    name = f'{self.kind}:{self.number}'
    if self.bits > 8:
      raise UserError(f'{self.kind} of {self.bits} bits: expected 1 to 8.')
    if self.kind in _MAPS and self.number > dim:
      raise UserError(
          f'{name} of vectors of dim {dim}: expected at most {dim}.'
      )
    if self.kind in _PRODUCTS and dim % self.number:
      divisors = [m for m in range(1, dim + 1) if not dim % m]
      near = sorted(divisors, key=lambda m: abs(m - self.number))[:3]
      raise UserError(
          f'{name} of vectors of dim {dim}: the number of parts does not divide'
          f' it. Take {" or ".join(map(str, sorted(near)))}.'
      )

  def shape(self, dim: int) -> tuple[str, int]:
    """The dtype and the number of the codes of a vector of this dim."""
    match self.kind:
      case 'pca' | 'truncate':
        return 'float32', self.number
      case 'int8':
        return 'uint8', dim
      case 'pq' | 'opq':
        return 'uint8', -(-self.number * self.bits // 8)
      case 'sign' | 'binary' | 'hamming':
        return 'uint8', -(-dim // 8)
    return _DTYPES[self.kind], dim

  def least_vectors(self) -> int:
    """The least number of vectors that train the part."""
    if self.kind in _PRODUCTS:
      return 2**self.bits
    return self.number if self.kind == 'pca' else 1

  def fit(self, training: '_Training') -> tuple[tuple[Linear, ...], Any]:
    """Trains the part: linear maps, and a quantiser or None."""
    dim, seed = training.dim, training.seed
    match self.kind:
      case 'pca':
        return (Linear(linear.pca(training.blocks(), self.number)),), None
      case 'truncate':
        matrix = np.eye(self.number, dim, dtype=np.float32)
        return (Linear(matrix, normalise=True),), None
      case 'int8':
        low, high = training.ranges()
        if self.is_uniform:
          low = np.full_like(low, low.min())
          high = np.full_like(high, high.max())
        return (), quantisers.Int8.from_ranges(low, high)
      case 'pq':
        vectors = training.sample(256 * 2**self.bits)
        parts = vectors.reshape(len(vectors), self.number, -1)
        centroids = kmeans.fit(parts, 2**self.bits, seed)
        return (), Product(centroids, centroids)
      case 'opq':
        vectors = training.sample(256 * 2**self.bits)
        matrix, centroids = linear.opq(vectors, self.number, self.bits, seed)
        return (Linear(matrix),), Product(centroids, centroids)
      case 'sign' | 'binary':
        return (), quantisers.Signs(dim)
      case 'hamming':
        return (), quantisers.Hamming(dim)
    return (), quantisers.Floats(dim, _DTYPES[self.kind])


@dataclasses.dataclass(frozen=True)
class Spec:
  """A codec to train.

  Attributes:
    name: as above.
    parts: linear maps, and perhaps a quantiser.
    trained: the codec where it is trained already; it has no parts then.
  """

  name: str
  parts: tuple[Part, ...]
  trained: Codec | None = None

  @property
  def floats(self) -> str | None:
    """The dtype of a codec that only rounds; None for others."""
    return None if self.trained else _DTYPES.get(self.name)

  @property
  def rescored(self) -> int | None:
    """The candidates of the second step, as in `Codec`; or None."""
    if self.trained:
      return self.trained.rescored
    last = self.parts[-1]
    return last.number if last.kind == 'binary' else None

  def check(self, dim: int, count: int | None = None) -> None:
    """Raises UserError unless it suits `count` vectors of this dim.

    A count of None is not known yet.
    """
    if self.trained:
      if dim != self.trained.dim:
        raise UserError(
            f'The codec {self.name} was trained for vectors of dim'
            f' {self.trained.dim}, but these have {dim}.'
        )
      return
    for part in self.parts:
      part.check(dim)
      dim = part.shape(dim)[1]
    least = max(part.least_vectors() for part in self.parts)
    if count is not None and count < least:
      raise UserError(
          f'The codec {self.name} needs at least {least:,} vectors for'
          f' training, but there are {count:,}. Use fewer bits or dims, or more'
          ' passages.'
      )

  def shape(self, dim: int) -> tuple[str, int]:
    """The dtype and the number of the codes of a vector of this dim."""
    if self.trained:
      return self.trained.code_dtype.name, self.trained.quantiser.width
    dtype = ''
    for part in self.parts:
      dtype, dim = part.shape(dim)
    return dtype, dim

  def fit(self, vectors: Any, seed: int = 0) -> Codec:
    """Trains the codec on passages [N, D], an array or a store of rows."""
    dim = vectors.shape[1]
    self.check(dim, len(vectors))
    if self.trained:
      return self.trained
    training, quantiser = _Training(vectors, seed), None
    for part in self.parts:
      transforms, quantiser = part.fit(training)
      training = training.behind(transforms)
    if quantiser is None:
      quantiser = quantisers.Floats(training.dim)
    return Codec(self.name, dim, training.transforms, quantiser, self.rescored)


def spec(name: str) -> Spec:
  """Parses the name of a codec; raises UserError for an unknown one."""
  expect(isinstance(name, str), 'codec', name, 'a name, such as "int8"')
  path = pathlib.Path(name).expanduser() / codec_lib.FILE
  if path.is_file():
    codec, _ = codec_lib.load(path)
    return Spec(codec.name, (), codec)
  pieces = name.split('+')
  parts = [*map(_parse, pieces)]
  for piece, part in zip(pieces, parts[:-1]):
    if part.kind not in _MAPS:
      raise UserError(
          f'The codec {name!r}: nothing may follow {piece}; pca and truncate'
          ' may precede another.'
      )
  return Spec(name, tuple(parts))


def _parse(piece: str) -> Part:
  kind = piece.partition(':')[0]
  if kind == 'hnsw':
    raise UserError(
        f'{piece} is a graph of float embeddings, which `dualenc evaluate'
        ' --codecs=hnsw:32` measures. It is no codec of an index.'
    )
  if kind not in _OPTIONS:
    raise UserError(
        f'No codec is called {kind!r}.{did_you_mean_or_known(kind, _OPTIONS)}'
    )
  pattern, examples = _OPTIONS[kind]
  found = re.fullmatch(kind + pattern, piece)
  if not found:
    raise UserError(f'The codec {piece!r}: expected {examples}.')
  if kind == 'int8':
    return Part(kind, is_uniform=piece != kind)
  if kind == 'binary':
    return Part(kind, int(found[1] or _RESCORED))
  number, bits = (*found.groups(), None, None)[:2]
  return Part(kind, int(number or 0), int(bits or 8))


@dataclasses.dataclass(frozen=True, eq=False)
class _Training:
  """Vectors of passages behind some linear maps.

  Attributes:
    vectors: [N, D], an array or a store of rows, read block by block.
    seed: seed of all that is random.
    transforms: the maps, to dim d.
  """

  vectors: Any
  seed: int
  transforms: tuple[Linear, ...] = ()

  @property
  def dim(self) -> int:
    """d, the dim behind the maps."""
    last = self.transforms[-1].dim if self.transforms else None
    return last or self.vectors.shape[1]

  def blocks(self) -> Iterator[np.ndarray]:
    """Yields all vectors in blocks, float32 [b, d]."""
    for start in range(0, len(self.vectors), _BLOCK):
      yield self._map(self.vectors[start : start + _BLOCK])

  def ranges(self) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest components of each dimension, [d] each."""
    found = [(b.min(axis=0), b.max(axis=0)) for b in self.blocks()]
    lows, highs = zip(*found)
    return np.min(lows, axis=0), np.max(highs, axis=0)

  def sample(self, most: int = SAMPLE) -> np.ndarray:
    """A sample without repeats, in their order: float32 [min(N, most), d]."""
    count = len(self.vectors)
    if count <= most:
      return np.concatenate(list(self.blocks()))
    drawn = np.random.default_rng(self.seed).choice(
        count, most, replace=False, shuffle=False
    )
    return self._map(self.vectors[np.sort(drawn)])

  def behind(self, transforms: tuple[Linear, ...]) -> '_Training':
    """The same vectors behind more maps."""
    return dataclasses.replace(
        self, transforms=(*self.transforms, *transforms)
    )

  def _map(self, vectors: Any) -> np.ndarray:
    vectors = np.asarray(vectors, np.float32)
    finite.check_rows('vectors to train a codec on', vectors)
    for transform in self.transforms:
      vectors = transform(vectors)
    return vectors
