"""The parts of codecs, before they are trained: linear maps and quantisers."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dualenc_jax.compression import kmeans, linear, opq
from dualenc_jax.compression.product import Product
from dualenc_jax.compression.quantisers import (
  Floats,
  Hamming,
  Int8,
  Levels,
  Signs,
)
from dualenc_jax.compression.training import Training
from dualenc_jax.compression.transforms import Linear
from dualenc_jax.errors import UserError

# Of a passage, from which TLDR learns.
_NEIGHBOURS = 5


class Shape(NamedTuple):
  """What a passage becomes, before anything is trained.

  Attributes:
    dtype: of its codes.
    width: how many there are.
  """

  dtype: str
  width: int


class Trained(NamedTuple):
  """What one part of a name has become.

  Attributes:
    transforms: linear maps.
    quantiser: None of a part that is none.
    rescored: as of `Codec`.
  """

  transforms: tuple[Linear, ...] = ()
  quantiser: Any = None
  rescored: int | None = None


@dataclasses.dataclass(frozen=True)
class Float:
  """Numbers of another dtype."""

  dtype: str

  def check(self, dim: int) -> None:
    del dim

  def shape(self, dim: int) -> Shape:
    return Shape(self.dtype, dim)

  def fit(self, training: Training) -> Trained:
    return Trained(quantiser=Floats(training.dim, self.dtype))


@dataclasses.dataclass(frozen=True)
class Bytes:
  """A byte a dimension.

  Attributes:
    uniform: one range for all dimensions.
    quantile: the middle share of the numbers that lies in a range; what is
      beyond goes to its ends.
  """

  uniform: bool = False
  quantile: float = 1.0

  def check(self, dim: int) -> None:
    del dim

  def shape(self, dim: int) -> Shape:
    return Shape('uint8', dim)

  def fit(self, training: Training) -> Trained:
    if self.quantile < 1:
      ends = (1 - self.quantile) / 2, (1 + self.quantile) / 2
      low, high = np.quantile(training.sample(), ends, axis=0)
    else:
      found = [(b.min(axis=0), b.max(axis=0)) for b in training.blocks()]
      lows, highs = zip(*found)
      low, high = np.min(lows, axis=0), np.max(highs, axis=0)
    if self.uniform:
      low, high = np.full_like(low, low.min()), np.full_like(high, high.max())
    return Trained(quantiser=Int8.of_ranges(low, high))


@dataclasses.dataclass(frozen=True)
class _Map:
  """A linear map.

  Attributes:
    kind: its name.
    dim: of what it makes.
  """

  kind: ClassVar[str]
  dim: int

  def check(self, dim: int) -> None:
    _check_dim(self.kind, self.dim, dim)

  def shape(self, dim: int) -> Shape:
    return Shape('float32', self.dim)


@dataclasses.dataclass(frozen=True)
class Pca(_Map):
  """Principal directions.

  Attributes:
    dim: how many.
    centred: of the deviations from the mean; the map itself has no offset.
    by_queries: the map of this rank that keeps most of the scores of queries.
  """

  kind = 'pca'
  centred: bool = False
  by_queries: bool = False

  @property
  def least(self) -> int:
    return self.dim

  def fit(self, training: Training) -> Trained:
    queries = training.of_queries('pca') if self.by_queries else None
    matrix, of_queries = linear.pca(
        training.blocks(), self.dim, self.centred, queries
    )
    other = of_queries if self.by_queries else None
    return Trained((Linear(matrix, other),))


@dataclasses.dataclass(frozen=True)
class Tldr(_Map):
  """A linear map that keeps neighbours together.

  Attributes:
    by_queries: it learns from queries, too.
  """

  kind = 'tldr'
  by_queries: bool = False

  @property
  def least(self) -> int:
    # Queries are neighbours, too.
    return 1 if self.by_queries else _NEIGHBOURS + 1

  def fit(self, training: Training) -> Trained:
    # A saved retriever is opened without optax.
    from dualenc_jax.compression import tldr

    queries = training.of_queries('tldr') if self.by_queries else None
    matrix = tldr.fit(
        training.sample(), self.dim, training.seed, _NEIGHBOURS, queries
    )
    return Trained((Linear(matrix),))


@dataclasses.dataclass(frozen=True)
class Truncate(_Map):
  """The first dimensions, scaled to length one."""

  kind = 'truncate'

  def fit(self, training: Training) -> Trained:
    matrix = np.eye(self.dim, training.dim, dtype=np.float32)
    return Trained((Linear(matrix, normalise=True),))


@dataclasses.dataclass(frozen=True)
class Rotated:
  """A random rotation, then levels of so many bits."""

  bits: int

  def check(self, dim: int) -> None:
    _check_bits('rotated', self.bits)

  def shape(self, dim: int) -> Shape:
    return Shape('uint8', -(-dim * self.bits // 8))

  def fit(self, training: Training) -> Trained:
    rotation = linear.random_rotation(training.dim, training.seed)
    # A rotation leaves the sum of squares as it is.
    deviation = np.sqrt(np.mean(np.square(training.sample(), dtype=np.float64)))
    levels = Levels.of_normal(training.dim, self.bits, float(deviation))
    return Trained((Linear(rotation),), levels)


@dataclasses.dataclass(frozen=True)
class Pq:
  """Product quantisation of M parts, of so many bits each."""

  kind: ClassVar[str] = 'pq'
  parts: int
  bits: int = 8

  @property
  def least(self) -> int:
    return 2**self.bits

  def check(self, dim: int) -> None:
    _check_bits(self.kind, self.bits)
    if dim % self.parts:
      divisors = [m for m in range(1, dim + 1) if not dim % m]
      near = sorted(sorted(divisors, key=lambda m: abs(m - self.parts))[:3])
      raise UserError(
          f'{self.kind}:{self.parts} of vectors of dim {dim}: the number of'
          ' parts does not divide it. Take'
          f' {" or ".join(map(str, near))}.'
      )

  def shape(self, dim: int) -> Shape:
    return Shape('uint8', -(-self.parts * self.bits // 8))

  def fit(self, training: Training) -> Trained:
    size = 2**self.bits
    vectors = training.sample(256 * size)
    parts = vectors.reshape(len(vectors), self.parts, -1)
    centroids = kmeans.fit(parts, size, training.seed)
    return Trained(quantiser=Product(centroids, centroids))


@dataclasses.dataclass(frozen=True)
class Opq(Pq):
  """Product quantisation after a rotation that is learnt for it."""

  kind = 'opq'

  def fit(self, training: Training) -> Trained:
    rotation, centroids = opq.fit(
        training.sample(256 * 2**self.bits),
        self.parts,
        self.bits,
        training.seed,
    )
    return Trained((Linear(rotation),), Product(centroids, centroids))


@dataclasses.dataclass(frozen=True)
class Sign:
  """A bit a dimension.

  Attributes:
    rescored: as of `Codec`.
    hamming: queries are signs, too.
  """

  rescored: int | None = None
  hamming: bool = False

  def check(self, dim: int) -> None:
    del dim

  def shape(self, dim: int) -> Shape:
    return Shape('uint8', -(-dim // 8))

  def fit(self, training: Training) -> Trained:
    kind = Hamming if self.hamming else Signs
    return Trained((), kind(training.dim), self.rescored)


def _check_dim(kind: str, wanted: int, dim: int) -> None:
  if wanted > dim:
    raise UserError(
        f'{kind}:{wanted} of vectors of dim {dim}: expected at most {dim}.'
    )


def _check_bits(kind: str, bits: int) -> None:
  if bits > 8:
    raise UserError(f'{kind} of {bits} bits: expected 1 to 8.')
