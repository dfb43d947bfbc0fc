"""The examples of a step, pure in seed and step; the passages of a query."""

from collections.abc import Callable, Sequence
import dataclasses
import functools

import numpy as np

# Positions of a mixture after which the rates hold exactly, as far as they can.
BLOCK = 2**16
# Passages of a query that a batch names: masks are made of them, and a query
# may occur a thousand times.
MAX_POSITIVES = 32


@dataclasses.dataclass(frozen=True)
class Order:
  """The order of the examples of one source, or of a mixture of several.

  One source: step s is batch `s % (n // B)` of epoch `s // (n // B)`, every
  epoch another permutation. The remainder of an epoch, fewer than B examples,
  is left out of it; every epoch leaves out others.

  Several: in each block of `BLOCK` positions every source has its rate, to the
  nearest example, in random order; the next block makes up for the difference.
  The examples of a source come epoch after epoch, none left out. `rates` add up
  to 1.
  """

  sizes: Sequence[int]
  rates: Sequence[float]
  batch_size: int
  seed: int

  def __call__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Examples of a step [B], and for each the epoch of its source, from 0 on.

    Numbers of the second source follow those of the first, and so on.
    """
    if len(self.sizes) > 1:
      return self._mixed(step * self.batch_size)
    epoch, position = divmod(step, self.sizes[0] // self.batch_size)
    start = position * self.batch_size
    examples = self._permutations[0](epoch)[start : start + self.batch_size]
    return examples, np.full(self.batch_size, epoch)

  def describe(self) -> str:
    """A line on the length of an epoch, and the examples it leaves out."""
    size = self.batch_size
    if len(self.sizes) > 1:
      steps = (n / (r * size) for n, r in zip(self.sizes, self.rates))
      lengths = ', '.join(f'{count:,.1f}' for count in steps)
      return f'Steps of an epoch of each source of the mixture: {lengths}.'
    batches, rest = divmod(self.sizes[0], size)
    return (
        f'Batches of {size:,} in an epoch: {batches:,}; of its'
        f' {self.sizes[0]:,} examples {rest:,} are left over, others each time.'
    )

  def _mixed(self, start: int) -> tuple[np.ndarray, np.ndarray]:
    examples, epochs = np.empty((2, self.batch_size), np.int64)
    first = np.cumsum([0, *self.sizes])
    sources, draws = self._draws(start)
    for source, size in enumerate(self.sizes):
      rows = np.flatnonzero(sources == source)
      epoch, position = np.divmod(draws[rows], size)
      epochs[rows] = epoch
      for e in np.unique(epoch):
        now = epoch == e
        chosen = self._permutations[source](int(e))[position[now]]
        examples[rows[now]] = first[source] + chosen
    return examples, epochs

  def _draws(self, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Sources of B positions, and how often each was drawn from before."""
    sources, draws = [], []
    position, stop = start, start + self.batch_size
    while position < stop:
      block, offset = divmod(position, BLOCK)
      end = min(BLOCK, offset + stop - position)
      of_block, rank = self._block(block)
      chosen = of_block[offset:end]
      sources.append(chosen)
      draws.append(self._drawn(block)[chosen] + rank[offset:end])
      position += end - offset
    return np.concatenate(sources), np.concatenate(draws)

  def _drawn(self, block: int) -> np.ndarray:
    """Pairs of each source in all blocks before this one, int64 [sources].

    After any number of blocks they are within one of what the rates say, or
    within two where there are many sources.
    """
    rates = np.asarray(self.rates, np.float64)
    while len(self._totals) <= block:
      before, number = self._totals[-1], len(self._totals)
      due = np.maximum(rates * number * BLOCK - before, 0.0)
      counts = np.floor(due).astype(np.int64)
      # Sources ahead of their rate wait, which others make up for.
      excess = counts.sum() - BLOCK
      if excess > 0:
        counts[np.argmax(counts)] -= excess
      most = np.argsort(counts - due, kind='stable')
      counts[most[: BLOCK - counts.sum()]] += 1
      self._totals.append(before + counts)
    return self._totals[block]

  @functools.cached_property
  def _totals(self) -> list[np.ndarray]:
    """Results of `_drawn` so far, by block."""
    return [np.zeros(len(self.sizes), np.int64)]

  @functools.cached_property
  def _block(self) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Sources of a block, and how many of its source precede each position."""

    @functools.lru_cache(maxsize=2)
    def block(number: int) -> tuple[np.ndarray, np.ndarray]:
      # No key of `_permutations`, or the sources of a block would tell which
      # of their examples come first.
      rng = np.random.default_rng([self.seed, number, 0, 1])
      all_sources = np.arange(len(self.sizes))
      counts = self._drawn(number + 1) - self._drawn(number)
      sources = rng.permutation(np.repeat(all_sources, counts))
      rank = np.empty_like(sources)
      for source in all_sources:
        rows = np.flatnonzero(sources == source)
        rank[rows] = np.arange(len(rows))
      return sources, rank

    return block

  @functools.cached_property
  def _permutations(self) -> list[Callable[[int], np.ndarray]]:
    """epoch -> int64 [n], by source, each with its own cache.

    8 million examples are 64 MB and 0.2 s a permutation. In a mixture the end
    of one epoch and the start of the next meet in a batch.
    """

    def of_source(source: int) -> Callable[[int], np.ndarray]:
      @functools.lru_cache(maxsize=1 if len(self.sizes) == 1 else 2)
      def permutation(epoch: int) -> np.ndarray:
        key = [self.seed, epoch] + ([source] if source else [])
        return np.random.default_rng(key).permutation(self.sizes[source])

      return permutation

    return [of_source(source) for source in range(len(self.sizes))]


class Positives:
  """The passages of every query.

  Attributes:
    count: P, the most other passages of a pair's query, up to `MAX_POSITIVES`.
  """

  def __init__(self, queries: np.ndarray, passages: np.ndarray):
    """Groups pairs of fingerprints, uint64 [n] each."""
    ordered = np.sort(queries)
    if not (ordered[1:] == ordered[:-1]).any():
      # Nothing to keep of millions of queries with a passage each.
      self.count = 0
      return
    order = np.lexsort((passages, queries))
    queries, passages = queries[order], passages[order]
    new = np.ones(len(queries), bool)
    new[1:] = (np.diff(queries) != 0) | (np.diff(passages) != 0)
    queries, self._passages = queries[new], passages[new]
    self._queries, self._starts, self._counts = np.unique(
        queries, return_index=True, return_counts=True
    )
    self.count = min(int(self._counts.max(initial=1)) - 1, MAX_POSITIVES)

  def others(self, queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """The passages of each pair's query but the pair's own: uint64 [b, P].

    The pairs have queries [b] and passages with their hard negatives [b, 1 +
    K]. The own passage fills up where there are fewer; where there are more,
    those among `passages` come first.
    """
    if not self.count:
      return np.zeros((len(queries), 0), np.uint64)
    group = np.searchsorted(self._queries, queries)
    starts, counts = self._starts[group], self._counts[group]
    place = np.arange(self.count + 1)
    there = place < counts[:, None]
    own = passages[:, :1]
    others = np.where(
        there, self._passages[np.where(there, starts[:, None] + place, 0)], own
    )
    for row in np.flatnonzero(counts > self.count + 1):
      everything = self._passages[starts[row] : starts[row] + counts[row]]
      here = np.intersect1d(everything, passages)
      here = here[here != own[row]][: self.count]
      others[row, : len(here)] = here
    # The own one goes to the end of its row, with those that stand in for it.
    order = np.argsort(others == own, axis=1, kind='stable')
    return np.take_along_axis(others, order, axis=1)[:, : self.count]
