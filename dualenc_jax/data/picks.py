"""Which texts a step trains on: the pairs of its order, and their negatives."""

from collections.abc import Sequence
import dataclasses
import functools

import numpy as np

from dualenc_jax.data.cache import Cache
from dualenc_jax.data.order import Order
from dualenc_jax.data.pool import Pool


@dataclasses.dataclass(frozen=True)
class Picks:
  """The pairs of a global batch, before their tokens are read.

  Attributes:
    queries: int64 [B], rows of `Picker.queries`.
    passages: int64 [B, 1 + K], rows of `Picker.passages`: the positive, then
      the hard negatives, -1 where an example has fewer than K.
    numbers: uint32 [B], the place of each pair in the order of the step, by
      which dropout knows it.
  """

  queries: np.ndarray
  passages: np.ndarray
  numbers: np.ndarray

  def __getitem__(self, rows: np.ndarray) -> 'Picks':
    """Some pairs, in this order."""
    return Picks(self.queries[rows], self.passages[rows], self.numbers[rows])


@dataclasses.dataclass(frozen=True, eq=False)
class Picker:
  """Picks the pairs of global batches from caches.

  Attributes:
    caches: the prepared examples.
    rates: share of each cache, adding up to 1.
    batch_size: B.
    seed: of the order.
    num_negatives: K; see `Batches`.
  """

  caches: Sequence[Cache]
  rates: Sequence[float]
  batch_size: int
  seed: int
  num_negatives: int

  @functools.cached_property
  def order(self) -> Order:
    sizes = tuple(len(cache) for cache in self.caches)
    return Order(sizes, tuple(self.rates), self.batch_size, self.seed)

  @functools.cached_property
  def queries(self) -> Pool:
    """Rows of the queries of all caches."""
    return Pool([(c.query_tokens, c.query_fingerprints) for c in self.caches])

  @functools.cached_property
  def passages(self) -> Pool:
    """Rows of the passages of all caches, then of their hard negatives."""
    return Pool(
        [(c.passage_tokens, c.passage_fingerprints) for c in self.caches]
        + [(c.negative_tokens, c.negative_fingerprints) for c in self.caches]
    )

  def __call__(self, step: int) -> Picks:
    """The pairs of a step, in its order."""
    examples, epochs = self.order(step)
    return self._picks(examples, epochs)

  def _picks(self, examples: np.ndarray, epochs: np.ndarray) -> Picks:
    passages = np.full((len(examples), 1 + self.num_negatives), -1, np.int64)
    passages[:, 0] = examples
    if self.num_negatives > 0:
      passages[:, 1:] = self._chosen_negatives(examples, epochs)
    numbers = np.arange(len(examples), dtype=np.uint32)
    return Picks(examples, passages, numbers)

  def _chosen_negatives(self, examples, epochs) -> np.ndarray:
    """Rows of the hard negatives [b, K], -1 where there are fewer."""
    k, n = self.num_negatives, len(self.caches)
    chosen = np.full((len(examples), k), -1, np.int64)
    number = np.arange(k)[None, :]
    firsts = self.queries.first
    for source, cache in enumerate(self.caches):
      rows = np.flatnonzero(
          (examples >= firsts[source]) & (examples < firsts[source + 1])
      )
      own = examples[rows] - firsts[source]
      first = cache.negative_offsets[own][:, None]
      count = cache.negative_offsets[own + 1][:, None] - first
      turn = (epochs[rows][:, None] * k + number) % np.maximum(count, 1)
      base = self.passages.first[n + source]
      chosen[rows] = np.where(number < count, base + first + turn, -1)
    return chosen

  def fingerprints(self, step: int) -> dict[str, np.ndarray]:
    """The texts of the global batch of a step, without their tokens.

    Returns:
      uint64 fingerprints query [B], passage [B] and negatives [B, K], and
      negative_valid, bool [B, K], False where an example has fewer than K.
    """
    picks = self(step)
    passages = self.passages.fingerprints(picks.passages)
    return {
        'query': self.queries.fingerprints(picks.queries),
        'passage': passages[:, 0],
        'negatives': passages[:, 1:],
        'negative_valid': picks.passages[:, 1:] >= 0,
    }

  def sample(self, rng: np.random.Generator) -> Picks:
    """A batch like those of the order, drawn with replacement."""
    sizes = np.array([len(cache) for cache in self.caches])
    source = rng.choice(len(sizes), self.batch_size, p=self.rates)
    examples = self.queries.first[source] + rng.integers(0, sizes[source])
    return self._picks(examples, np.zeros(self.batch_size, np.int64))
