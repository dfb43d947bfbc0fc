"""The vectors that train a codec: a sample of them, or all in blocks."""

from collections.abc import Iterator
import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.retrieval.compression.linear import Linear
from dualenc_jax.utils import finite

# Vectors of the largest sample: 256 for each of 256 centroids.
SAMPLE = 2**16
_BLOCK = 2**14


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
