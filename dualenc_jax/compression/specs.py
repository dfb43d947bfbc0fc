"""The codecs by name, and how each is trained.

  fp32 fp16 bf16   floats
  int8             a byte a dimension, each in its own range; int8:uniform, one
                   range for all; int8:q0.99, the range of the middle 99%
  pca:256          the 256 directions with most of the passages in them;
                   pca:256:centred, of their deviations from the mean;
                   pca:256:queries, those that keep most of the scores
  tldr:256         a linear map learnt from neighbours (Kalantidis et al. 2022);
                   tldr:256:queries, from queries, too
  truncate:256     the first 256 dimensions, of length one (Matryoshka)
  rotated:4        a random rotation and levels of 4 bits a dimension
  pq:96            96 parts of 8 bits each; pq:96x6, of 6
  opq:96           the same after a rotation that is learnt for it
  sign             a bit a dimension, scored by the float query
  binary           a bit a dimension: the 1,000 best by Hamming distance are
                   scored again by the float query; binary:200, the 200 best
  hamming          a bit a dimension of passages and of queries

pca, tldr and truncate may stand before another: truncate:256+int8. The folder
of an index of codes stands for its codec, as it was trained there.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.compression import saved
from dualenc_jax.compression.codec import Codec
from dualenc_jax.compression.parts import (
  Bytes,
  Float,
  Opq,
  Pca,
  Pq,
  Rotated,
  Shape,
  Sign,
  Tldr,
  Trained,
  Truncate,
)
from dualenc_jax.compression.quantisers import Floats
from dualenc_jax.compression.training import Training
from dualenc_jax.errors import UserError
from dualenc_jax.suggest import did_you_mean_or_known

# By dtype, the codecs that are nothing else.
FLOATS = {'float32': 'fp32', 'float16': 'fp16', 'bfloat16': 'bf16'}
# Candidates of the first step of two; BPR's.
RESCORED = 1000


def _int8(*options: str) -> Bytes:
  match options:
    case ():
      return Bytes()
    case ('uniform',):
      return Bytes(uniform=True)
    case (text,) if text.startswith('q') and 0 < float(text[1:]) < 1:
      return Bytes(quantile=float(text[1:]))
  raise ValueError


def _pca(dim: str, *options: str) -> Pca:
  match options:
    case ():
      return Pca(_whole(dim))
    case ('centred',):
      return Pca(_whole(dim), centred=True)
    case ('queries',):
      return Pca(_whole(dim), by_queries=True)
  raise ValueError


def _tldr(dim: str, *options: str) -> Tldr:
  if options not in ((), ('queries',)):
    raise ValueError
  return Tldr(_whole(dim), by_queries=bool(options))


def _product(kind: type) -> Callable[[str], Any]:
  def make(text: str) -> Any:
    parts, _, bits = text.partition('x')
    return kind(_whole(parts), *([_whole(bits)] if bits else []))

  return make


def _whole(text: str) -> int:
  if not text.isdecimal() or int(text) < 1:
    raise ValueError
  return int(text)


_NAMES: dict[str, tuple[Callable[..., Any], str]] = {
    **{
        name: (lambda dtype=dtype: Float(dtype), name)
        for dtype, name in FLOATS.items()
    },
    'int8': (_int8, 'int8, int8:uniform or int8:q0.99'),
    'pca': (_pca, 'pca:256, pca:256:centred or pca:256:queries'),
    'tldr': (_tldr, 'tldr:256 or tldr:256:queries'),
    'truncate': (lambda dim: Truncate(_whole(dim)), 'truncate:256'),
    'rotated': (lambda bits: Rotated(_whole(bits)), 'rotated:4'),
    'pq': (_product(Pq), 'pq:96 or pq:96x6'),
    'opq': (_product(Opq), 'opq:96 or opq:96x6'),
    'sign': (lambda: Sign(), 'sign'),
    'binary': (
        lambda count=str(RESCORED): Sign(_whole(count)), 'binary or binary:200'
    ),
    'hamming': (lambda: Sign(hamming=True), 'hamming'),
}


@dataclasses.dataclass(frozen=True)
class Spec:
  """A codec that is not trained yet.

  Attributes:
    name: what it was asked for by.
    parts: linear maps, and a quantiser at the end.
  """

  name: str
  parts: tuple[Any, ...]

  @property
  def floats(self) -> str | None:
    """The dtype of a codec that does nothing else."""
    match self.parts:
      case (Float(dtype),):
        return dtype
    return None

  @property
  def needs_queries(self) -> bool:
    """Whether it learns from queries, too."""
    return any(getattr(part, 'by_queries', False) for part in self.parts)

  @property
  def is_product(self) -> bool:
    """Whether it has centroids, which JPQ trains."""
    return isinstance(self.parts[-1], Pq)

  @property
  def rescored(self) -> int | None:
    """As of `Codec`."""
    return getattr(self.parts[-1], 'rescored', None)

  def check(self, dim: int, count: int | None = None) -> None:
    """Raises UserError unless it suits so many vectors of this dim.

    Args:
      dim: D.
      count: of the vectors to train it on; None where that is not known yet.
    """
    least = max(getattr(part, 'least', 1) for part in self.parts)
    if count is not None and count < least:
      raise UserError(
          f'The codec {self.name} is trained on at least {least:,} vectors, and'
          f' there are {count:,}. Take fewer bits or dims, or more passages.'
      )
    for part in self.parts:
      part.check(dim)
      if isinstance(part, Pca | Tldr | Truncate):
        dim = part.dim

  def shape(self, dim: int) -> Shape:
    """What a passage of this dim becomes."""
    for part in self.parts:
      shape = part.shape(dim)
      dim = shape.width
    return shape

  def fit(
      self, vectors: Any, queries: np.ndarray | None = None, seed: int = 0
  ) -> Codec:
    """Trains it.

    Args:
      vectors: of passages, float [N, D], an array or a store of rows; read a
        block at a time, or a sample of them.
      queries: float [Q, D], for the codecs that learn from them.
      seed: of whatever is drawn.

    Raises:
      UserError: too few vectors, vectors that are not finite, or a size that
        does not suit them.
    """
    self.check(vectors.shape[1], len(vectors))
    training = Training(vectors, queries, seed)
    found = Trained()
    for part in self.parts:
      found = part.fit(training)
      for transform in found.transforms:
        training = training.after(transform)
    quantiser = found.quantiser or Floats(training.dim)
    return Codec(
        self.name,
        vectors.shape[1],
        training.transforms,
        quantiser,
        found.rescored,
    )


def spec(name: str) -> Spec | saved.Saved:
  """What a name stands for; see above.

  Raises:
    UserError: an unknown name, or arguments that it does not take.
  """
  if not isinstance(name, str):
    raise UserError(f'codec is {name!r}; expected a name, such as "int8".')
  if found := saved.find(name):
    return found
  parts = []
  pieces = name.split('+')
  for piece in pieces:
    kind, *options = piece.split(':')
    if kind not in _NAMES:
      raise UserError(
          f'No codec is called {kind!r}.{did_you_mean_or_known(kind, _NAMES)}'
      )
    make, expected = _NAMES[kind]
    try:
      parts.append(make(*options))
    except (TypeError, ValueError):
      raise UserError(f'The codec {piece!r}: expected {expected}.') from None
  for piece, part in zip(pieces, parts[:-1]):
    if not isinstance(part, (Pca, Tldr, Truncate)):
      raise UserError(
          f'The codec {name!r}: nothing can stand behind {piece}; pca, tldr and'
          ' truncate stand before another.'
      )
  return Spec(name, tuple(parts))
