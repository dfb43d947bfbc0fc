"""Parts of a codec's name, before training: linear maps and quantisers."""

import abc
from collections.abc import Iterator
import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.retrieval.compression import kmeans, linear, opq, quantisers
from dualenc_jax.retrieval.compression.codec import Codec
from dualenc_jax.retrieval.compression.linear import Linear
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.utils import finite
from dualenc_jax.utils.errors import UserError

# Vectors of the largest sample: 256 for each of 256 centroids.
SAMPLE = 2**16
_BLOCK = 2**14
# Linear maps, and a quantiser where the part is one.
Trained = tuple[tuple[Linear, ...], Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
  """Vectors of passages behind some linear maps.

  Attributes:
    vectors: [N, D], an array or a store of rows, read block by block.
    seed: seed of all that is random.
    transforms: the maps.
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
      yield self._mapped(self.vectors[start : start + _BLOCK])

  def sample(self, most: int = SAMPLE) -> np.ndarray:
    """A sample without repeats, in their order: float32 [min(N, most), d]."""
    count = len(self.vectors)
    if count <= most:
      return np.concatenate(list(self.blocks()))
    drawn = np.random.default_rng(self.seed).choice(
        count, most, replace=False, shuffle=False
    )
    return self._mapped(self.vectors[np.sort(drawn)])

  def after(self, transform: Linear) -> 'Training':
    """The same vectors behind one more map."""
    return dataclasses.replace(self, transforms=(*self.transforms, transform))

  def _mapped(self, vectors: Any) -> np.ndarray:
    vectors = np.asarray(vectors, np.float32)
    finite.check_rows('vectors to train a codec on', vectors)
    for transform in self.transforms:
      vectors = transform(vectors)
    return vectors


class Part(abc.ABC):
  """One piece of a codec's name.

  Attributes:
    stands_before: whether another part may follow.
    is_product: whether it has centroids, which JPQ trains.
    rescored: as in `Codec`.
    least: the least number of vectors that train it.
  """

  stands_before: bool = False

  @property
  def is_product(self) -> bool:
    return False

  @property
  def rescored(self) -> int | None:
    return None

  @property
  def least(self) -> int:
    return 1

  def check(self, dim: int) -> None:
    """Raises UserError unless it suits vectors of this dim."""

  @abc.abstractmethod
  def shape(self, dim: int) -> tuple[str, int]:
    """The dtype and the number of a passage's codes."""

  @abc.abstractmethod
  def fit(self, training: Training) -> Trained:
    """The trained maps, and the quantiser if the part is one."""


@dataclasses.dataclass(frozen=True)
class Float(Part):
  """Numbers of another dtype."""

  dtype: str

  def shape(self, dim: int) -> tuple[str, int]:
    return self.dtype, dim

  def fit(self, training: Training) -> Trained:
    return (), quantisers.Floats(training.dim, self.dtype)


@dataclasses.dataclass(frozen=True)
class Bytes(Part):
  """A byte per dimension, all in one range if `uniform`."""

  uniform: bool = False

  def shape(self, dim: int) -> tuple[str, int]:
    return 'uint8', dim

  def fit(self, training: Training) -> Trained:
    found = [(b.min(axis=0), b.max(axis=0)) for b in training.blocks()]
    lows, highs = zip(*found)
    low, high = np.min(lows, axis=0), np.max(highs, axis=0)
    if self.uniform:
      low, high = np.full_like(low, low.min()), np.full_like(high, high.max())
    return (), quantisers.Int8.from_ranges(low, high)


@dataclasses.dataclass(frozen=True)
class _Map(Part):
  """A linear map to `dim` dims."""

  stands_before = True
  dim: int

  def check(self, dim: int) -> None:
    if self.dim > dim:
      kind = type(self).__name__.lower()
      raise UserError(
          f'{kind}:{self.dim} of vectors of dim {dim}: expected at most {dim}.'
      )

  def shape(self, dim: int) -> tuple[str, int]:
    return 'float32', self.dim


@dataclasses.dataclass(frozen=True)
class Pca(_Map):
  """Principal directions."""

  @property
  def least(self) -> int:
    return self.dim

  def fit(self, training: Training) -> Trained:
    return (Linear(linear.pca(training.blocks(), self.dim)),), None


@dataclasses.dataclass(frozen=True)
class Truncate(_Map):
  """The first dimensions, scaled to length one."""

  def fit(self, training: Training) -> Trained:
    matrix = np.eye(self.dim, training.dim, dtype=np.float32)
    return (Linear(matrix, normalise=True),), None


@dataclasses.dataclass(frozen=True)
class Rotated(Part):
  """A random rotation, then levels of `bits` bits."""

  bits: int

  def check(self, dim: int) -> None:
    _check_bits('rotated', self.bits)

  def shape(self, dim: int) -> tuple[str, int]:
    return 'uint8', -(-dim * self.bits // 8)

  def fit(self, training: Training) -> Trained:
    rotation = linear.random_rotation(training.dim, training.seed)
    # A rotation leaves the sum of squares as it is.
    deviation = np.sqrt(np.mean(np.square(training.sample(), dtype=np.float64)))
    return (Linear(rotation),), quantisers.Levels.for_normal(
        training.dim, self.bits, float(deviation)
    )


@dataclasses.dataclass(frozen=True)
class Pq(Part):
  """Product quantisation in `parts` parts of `bits` bits each."""

  is_product = True
  parts: int
  bits: int = 8

  @property
  def least(self) -> int:
    return 2**self.bits

  def check(self, dim: int) -> None:
    kind = type(self).__name__.lower()
    _check_bits(kind, self.bits)
    if dim % self.parts:
      divisors = [m for m in range(1, dim + 1) if not dim % m]
      near = sorted(sorted(divisors, key=lambda m: abs(m - self.parts))[:3])
      raise UserError(
          f'{kind}:{self.parts} of vectors of dim {dim}: the number of parts'
          f' does not divide it. Take {" or ".join(map(str, near))}.'
      )

  def shape(self, dim: int) -> tuple[str, int]:
    return 'uint8', -(-self.parts * self.bits // 8)

  def fit(self, training: Training) -> Trained:
    vectors = training.sample(256 * 2**self.bits)
    parts = vectors.reshape(len(vectors), self.parts, -1)
    centroids = kmeans.fit(parts, 2**self.bits, training.seed)
    return (), Product(centroids, centroids)


@dataclasses.dataclass(frozen=True)
class Opq(Pq):
  """Product quantisation after a rotation that is learnt for it."""

  def fit(self, training: Training) -> Trained:
    rotation, centroids = opq.fit(
        training.sample(256 * 2**self.bits), self.parts, self.bits,
        training.seed,
    )
    return (Linear(rotation),), Product(centroids, centroids)


@dataclasses.dataclass(frozen=True)
class Sign(Part):
  """A bit per dimension, of queries too if `hamming`."""

  rescored: int | None = None
  hamming: bool = False

  def shape(self, dim: int) -> tuple[str, int]:
    return 'uint8', -(-dim // 8)

  def fit(self, training: Training) -> Trained:
    kind = quantisers.Hamming if self.hamming else quantisers.Signs
    return (), kind(training.dim)


@dataclasses.dataclass(frozen=True, eq=False)
class Saved(Part):
  """The codec that an index has, for other passages: nothing is trained."""

  codec: Codec

  @property
  def is_product(self) -> bool:
    return isinstance(self.codec.quantiser, Product)

  @property
  def rescored(self) -> int | None:
    return self.codec.rescored

  def check(self, dim: int) -> None:
    if dim != self.codec.dim:
      raise UserError(
          f'The codec {self.codec.name} was trained for vectors of dim'
          f' {self.codec.dim}, but these have {dim}.'
      )

  def shape(self, dim: int) -> tuple[str, int]:
    return self.codec.code_dtype.name, self.codec.quantiser.width

  def fit(self, training: Training) -> Trained:
    return tuple(self.codec.transforms), self.codec.quantiser


def _check_bits(kind: str, bits: int) -> None:
  if bits > 8:
    raise UserError(f'{kind} of {bits} bits: expected 1 to 8.')
