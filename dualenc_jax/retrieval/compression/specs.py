"""The codecs by name, and how each is trained.

  fp32 fp16 bf16   floats
  int8             a byte a dimension, each in its own range; int8:uniform, one
                   range for all
  pca:256          the 256 directions with most of the passages in them
  truncate:256     the first 256 dimensions, of length one (Matryoshka)
  rotated:4        a random rotation and levels of 4 bits a dimension
  pq:96            96 parts of 8 bits each; pq:96x6, of 6
  opq:96           the same after a rotation that is learnt for it
  sign             a bit a dimension, scored by the float query
  binary           a bit a dimension: the 1,000 best by Hamming distance are
                   scored again by the float query; binary:200, the 200 best
  hamming          a bit a dimension of passages and of queries

pca and truncate may stand before another: truncate:256+int8. The folder
of an index of codes stands for its codec, as it was trained there.
"""

from collections.abc import Callable
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.retrieval.compression import codec_file, parts as parts_lib
from dualenc_jax.retrieval.compression.codec import Codec
from dualenc_jax.retrieval.compression.quantisers import Floats
from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import expect, UserError
from dualenc_jax.utils.suggest import did_you_mean_or_known

# By dtype, the codecs that are nothing else.
FLOATS = {'float32': 'fp32', 'float16': 'fp16', 'bfloat16': 'bf16'}
# Candidates of the first step of two; BPR's.
RESCORED = 1000


def _int8(option: str | None = None) -> parts_lib.Part:
  if option not in (None, 'uniform'):
    raise ValueError
  return parts_lib.Bytes(uniform=option is not None)


def _number(kind: Callable[..., Any]) -> Callable[[str], Any]:
  return lambda text: kind(_whole(text))


def _product(kind: Callable[..., Any]) -> Callable[[str], Any]:
  def make(text: str) -> Any:
    parts, _, bits = text.partition('x')
    return kind(_whole(parts), *([_whole(bits)] if bits else []))

  return make


def _whole(text: str) -> int:
  if not untrusted.is_digits(text) or int(text) < 1:
    raise ValueError
  return int(text)


_NAMES: dict[str, tuple[Callable[..., Any], str]] = {
    **{
        name: (lambda dtype=dtype: parts_lib.Float(dtype), name)
        for dtype, name in FLOATS.items()
    },
    'int8': (_int8, 'int8 or int8:uniform'),
    'pca': (_number(parts_lib.Pca), 'pca:256'),
    'truncate': (_number(parts_lib.Truncate), 'truncate:256'),
    'rotated': (_number(parts_lib.Rotated), 'rotated:4'),
    'pq': (_product(parts_lib.Pq), 'pq:96 or pq:96x6'),
    'opq': (_product(parts_lib.Opq), 'opq:96 or opq:96x6'),
    'sign': (lambda: parts_lib.Sign(), 'sign'),
    'binary': (
        lambda count=str(RESCORED): parts_lib.Sign(_whole(count)),
        'binary or binary:200',
    ),
    'hamming': (lambda: parts_lib.Sign(hamming=True), 'hamming'),
}


@dataclasses.dataclass(frozen=True)
class Spec:
  """A codec to train: linear maps, and perhaps a quantiser."""

  name: str
  parts: tuple[parts_lib.Part, ...]

  @classmethod
  def from_codec(cls, codec: Codec) -> 'Spec':
    """A codec that is trained already."""
    return cls(codec.name, (parts_lib.Saved(codec),))

  @property
  def floats(self) -> str | None:
    """The dtype of a codec that only rounds; None for others."""
    match self.parts:
      case (parts_lib.Float(dtype),):
        return dtype
    return None

  @property
  def is_product(self) -> bool:
    return self.parts[-1].is_product

  @property
  def rescored(self) -> int | None:
    return self.parts[-1].rescored

  def check(self, dim: int, count: int | None = None) -> None:
    """Raises UserError unless it suits `count` vectors of this dim.

    A count of None is not known yet.
    """
    for part in self.parts:
      part.check(dim)
      dim = part.shape(dim)[1]
    least = max(part.least for part in self.parts)
    if count is not None and count < least:
      raise UserError(
          f'The codec {self.name} needs at least {least:,} vectors for'
          f' training, but there are {count:,}. Use fewer bits or dims, or more'
          ' passages.'
      )

  def shape(self, dim: int) -> tuple[str, int]:
    """The dtype and the number of a passage's codes."""
    dtype = ''
    for part in self.parts:
      dtype, dim = part.shape(dim)
    return dtype, dim

  def fit(self, vectors: Any, seed: int = 0) -> Codec:
    """Trains the codec.

    Args:
      vectors: passages [N, D], an array or a store of rows, read a block at a
        time.
      seed: seed of all that is random.

    Raises:
      UserError: the vectors are too few, not finite, or do not suit.
    """
    dim = vectors.shape[1]
    self.check(dim, len(vectors))
    training, quantiser = parts_lib.Training(vectors, seed), None
    for part in self.parts:
      transforms, quantiser = part.fit(training)
      for transform in transforms:
        training = training.after(transform)
    if quantiser is None:
      quantiser = Floats(training.dim)
    return Codec(self.name, dim, training.transforms, quantiser, self.rescored)


def spec(name: str) -> Spec:
  """The codec of a name, see above; raises UserError for an unknown one."""
  expect(isinstance(name, str), 'codec', name, 'a name, such as "int8"')
  path = pathlib.Path(name).expanduser() / codec_file.FILE
  if path.is_file():
    return Spec.from_codec(codec_file.read(path)[0])
  parts: list[parts_lib.Part] = []
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
    except (KeyError, TypeError, ValueError):
      raise UserError(f'The codec {piece!r}: expected {expected}.') from None
  for piece, part in zip(pieces, parts[:-1]):
    if not part.stands_before:
      raise UserError(
          f'The codec {name!r}: nothing may follow {piece}; pca and'
          ' truncate may precede another.'
      )
  return Spec(name, tuple(parts))
