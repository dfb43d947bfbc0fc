"""Which examples a step trains on: a pure function of seed and step."""

from collections.abc import Callable, Sequence
import dataclasses
import functools

import numpy as np

# Positions of a mixture after which the rates hold exactly, as far as they can.
BLOCK = 2**16


@dataclasses.dataclass(frozen=True)
class Order:
  """The order of the examples of one source, or of a mixture of several.

  One source: step s is batch `s % (n // B)` of epoch `s // (n // B)`, every
  epoch another permutation. The remainder of an epoch, fewer than B examples,
  is left out of it; every epoch leaves out others.

  Several: each block of `BLOCK` positions has of every source as many as its
  rate says, to the nearest one, in random order; what one block lacks the next
  makes up for. The examples of a source come epoch after epoch,
  none left out.

  Attributes:
    sizes: examples of each source, n.
    rates: share of each source, adding up to 1.
    batch_size: B.
    seed: 0 or more.
  """

  sizes: Sequence[int]
  rates: Sequence[float]
  batch_size: int
  seed: int

  def __call__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The global batch of a step.

    Returns:
      Numbers of the examples [B], those of the second source after those of
      the first, and so on; and for each the epoch of its source, from 0 on.
    """
    if len(self.sizes) > 1:
      return self._mixed(step * self.batch_size)
    epoch, position = divmod(step, self.sizes[0] // self.batch_size)
    start = position * self.batch_size
    examples = self._permutation(0, epoch)[start : start + self.batch_size]
    return examples, np.full(self.batch_size, epoch)

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
        chosen = self._permutation(source, int(e))[position[now]]
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
    """What `_drawn` has worked out so far, by block."""
    return [np.zeros(len(self.sizes), np.int64)]

  @functools.cached_property
  def _block(self) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Sources of a block, and how many of its source precede each position."""

    @functools.lru_cache(maxsize=2)
    def block(number: int) -> tuple[np.ndarray, np.ndarray]:
      rng = np.random.default_rng([self.seed, number])
      all_sources = np.arange(len(self.sizes))
      counts = self._drawn(number + 1) - self._drawn(number)
      sources = rng.permutation(np.repeat(all_sources, counts))
      rank = np.empty_like(sources)
      for source in all_sources:
        rows = np.flatnonzero(sources == source)
        rank[rows] = np.arange(len(rows))
      return sources, rank

    return block

  def _permutation(self, source: int, epoch: int) -> np.ndarray:
    """Of the examples of a source in an epoch."""
    return self._permutations[source](epoch)

  @functools.cached_property
  def _permutations(self) -> list[Callable[[int], np.ndarray]]:
    """By source, so that none makes another's be forgotten.

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
