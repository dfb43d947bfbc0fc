"""`Codec`, which turns vectors of an index into codes and scores queries.

Shapes: n vectors, D their dim, d the dim after the linear maps, Q queries, w
columns of codes.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import jax
import numpy as np

from dualenc_jax.retrieval.compression.linear import Linear
from dualenc_jax.retrieval.compression.quantisers import Floats, Hamming, Int8
from dualenc_jax.utils import finite
from dualenc_jax.utils.errors import expect, UserError


@dataclasses.dataclass(frozen=True, eq=False)
class Codec:
  """Trained linear maps, one after the other, and a trained quantiser.

  Attributes:
    name: as in `specs`, such as 'opq:96'.
    dim: D.
    rescored: l: the search takes the l best by Hamming distance and scores
      these again, by the float query; None scores all passages at once.
  """

  name: str
  dim: int
  transforms: Sequence[Linear]
  quantiser: Any
  rescored: int | None = None

  @property
  def bytes_per_passage(self) -> int:
    """Bytes of a passage on disk and in memory."""
    return self.quantiser.width * self.code_dtype.itemsize

  @property
  def bytes_once(self) -> int:
    """Bytes of the codec itself."""
    found = {
        id(array): array.nbytes for part in (*self.transforms, self.quantiser)
        for array in vars(part).values()
        if isinstance(array, (np.ndarray, jax.Array))
    }
    return sum(found.values())

  @property
  def code_dtype(self) -> np.dtype:
    return np.dtype(self.quantiser.dtype)

  @property
  def is_normalised(self) -> bool:
    """Whether decoded vectors have length one, up to rounding."""
    is_map = isinstance(self.quantiser, Floats) and bool(self.transforms)
    return is_map and self.transforms[-1].normalise

  def encode(self, vectors: np.ndarray) -> np.ndarray:
    """Codes of passages [n, D]: [n, w]; UserError where a vector has none."""
    self._check('passage', vectors)
    return self.quantiser.encode(self._mapped(vectors))

  def count_clipped(self, vectors: np.ndarray) -> int:
    """The number of components that lie beyond the ranges of an int8 codec."""
    if not isinstance(self.quantiser, Int8):
      return 0
    return self.quantiser.count_clipped(self._mapped(vectors))

  def decode(self, codes: np.ndarray) -> np.ndarray:
    """The vectors that codes stand for, float32 [n, d]."""
    return self.quantiser.decode(codes)

  def queries(self, queries: np.ndarray) -> np.ndarray:
    """Queries to compare with decoded codes: float32 [Q, D] -> [Q, d]."""
    self._check('query', queries)
    return self.quantiser.map_queries(self._mapped(queries))

  def by_hamming(self) -> 'Codec':
    """The codec of the first step of two: the same codes, signs of queries."""
    return dataclasses.replace(
        self, quantiser=Hamming(self.quantiser.dim), rescored=None
    )

  def _mapped(self, vectors: np.ndarray) -> np.ndarray:
    """Vectors behind the linear maps: float32 [n, d]."""
    vectors = np.asarray(vectors, np.float32)
    for transform in self.transforms:
      vectors = transform(vectors)
    return vectors

  def _check(self, side: str, vectors: np.ndarray) -> None:
    if vectors.ndim != 2 or vectors.shape[1] != self.dim:
      raise UserError(
          f'{side} embeddings have shape {vectors.shape}, and the codec'
          f' {self.name} was trained for [rows, {self.dim}]. Use the model that'
          ' it was trained with, or train it again.'
      )
    finite.check_rows(f'{side} embeddings', vectors)


class Coded:
  """N vectors that are kept as codes and decoded when read; read-only.

  `ExactSearch` searches them. `store[a:b]` and `store[rows]` give
  float32 vectors, to be compared with `codec.queries`. Codes [N, w] are an
  array or a store of rows.
  """

  ndim = 2
  dtype = np.dtype(np.float32)

  def __init__(self, codec: Codec, codes: Any):
    """Takes codes of this codec; raises UserError for others."""
    expected = codec.quantiser.width, codec.code_dtype
    if (codes.shape[1], codes.dtype) != expected:
      raise UserError(
          f'codes are {codes.dtype} [{codes.shape[0]}, {codes.shape[1]}]; the'
          f' codec {codec.name} makes {expected[1]} [rows, {expected[0]}].'
      )
    self.codec = codec
    self.codes = codes
    self.shape = len(codes), codec.quantiser.dim

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, rows: int | slice | np.ndarray) -> np.ndarray:
    codes = np.asarray(self.codes[rows])
    found = self.codec.decode(codes.reshape(-1, codes.shape[-1]))
    return found.reshape(*codes.shape[:-1], self.shape[1])

  @property
  def products(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray] | None:
    """(query [d], rows [n]) -> float64 [n], where that needs no decoding."""
    own = getattr(self.codec.quantiser, 'products', None)
    return own and (lambda query, rows: own(query, self.codes[rows]))

  @property
  def longest(self) -> float:
    """An upper bound of the norms of the vectors."""
    return self.codec.quantiser.norm_bound

  def two_steps(self) -> 'Coded':
    """The passages of the first step of two, see `Codec.by_hamming`."""
    return Coded(self.codec.by_hamming(), self.codes)


def with_candidates(passages: Any, count: int) -> Coded:
  """The same codes, searched in two steps with another l, `count`.

  Raises UserError for passages that are not searched in two steps.
  """
  codec = getattr(passages, 'codec', None)
  if codec is None or codec.rescored is None:
    what = 'no codes' if codec is None else f'codes of {codec.name}'
    raise UserError(
        f'candidates is {count}: only an index that is searched in two steps'
        f' takes it, but this one has {what}. Leave it out, or encode with'
        ' --codec=binary.'
    )
  expect(count >= 1, 'candidates', count, '1 or more')
  *before, _ = codec.name.split('+')
  name = '+'.join([*before, f'binary:{count}'])
  return Coded(
      dataclasses.replace(codec, name=name, rescored=count), passages.codes
  )
