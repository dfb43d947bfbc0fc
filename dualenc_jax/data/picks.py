"""Which texts a step trains on: the pairs of its order, and their negatives."""

from collections.abc import Sequence
import dataclasses
import functools

import numpy as np

from dualenc_jax.data.cache import Cache
from dualenc_jax.data.columns import Column
from dualenc_jax.data.order import Order
from dualenc_jax.data.pool import Pool
from dualenc_jax.text.fingerprint import as_uint32_pairs


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
    columns: extra ones; see `Batches`.
  """

  caches: Sequence[Cache]
  rates: Sequence[float]
  batch_size: int
  seed: int
  num_negatives: int
  columns: Sequence[Column] = ()

  @functools.cached_property
  def order(self) -> Order:
    sizes = tuple(len(cache) for cache in self.caches)
    return Order(sizes, tuple(self.rates), self.batch_size, self.seed)

  @functools.cached_property
  def queries(self) -> Pool:
    """Rows of the queries of all caches."""
    return Pool([self._part(cache, 'query', 'query') for cache in self.caches])

  @functools.cached_property
  def passages(self) -> Pool:
    """Rows of the passages of all caches, then of their hard negatives."""
    return Pool([
        self._part(cache, 'candidate', text)
        for text in ('passage', 'negative')
        for cache in self.caches
    ])

  def _part(self, cache: Cache, per: str, text: str):
    """The tokens of a text of all examples, and the columns that go with it."""
    tokens = getattr(cache, f'{text}_tokens')
    columns = {'ids': getattr(cache, f'{text}_fingerprints')}
    prefix = 'negative_' if text == 'negative' else ''
    for column in self.columns:
      if column.per == per:
        # Where another source of a mixture has the column.
        default = np.array(column.default, column.dtype)
        columns[column.name] = getattr(
            cache, prefix + column.key, np.broadcast_to(default, len(tokens))
        )
    return tokens, columns

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
    passages = self.passages.gather('ids', picks.passages)
    return {
        'query': self.queries.gather('ids', picks.queries),
        'passage': passages[:, 0],
        'negatives': passages[:, 1:],
        'negative_valid': picks.passages[:, 1:] >= 0,
    }

  def arrays(self, picks: Picks) -> dict[str, np.ndarray]:
    """What a batch of some pairs has beside its texts; see `Batches`."""
    ids = as_uint32_pairs(self.passages.gather('ids', picks.passages))
    found = {
        'numbers': picks.numbers,
        'query_ids': as_uint32_pairs(
            self.queries.gather('ids', picks.queries)
        ),
        'passage_ids': ids[:, 0],
    }
    if self.num_negatives > 0:
      found['negative_ids'] = ids[:, 1:]
      found['negative_valid'] = picks.passages[:, 1:] >= 0
    for column in self.columns:
      pool, rows = {
          'query': (self.queries, picks.queries),
          'candidate': (self.passages, picks.passages),
      }[column.per]
      found[column.name] = pool.gather(column.name, rows, column.default)
    return found

  def sample(self, rng: np.random.Generator) -> Picks:
    """A batch like those of the order, drawn with replacement."""
    sizes = np.array([len(cache) for cache in self.caches])
    source = rng.choice(len(sizes), self.batch_size, p=self.rates)
    examples = self.queries.first[source] + rng.integers(0, sizes[source])
    return self._picks(examples, np.zeros(self.batch_size, np.int64))
