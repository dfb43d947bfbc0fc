"""The vectors that train a codec: a sample, or all in turn."""

from collections.abc import Iterator
import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.compression.transforms import Linear
from dualenc_jax.errors import UserError
from dualenc_jax.io import finite

# Of what is learnt, all is learnt from so many: 256 for each of 256 centroids.
SAMPLE = 2**16
_BLOCK = 2**14


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
  """Vectors [N, D] of passages, and perhaps queries, after some linear maps.

  They are an array or a store of rows, and read block by block.
  """

  vectors: Any
  queries: np.ndarray | None
  seed: int
  transforms: tuple[Linear, ...] = ()

  @property
  def dim(self) -> int:
    """d, after the maps."""
    last = self.transforms[-1].dim if self.transforms else None
    return last or self.vectors.shape[1]

  def blocks(self) -> Iterator[np.ndarray]:
    """Yields all vectors, float32 [b, d]."""
    for start in range(0, len(self.vectors), _BLOCK):
      yield self._mapped(self.vectors[start : start + _BLOCK])

  def sample(self, most: int = SAMPLE) -> np.ndarray:
    """float32 [min(N, most), d], drawn without repeats, in their order."""
    count = len(self.vectors)
    if count <= most:
      return np.concatenate(list(self.blocks()))
    drawn = np.random.default_rng(self.seed).choice(
        count, most, replace=False, shuffle=False
    )
    return self._mapped(self.vectors[np.sort(drawn)])

  def of_queries(self, wanted_by: str) -> np.ndarray:
    """float32 [Q, d]; raises UserError where there are none."""
    if self.queries is None or not len(self.queries):
      raise UserError(
          f'The codec {wanted_by} is trained with queries, but none are given.'
          ' Use a codec that is trained on passages alone.'
      )
    found = np.asarray(self.queries, np.float32)
    finite.check_rows('query embeddings', found)
    for transform in self.transforms:
      found = transform.of_queries(found)
    return found

  def after(self, transform: Linear) -> 'Training':
    """The same behind one more map."""
    return dataclasses.replace(self, transforms=(*self.transforms, transform))

  def _mapped(self, vectors: Any) -> np.ndarray:
    vectors = np.asarray(vectors, np.float32)
    finite.check_rows('vectors to train a codec on', vectors)
    for transform in self.transforms:
      vectors = transform(vectors)
    return vectors
