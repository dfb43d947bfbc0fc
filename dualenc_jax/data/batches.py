"""Batches by index: the batch of a step is a pure function of seed and step."""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from dualenc_jax.data import columns as columns_lib, layouts
from dualenc_jax.data.cache import Cache
from dualenc_jax.data.columns import Column
from dualenc_jax.data.layouts import Layout, Padded, Shape
from dualenc_jax.data.picks import Picker, Picks
from dualenc_jax.errors import UserError

# Texts of the batches that a layout's shapes are chosen from, at most.
SAMPLE_TEXTS = 2**22
SAMPLE_BATCHES = 256


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
  """Global batches of one cache, or of a mixture of several.

  Which pairs a step has is a pure function of the caches, rates, batch size and
  seed, see `Order`: neither layout nor cells nor hosts change it.

  Attributes:
    caches: the prepared examples.
    batch_size: B, pairs of the global batch.
    seed: of the order, 0 or more.
    query_length: most tokens of a query, not less than the caches'.
    passage_length: most tokens of a passage, not less than the caches'.
    num_negatives: K, hard negatives a query. Of an example that has more, epoch
      e takes K consecutive ones from number e * K on, around the end to the
      first; of one that has fewer, all.
    rates: share of each cache; None for one cache.
    layout: how the texts are put into rows.
    cells: C, a multiple of the devices that feed on a batch and a divisor of B;
      see `dualenc_jax.text.text_rows`.
    columns: those of each query or candidate that a batch has, too; a cache
      without one has its default everywhere.
  """

  caches: Sequence[Cache]
  batch_size: int
  seed: int
  query_length: int
  passage_length: int
  num_negatives: int = 0
  rates: Sequence[float] | None = None
  layout: Layout = Padded()
  cells: int = 1
  columns: Sequence[Column] = ()

  def __post_init__(self):
    if not 1 <= self.batch_size <= self.num_examples:
      raise UserError(
          f'Batches.batch_size (BATCH_SIZE) is {self.batch_size}, but'
          f' {" + ".join(cache.header["task"] for cache in self.caches)} has'
          f' {self.num_examples} examples. Expected 1 to that many.'
      )
    rates = (1.0,) if self.rates is None else self.rates
    if (
        len(rates) != len(self.caches)
        or min(rates) <= 0
        or abs(sum(rates) - 1) > 1e-6
    ):
      raise UserError(
          f'Batches.rates is {self.rates}; expected a positive rate for each of'
          f' the {len(self.caches)} caches, adding up to 1.'
      )
    if self.cells < 1 or self.batch_size % self.cells:
      raise UserError(
          f'Batches.cells is {self.cells}; expected a divisor of the batch size'
          f' {self.batch_size}.'
      )
    for name in ('query_length', 'passage_length'):
      cached = max(cache.header[name] for cache in self.caches)
      if getattr(self, name) < cached:
        raise UserError(
            f'Batches.{name} is {getattr(self, name)}, but rows of the cache'
            f' have up to {cached} tokens; a cut would lose their EOS. Use the'
            ' lengths of the Tokenizer.'
        )
    if self.num_negatives > 0 and not any(
        len(cache.negative_tokens) for cache in self.caches
    ):
      header = self.caches[0].header
      raise UserError(
          f'Batches.num_negatives is {self.num_negatives}, but no example of'
          f" task {header['task']!r}, split {header['split']!r}, has hard"
          ' negatives. Use 0.'
      )

  @functools.cached_property
  def picker(self) -> Picker:
    """Picks the pairs of a step."""
    rates = (1.0,) if self.rates is None else tuple(self.rates)
    return Picker(
        self.caches,
        rates,
        self.batch_size,
        self.seed,
        self.num_negatives,
        self.columns,
    )

  @property
  def num_examples(self) -> int:
    return sum(len(cache) for cache in self.caches)

  @functools.cached_property
  def shapes(self) -> list[tuple[Shape, Shape]]:
    """Shapes of (queries, passages), the usual one first, the largest last.

    A step takes the first that holds its texts, so that there are no more
    programs to compile than these.
    """
    texts = self.batch_size * (1 + self.num_negatives)
    count = min(max(SAMPLE_TEXTS // texts, 8), SAMPLE_BATCHES)
    # Other batches than those to train on, or each of these would fit.
    rng = np.random.default_rng([self.seed, 2**31])
    samples = [
        self._lengths(self._in_cells(self.picker.sample(rng)))
        for _ in range(count)
    ]
    limits = self.query_length, self.passage_length
    both = [
        self.layout.shapes(np.concatenate(lengths), limit)
        for lengths, limit in zip(zip(*samples), limits)
    ]
    last = max(len(shapes) for shapes in both)
    return [
        tuple(shapes[min(i, len(shapes) - 1)] for shapes in both)
        for i in range(last)
    ]

  def __call__(
      self, step: int, cells: slice | np.ndarray = slice(None)
  ) -> dict[str, Any]:
    """The batch of a step.

    Args:
      step: 0 or more; any order.
      cells: the part [c] of the cells that this host feeds, a slice or numbers.

    Returns:
      queries and passages, `TextRows` of the cells, the latter with the hard
      negatives; for their b = c B / C pairs numbers uint32 [b], query_ids and
      passage_ids uint32 [b, 2], fingerprints of the tokens; with K > 0
      negative_ids uint32 [b, K, 2], zero where an example has fewer than K, and
      negative_valid bool [b, K], False there; and each column by its name, [b]
      per query, [b, 1 + K] per candidate.
    """
    picks = self._in_cells(self.picker(step))
    lengths = self._lengths(picks)
    # All hosts take the same shape, so they look at all cells.
    shapes, placements = self._place(lengths)
    texts = [
        layouts.lay_out(
            shape, placement.of(cells), row[cells], length[cells], pool.copy
        )
        for shape, placement, row, length, pool in zip(
            shapes,
            placements,
            self._rows(picks),
            lengths,
            (self.picker.queries, self.picker.passages),
        )
    ]
    fed = np.arange(self.batch_size).reshape(self.cells, -1)[cells].ravel()
    return {
        'queries': texts[0],
        'passages': texts[1],
        **self.picker.arrays(picks[fed]),
    }

  def _in_cells(self, picks: Picks) -> Picks:
    """Deals the pairs to the cells, so that each has texts of all lengths.

    The order of the pairs in a batch is free: a loss is a mean over them.
    """
    if self.cells == 1 or isinstance(self.layout, Padded):
      return picks
    lengths = self.picker.passages.lengths(picks.passages).sum(axis=1)
    lengths += self.picker.queries.lengths(picks.queries)
    longest_first = np.argsort(-lengths, kind='stable')
    # To and fro, or the first cell would get the longer of all.
    rounds = longest_first.reshape(-1, self.cells)
    rounds[1::2] = rounds[1::2, ::-1]
    return picks[rounds.T.ravel()]

  def _rows(self, picks: Picks) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the queries [C, P] and the passages [C, P (1 + K)]."""
    return (
        picks.queries.reshape(self.cells, -1),
        picks.passages.reshape(self.cells, -1),
    )

  def _lengths(self, picks: Picks) -> tuple[np.ndarray, np.ndarray]:
    """Their lengths."""
    queries, passages = self._rows(picks)
    return (
        self.picker.queries.lengths(queries),
        self.picker.passages.lengths(passages),
    )

  def _place(self, lengths):
    """The first shapes that hold the texts, and where these lie."""
    for shapes in self.shapes:
      placements = []
      for shape, length in zip(shapes, lengths):
        placement = self.layout.place(shape, length)
        if placement is None:
          break
        placements.append(placement)
      if len(placements) == len(shapes):
        return shapes, placements
    raise AssertionError('The last shape of a layout holds any texts.')


def abstract_batch(
    shapes: tuple[Shape, Shape],
    batch_size: int,
    cells: int,
    num_negatives: int,
    array: Callable[[tuple[int, ...], Any], Any],
    columns: Sequence[Column] = (),
) -> dict[str, Any]:
  """What `Batches` yields, array(shape, dtype) in place of each array.

  Args are those of `Batches`, and the shapes of the rows of queries and of
  passages.
  """
  pairs, k = batch_size // cells, num_negatives
  queries, passages = shapes
  own = columns_lib.arrays(batch_size, k or None, columns)
  return {
      'queries': layouts.abstract_rows(queries, cells, pairs, array),
      'passages': layouts.abstract_rows(
          passages, cells, pairs * (1 + k), array
      ),
      **{name: array(*of) for name, of in own.items()},
  }
