"""The texts of a step: a pure function of seed and step."""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from dualenc_jax.data.cache import Cache
from dualenc_jax.data.columns import Column
from dualenc_jax.data.text.ragged import as_uint32_pairs, Pool

# Positions of a mixture after which the rates hold exactly, as far as they can.
BLOCK = 2**16
# Passages of a query that a batch names, of those that are in the batch: masks
# are made of them, and a query may be found a thousand times.
MOST = 32


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
      return (
          'An epoch of each source of the mixture, in steps: '
          + ', '.join(f'{count:,.1f}' for count in steps)
          + '; none leaves examples out.'
      )
    batches, rest = divmod(self.sizes[0], size)
    left = 'none is left over'
    if rest:
      left = f'{rest:,} {"is" if rest == 1 else "are"} left over, other ones in'
      left += ' each epoch, as each has its own order'
    return (
        f'An epoch is {batches:,} batch{"es" * (batches > 1)} of {size:,}; of'
        f' its {self.sizes[0]:,} examples {left}.'
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
  """The passages of every query; `most` beside one, no more than `MOST`."""

  def __init__(self, queries: np.ndarray, passages: np.ndarray):
    """Groups pairs of fingerprints, uint64 [n] each."""
    ordered = np.sort(queries)
    if not (ordered[1:] == ordered[:-1]).any():
      # Nothing to keep of millions of queries with a passage each.
      self.most = 0
      return
    order = np.lexsort((passages, queries))
    queries, passages = queries[order], passages[order]
    new = np.ones(len(queries), bool)
    new[1:] = (np.diff(queries) != 0) | (np.diff(passages) != 0)
    queries, self._passages = queries[new], passages[new]
    self._queries, self._starts, self._counts = np.unique(
        queries, return_index=True, return_counts=True
    )
    self.most = min(int(self._counts.max(initial=1)) - 1, MOST)

  def others(self, queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """The passages of each pair's query but the pair's own: uint64 [b, most].

    The pairs have queries [b] and passages with their hard negatives [b, 1 +
    K]. The own passage fills up where there are fewer; where there are more,
    those among `passages` come first.
    """
    if not self.most:
      return np.zeros((len(queries), 0), np.uint64)
    group = np.searchsorted(self._queries, queries)
    starts, counts = self._starts[group], self._counts[group]
    place = np.arange(self.most + 1)
    there = place < counts[:, None]
    own = passages[:, :1]
    found = np.where(
        there, self._passages[np.where(there, starts[:, None] + place, 0)], own
    )
    for row in np.flatnonzero(counts > self.most + 1):
      everything = self._passages[starts[row] : starts[row] + counts[row]]
      here = np.intersect1d(everything, passages)
      here = here[here != own[row]][: self.most]
      found[row, : len(here)] = here
    # The own one goes to the end of its row, with those that stand in for it.
    order = np.argsort(found == own, axis=1, kind='stable')
    return np.take_along_axis(found, order, axis=1)[:, : self.most]


@dataclasses.dataclass(frozen=True)
class Picks:
  """The pairs of a global batch, before their tokens are read.

  Rows int64 [B] of `Picker.queries` and [B, 1 + K] of `Picker.passages`, the
  positive and then the hard negatives, -1 where an example has fewer than K;
  and numbers uint32 [B], places in the order of the step, for dropout.
  """

  queries: np.ndarray
  passages: np.ndarray
  numbers: np.ndarray

  def __getitem__(self, rows: np.ndarray) -> 'Picks':
    """Some pairs, in this order."""
    return Picks(self.queries[rows], self.passages[rows], self.numbers[rows])


@dataclasses.dataclass(frozen=True, eq=False)
class Picker:
  """Picks the pairs of global batches; fields are those of `Batches`."""

  caches: Sequence[Cache]
  rates: Sequence[float]
  batch_size: int
  seed: int
  num_negatives: int
  columns: Sequence[Column] = ()
  num_others: int = 0

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
    """The tokens of a text of all examples, and its columns."""
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

  @functools.cached_property
  def positives(self) -> Positives:
    """The passages of each query, over all caches."""
    pairs: tuple[list[Any], list[Any]] = [], []
    for cache in self.caches:
      # A row without a query is a passage of a corpus.
      rows = np.flatnonzero(cache.query_tokens.lengths)
      pairs[0].append(cache.query_fingerprints[rows])
      pairs[1].append(cache.passage_fingerprints[rows])
    return Positives(*map(np.concatenate, pairs))

  def __call__(self, step: int) -> Picks:
    return self._picks(*self.order(step))

  def _picks(self, examples: np.ndarray, epochs: np.ndarray) -> Picks:
    passages = np.full((len(examples), 1 + self.num_negatives), -1, np.int64)
    passages[:, 0] = examples
    if self.num_negatives > 0:
      passages[:, 1:] = self._chosen_negatives(examples, epochs)
    if self.num_others:
      passages = np.concatenate([passages, self._others(examples)], axis=1)
    numbers = np.arange(len(examples), dtype=np.uint32)
    return Picks(examples, passages, numbers)

  def _others(self, examples: np.ndarray) -> np.ndarray:
    """Passages of the next pairs, round the batch; -1 for the pair's own."""
    count = len(examples)
    following = np.arange(count)[:, None] + np.arange(1, 1 + self.num_others)
    following %= count
    same = np.zeros(following.shape, bool)
    for pool in (self.queries, self.passages):
      ids = pool.gather('ids', examples)
      same |= ids[following] == ids[:, None]
    return np.where(same, -1, examples[following])

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

  def arrays(self, picks: Picks) -> dict[str, np.ndarray]:
    """The arrays of a batch of some pairs beside its texts; see `Batches`."""
    passages = self.passages.gather('ids', picks.passages)
    queries = self.queries.gather('ids', picks.queries)
    ids = as_uint32_pairs(passages)
    found = {
        'numbers': picks.numbers,
        'query_ids': as_uint32_pairs(queries),
        'passage_ids': ids[:, 0],
    }
    if self.positives.most:
      others = self.positives.others(queries, passages)
      found['positive_ids'] = as_uint32_pairs(others)
    if ids.shape[1] > 1:
      found['negative_ids'] = ids[:, 1:]
      found['negative_valid'] = picks.passages[:, 1:] >= 0
    for column in self.columns:
      of_query = column.per == 'query'
      pool = self.queries if of_query else self.passages
      rows = picks.queries if of_query else picks.passages
      found[column.name] = pool.gather(column.name, rows, column.default)
    return found

  def sample(self, rng: np.random.Generator) -> Picks:
    """A batch like those of the order, drawn with replacement."""
    sizes = np.array([len(cache) for cache in self.caches])
    source = rng.choice(len(sizes), self.batch_size, p=self.rates)
    examples = self.queries.first[source] + rng.integers(0, sizes[source])
    return self._picks(examples, np.zeros(self.batch_size, np.int64))
